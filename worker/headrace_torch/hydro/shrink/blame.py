"""Which layer stopped a model: from the objects in a traceback's frames to a dotted name.

A layer that fails while it runs already has a name. One that fails during construction has none yet: its name is
taken from a model of the same factory that could be built, according to which children its parents had so far.
"""

from itertools import pairwise
from types import TracebackType

from torch import nn

ROOT = "(model)"


def failing_layer(error: BaseException, model: nn.Module) -> str:
    """The innermost module of `model` whose code was running when the error was raised; the root is `(model)`."""
    names = {id(module): name for name, module in model.named_modules()}
    running = [names[id(module)] for module in _modules_at_work(error.__traceback__) if id(module) in names]
    return (running[-1] or ROOT) if running else ROOT


def failing_construction(error: BaseException, alike: nn.Module) -> str:
    """The layer that could not be constructed, named as in a model that could be: same factory, other sizes."""
    selves = _modules_at_work(error.__traceback__)
    started = [module for index, module in enumerate(selves) if module not in selves[:index]]
    if not started or type(started[0]) is not type(alike):
        return ROOT
    path, here = [], alike
    for partial, child in pairwise(started):
        found = _first_of_type(here, type(child), without=set(getattr(partial, "_modules", {})))
        if found is None:
            break
        name, here = found
        path.append(name)
    return ".".join(path) or ROOT


def _first_of_type(
    parent: nn.Module, kind: type[nn.Module], *, without: set[str]
) -> tuple[str, nn.Module] | None:
    for name, child in parent.named_children():
        if name not in without:
            for below, module in child.named_modules(prefix=name):
                if type(module) is kind:
                    return below, module
    return None


def _modules_at_work(traceback: TracebackType | None) -> list[nn.Module]:
    found = []
    while traceback is not None:
        owner = traceback.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            found.append(owner)
        traceback = traceback.tb_next
    return found
