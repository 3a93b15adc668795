"""The one error that only an installation can have: a package of an extra is not there."""

from headrace.errors import HeadraceError


class MissingExtraError(HeadraceError):
    """A package that an optional feature needs is not installed."""

    @classmethod
    def of(cls, what: str, extra: str) -> "MissingExtraError":
        """`what` begins the sentence: what needs the extra."""
        return cls(
            f"{what} needs packages that are not installed.", remedy=f"Run `pip install 'headrace[{extra}]'`."
        )
