"""Tokens as text, and what is stored of them: `hr_ID_SECRET`, and the SHA-256 of that text.

The secret has 32 random bytes, so a plain digest is enough: nobody can guess that many. The id is not secret. It
finds the row, and people use it to name a token.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

SECRET_BYTES: Final = 32
_ID_BYTES: Final = 8
_TOKEN: Final = re.compile(r"hr_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_ID: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token that a call carries, or one that was just made. Its text is never shown by accident."""

    id: str
    text: str = field(repr=False)
    digest: bytes = field(repr=False)

    @property
    def shown(self) -> str:
        """For messages: the part that is not secret."""
        return f"hr_{self.id}_…"


def new_token() -> Token:
    """A new token."""
    made = read(f"hr_{secrets.token_hex(_ID_BYTES)}_{secrets.token_urlsafe(SECRET_BYTES)}")
    assert made is not None
    return made


def read(text: str) -> Token | None:
    """The token in a text; None if it is not one."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else Token(id=found[1], text=text, digest=digest_of(text))


def digest_of(text: str) -> bytes:
    """The stored digest of a token."""
    return hashlib.sha256(text.encode()).digest()


def is_same(presented: bytes, stored: bytes) -> bool:
    """Whether two digests are equal. It takes the same time wherever they differ."""
    return hmac.compare_digest(presented, stored)


def is_id(text: str) -> bool:
    """Whether a text can be the id of a token."""
    return _ID.fullmatch(text) is not None
