"""A project's quota of studies: the most studies of it that may be unfinished at once.

It is checked when a study is created, and when an ended one continues. The project is locked from the check to the
commit, so no two changes use the same room.
"""

from msgspec import Struct

from headrace.errors import QuotaExceededError


class StudiesQuota(Struct, frozen=True, kw_only=True):
    """A project's quota of studies, and how much of it is used."""

    project: str
    most: int
    unended: int
    """How many of its studies have not ended."""

    def require(self, more: int) -> None:
        """Raise QuotaExceededError if the project may not have this many more unfinished studies."""
        if self.unended + more <= self.most:
            return
        has = "1 study that has" if self.unended == 1 else f"{self.unended} studies that have"
        wanted = "another one" if more == 1 else f"{more} more at once"
        raise QuotaExceededError(
            f"project '{self.project}' has {has} not ended, and may have {self.most}: no room for {wanted}"
        )
