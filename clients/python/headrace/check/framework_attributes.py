"""Which attributes of a wrapped model, or of a trainer of the script's own class, belong to the library.

A script may subclass the Trainer, but the library's methods set most of what its objects hold. The library
either writes those attributes to its own checkpoint or computes them again. So they are not blamed as the
script's state: nobody could keep `trainer._tr_loss` in `t.state`.
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
"""The classes whose attributes the framework saves or recreates. It does not save a callback's, unless the
callback says so.
"""


@cache
def of_library(kind: type, is_own_module: Callable[[str], bool]) -> frozenset[str]:
    """The attributes set by methods of those base classes of `kind` that belong to a library."""
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
    """The names in assignments `self.name = ...`."""
    code = method.__code__
    this, before = code.co_varnames[:1], None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR" and before is not None:
            loaded = before.argval if isinstance(before.argval, tuple) else (before.argval,)
            if before.opname.startswith("LOAD_FAST") and loaded[-1:] == this:
                yield str(instruction.argval)
        before = instruction
