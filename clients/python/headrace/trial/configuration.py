"""A trial's configuration, as its script reads it."""

from typing import TYPE_CHECKING, Any, NoReturn

from headrace.trial import elsewhere

NO_PARAMETER = "this trial has no parameter"


class Params(dict[str, Any]):
    """The configuration. Reading a parameter that is not active raises a `KeyError` that lists those that are."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(elsewhere.no_parameter_attribute(name), name=name, obj=self)

    def __missing__(self, name: str) -> NoReturn:
        raise KeyError(f"{NO_PARAMETER} {name!r}; it has {', '.join(sorted(self)) or 'none'}")
