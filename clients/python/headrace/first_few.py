"""Many names in a sentence, for the scheduler's log and for users of a client."""

from collections.abc import Sequence


def first_few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
