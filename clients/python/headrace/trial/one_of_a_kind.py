"""Base class of objects that represent their process: its trial, its bundle and the bundle's members."""

from typing import Any, NoReturn, TypeVar

_Self = TypeVar("_Self", bound="OneOfAKind")


class OneOfAKind:
    """A copy is the object itself, for example in a copy of a model that holds its trial. It cannot be sent to
    other processes.
    """

    def __copy__(self: _Self) -> _Self:
        return self

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"a {name} stays in its process and cannot be pickled. Leave it out of what is saved or sent to other "
            "processes: save_hyperparameters(ignore=[...]) in Lightning, a model's state_dict() in place of the model. "
            "The parameters of a trial are in dict(t.params)"
        )
