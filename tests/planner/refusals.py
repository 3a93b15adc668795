"""What a user gets for a wrong request."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.errors import InvalidFieldError


@contextmanager
def refused(field: str, says: str = "") -> Iterator[None]:
    """Check that the field is refused. `says` is part of the message, ` | ` and part of the remedy; each may be
    empty."""
    with pytest.raises(InvalidFieldError) as failed:
        yield
    assert all(one.message and one.remedy for one in failed.value.violations)
    message, _, remedy = says.partition(" | ")
    found = [one for one in failed.value.violations if one.field == field]
    assert any(message in one.message and remedy in one.remedy for one in found), failed.value
