"""Addresses without their secrets. Pure functions: whatever is shown of a tracker's address comes from here."""

import re
from typing import Final
from urllib.parse import urlsplit

from headrace.hidden import without_credentials

_SECRET: Final = re.compile(r"(?i)([?&;\s](?:password|passwd|pwd|token|secret|key)=)[^\s&;'\"]+")


def redacted(text: str) -> str:
    """A text, such as another program's error, without the users, passwords and keys of its addresses."""
    return _SECRET.sub(r"\1…", without_credentials(text))


def shown_uri(uri: str) -> str:
    """The URI of a tracker without user, password and query."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return redacted(uri)
    return redacted(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl())


def shown_host(url: str) -> str:
    """The scheme and host of a webhook: its path and its query often contain a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…" if parts.netloc else "…"
