"""Join tokens as text, and what is stored of them: `hr_ID_SECRET`, and the SHA-256 of that text.

The secret has 32 random bytes, so a plain digest is enough: nobody can guess that many. The id is not secret. It
finds the row, and people use it to name a token.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(r"hr_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_ID: Final = re.compile(r"(?:hr_)?([0-9a-f]{16})(?:_.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """A token that a worker presents, or one that was just made. Its text is never shown by accident."""

    id: str
    text: str = field(repr=False)
    digest: bytes = field(repr=False)

    def is_of(self, stored: bytes) -> bool:
        """Whether it is the token whose digest is stored. It takes the same time wherever the digests differ."""
        return hmac.compare_digest(self.digest, stored)


def new_token() -> JoinToken:
    """A new token."""
    made = read(f"hr_{secrets.token_hex(_ID_BYTES)}_{secrets.token_urlsafe(_SECRET_BYTES)}")
    assert made is not None
    return made


def read(text: str) -> JoinToken | None:
    """The token in a text; None if it is not one."""
    found = _TOKEN.fullmatch(text.strip())
    if found is None:
        return None
    return JoinToken(id=found[1], text=found[0], digest=hashlib.sha256(found[0].encode()).digest())


def id_in(text: str) -> str | None:
    """The id by which somebody names a token: alone, or as the beginning of the token."""
    found = _ID.fullmatch(text.strip())
    return found[1] if found else None
