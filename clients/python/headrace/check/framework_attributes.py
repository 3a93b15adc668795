"""Which attributes of a trainer of the script's own class, or of a wrapped model, are the library's.

A subclass of the Trainer is the script's, but most of what its objects hold is set by the library's methods. The
checkpoint that the library itself writes has that, or the library makes it again. So it is not blamed as the script's
state: nobody could keep `trainer._tr_loss` in `t.state`.
"""

import dis
from collections.abc import Callable, Iterator
from functools import cache
from types import FunctionType

_KEEP_THEIR_OWN = {
    "transformers.trainer.Trainer",
    "accelerate.accelerator.Accelerator",
    "lightning.pytorch.trainer.trainer.Trainer",
    "pytorch_lightning.trainer.trainer.Trainer",
    "torch.nn.parallel.distributed.DistributedDataParallel",
}
"""The classes whose attributes the framework saves, or makes again. A callback's are not, unless it says so."""


@cache
def of_library(kind: type, is_own_module: Callable[[str], bool]) -> frozenset[str]:
    """The attributes that methods of the library's classes, among those that `kind` derives from, set."""
    bases = [base for base in kind.__mro__ if not is_own_module(base.__module__)]
    if not any(f"{base.__module__}.{base.__qualname__}" in _KEEP_THEIR_OWN for base in bases):
        return frozenset()
    return frozenset(name for base in bases for method in _methods(base) for name in _set_by(method))


def _methods(kind: type) -> Iterator[FunctionType]:
    for value in vars(kind).values():
        function = getattr(value, "fset", value)
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        if isinstance(function, FunctionType):
            yield function


def _set_by(method: FunctionType) -> Iterator[str]:
    """The names in `self.name = ...`."""
    code = method.__code__
    this, before = code.co_varnames[:1], None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR" and before is not None:
            loaded = before.argval if isinstance(before.argval, tuple) else (before.argval,)
            if before.opname.startswith("LOAD_FAST") and loaded[-1:] == this:
                yield str(instruction.argval)
        before = instruction
