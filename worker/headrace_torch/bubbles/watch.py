"""Points in a model's forward and backward pass and in its optimizer's step.

No number changes. A hook before a layer's forward pass, and one on the gradient of its output, compute nothing.
The optimizer's step runs in parts, some parameters at a time. Optimizers that treat each parameter separately
compute the same bits that way.
"""

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from headrace_torch.bubbles.gate import Gate

PART: Final = 1 << 16
"""Parameters are stepped together until they have this many elements; a larger one is a part by itself."""


@runtime_checkable
class Parted(Protocol):
    """An object with points of its own, such as a fused group."""

    def between(self, callback: Callable[[int], None] | None) -> None:
        """Calls back between the parts of each step, with the part's number in it."""


def watch(
    gate: Gate, model: "nn.Module | Parted", optimizer: torch.optim.Optimizer | None = None
) -> Callable[[], None]:
    """Puts points into a model and its optimizer.

    Args:
        gate: where the trial pauses.
        model: a module, with a point before each layer, forward and backward. Or a fused `Group`, with points
            before each layer, after each parameter's gradient and before each member's update. A group chooses its
            engine without points, so let it make its first step before the trial takes the gate.
        optimizer: the module's. An optimizer of `torch.optim` that treats each parameter separately is stepped in
            parts; any other has a single point before its step.

    Returns:
        A function that removes the points.
    """
    if isinstance(model, nn.Module):
        return _watched(gate, model, optimizer)
    if optimizer is not None:
        raise TypeError("a fused group has its own optimizer: watch it without one")
    numbered = _Numbered(gate)
    model.between(lambda place: gate.point(numbered[place]))
    return lambda: model.between(None)


def _watched(gate: Gate, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Callable[[], None]:
    first = next(model.parameters(), None)
    if first is not None and first.device.type == "cuda":
        gate.synchronize = lambda: torch.cuda.current_stream().synchronize()
    handles = []
    for layer in model.modules():
        if next(layer.children(), None) is None:
            before, after = gate.new_point(), gate.new_point()
            handles.append(layer.register_forward_pre_hook(_Before(gate, before)))
            handles.append(layer.register_forward_hook(_After(gate, after)))
    if optimizer is not None:
        step = optimizer.step
        optimizer.step = _parted(gate, optimizer, step)  # type: ignore[method-assign]

    def leave() -> None:
        for handle in handles:
            handle.remove()
        if optimizer is not None:
            optimizer.step = step  # type: ignore[method-assign]

    return leave


def join(
    model: "nn.Module | Parted", optimizer: torch.optim.Optimizer | None = None, *, member_bytes: int = 0
) -> Gate:
    """Takes the gate that HEADRACE_BUBBLE_GATE names, and puts its points into a model: one line of a trial's script.

    Without the variable the gate is always open, so the same script runs anywhere.

    Args:
        model, optimizer: as for `watch`.
        member_bytes: memory that one member needs, if the script knows it.

    Raises:
        GateError: the gate cannot be taken, or the stage has less memory to spare.
    """
    gate = Gate.from_environment()
    try:
        if member_bytes:
            gate.require(member_bytes)
        watch(gate, model, optimizer)
    except BaseException:
        gate.close()
        raise
    return gate


class _Numbered(dict[int, int]):
    """Points by their number in a step; created when they are first reached."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def __missing__(self, number: int) -> int:
        self[number] = self._gate.new_point()
        return self[number]


class _Before:
    """A point before a layer's forward pass."""

    def __init__(self, gate: Gate, key: int) -> None:
        self._gate, self._key = gate, key

    def __call__(self, _module: nn.Module, _inputs: Any) -> None:
        self._gate.point(self._key)


class _After:
    """Puts a point before the layer's backward pass: when the gradient of its output is known."""

    def __init__(self, gate: Gate, key: int) -> None:
        self._gate, self._key = gate, key

    def __call__(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        for tensor in _tensors(output):
            if tensor.requires_grad:
                known: Any = tensor.register_hook
                known(self._reached)
                return

    def _reached(self, _gradient: Tensor) -> None:
        self._gate.point(self._key)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for one in output:
            yield from _tensors(one)
    elif isinstance(output, dict):
        for one in output.values():
            yield from _tensors(one)


def _parted(gate: Gate, optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> Callable[..., Any]:
    numbered = _Numbered(gate)

    def stepped(_: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        gate.point(numbered[0])
        if not separable(optimizer):
            return step() if closure is None else step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        whole = [group["params"] for group in optimizer.param_groups]
        try:
            for number, part in enumerate(_parts(whole)):
                gate.point(numbered[number])
                for group, params in zip(optimizer.param_groups, part, strict=True):
                    group["params"] = params
                step()
        finally:
            for group, params in zip(optimizer.param_groups, whole, strict=True):
                group["params"] = params
        return loss

    vars(stepped).update(vars(step))  # torch's schedules mark a step that they know, and need a method
    return MethodType(stepped, optimizer)


def separable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer steps each parameter separately: torch's own do, except LBFGS."""
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim.") and kind is not torch.optim.LBFGS


def _parts(whole: list[list[Tensor]]) -> Iterator[list[list[Tensor]]]:
    """Cuts the groups' parameters into parts; each part has a list for every group."""
    part: list[list[Tensor]] = [[] for _ in whole]
    size = 0
    for number, params in enumerate(whole):
        for one in params:
            if size and size + one.numel() > PART:
                yield part
                part, size = [[] for _ in whole], 0
            part[number].append(one)
            size += one.numel()
    if size:
        yield part
