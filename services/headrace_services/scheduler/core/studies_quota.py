"""What a project's quota of studies leaves: the most of its studies that have not ended.

It is looked at where a study is created, and where one that has ended goes on. The project is locked from the question
to the commit, so no two changes take the same room.
"""

from msgspec import Struct

from headrace.errors import QuotaExceededError


class StudiesQuota(Struct, frozen=True, kw_only=True):
    """A project's quota of studies, and what is taken of it."""

    project: str
    most: int
    unended: int
    """How many of its studies have not ended."""

    def require(self, more: int) -> None:
        """Raises QuotaExceededError where the project may not have so many more studies that have not ended."""
        if self.unended + more <= self.most:
            return
        has = "1 study that has" if self.unended == 1 else f"{self.unended} studies that have"
        wanted = "another one" if more == 1 else f"{more} more at once"
        raise QuotaExceededError(
            f"project '{self.project}' has {has} not ended, and may have {self.most}: no room for {wanted}"
        )
