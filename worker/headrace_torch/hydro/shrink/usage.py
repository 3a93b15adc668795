"""How a forward pass uses widths, seen from outside: one recorded run, on the meta device if that works.

What matters are the sums over a width whose scale the layers' shapes do not show: attention's scores, and logits
computed by a function instead of a layer. Each is recorded with the module whose forward pass computes it, so that
two runs of one model, at two widths, can be compared entry by entry.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from headrace_torch.hydro.errors import ShrinkError
from headrace_torch.hydro.parametrize.hooks import Query, Readout
from headrace_torch.hydro.shrink.blame import ROOT, failing_layer

_MATMULS: Final = {torch.matmul, torch.bmm, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.mm}
_ADDING_MATMULS: Final = {torch.baddbmm, Tensor.baddbmm, torch.addmm, Tensor.addmm}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One sum over a possible width.

    Attributes:
        owner: the module whose forward pass computes it.
        what: "attention", "scores" (a product of two activations), "product" (with a parameter), "query", "readout".
        summed: the size summed over.
        result: for a product, the size that the parameter's other side gives the result; 0 if it does not matter.
    """

    owner: str
    what: str
    summed: int
    result: int = 0


@dataclass(slots=True)
class Usage:
    """What a forward pass did."""

    events: list[Event] = field(default_factory=list)
    output_shapes: list[tuple[int, ...]] = field(default_factory=list)


def record_usage(model: nn.Module, inputs: tuple[Tensor, ...]) -> Usage:
    """Runs the forward pass once, without gradients, and restores nothing but the model's mode.

    Args:
        model: on any device; it is run where it is, with inputs moved there.
        inputs: positional arguments.

    Raises:
        ShrinkError: the forward pass fails; names the layer that failed.
    """
    usage = Usage()
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    was_training = model.training
    model.train()
    try:
        with (
            _recording(model, usage),
            torch.device(device),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):
            output = model(*(one.to(device) for one in inputs))
    except Exception as error:
        name = failing_layer(error, model)
        raise ShrinkError(f"the forward pass fails: {error}", layer=name) from error
    finally:
        model.train(was_training)
    usage.output_shapes = [tuple(one.shape) for one in tensors_in(output)]
    return usage


def tensors_in(output: Any) -> list[Tensor]:
    """The tensors of a model's output: the output itself, or those in its tuples, lists, mappings and data
    classes, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [one for value in output.values() for one in tensors_in(value)]
    if isinstance(output, tuple | list):
        return [one for value in output for one in tensors_in(value)]
    if hasattr(output, "__dataclass_fields__"):
        return [one for name in output.__dataclass_fields__ for one in tensors_in(getattr(output, name))]
    return []


@contextmanager
def _recording(model: nn.Module, usage: Usage) -> Iterator[None]:
    at_work: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def enter(module: nn.Module, args: tuple[Any, ...], name: str = name or ROOT) -> None:
            at_work.append(name)
            if isinstance(module, Query | Readout):
                owner = name.rpartition(".")[0] or ROOT
                what = "query" if isinstance(module, Query) else "readout"
                usage.events.append(Event(owner=owner, what=f"{what}:{name}", summed=args[0].shape[-1]))

        def leave(_module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
            at_work.pop()

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with _Recorder(model, at_work, usage.events):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Recorder(TorchFunctionMode):
    """Records sums over widths outside layers' own; what is computed only from parameters counts as a parameter."""

    def __init__(self, model: nn.Module, at_work: list[str], events: list[Event]) -> None:
        super().__init__()
        self._at_work = at_work
        self._events = events
        self._modules = dict(model.named_modules())
        # Tensors are kept so that an id stays theirs.
        self._parameters: dict[int, Tensor] = {id(one): one for one in model.parameters()}

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        owner = self._at_work[-1] if self._at_work else ROOT
        if func is scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            self._events.append(Event(owner=owner, what="attention", summed=query.shape[-1]))
        elif func is multi_head_attention_forward:
            self._events.append(Event(owner=owner, what="attention", summed=args[3] // args[4]))
        elif func in _MATMULS or func in _ADDING_MATMULS or func is linear:
            self._record_product(func, owner, args)
        elif func is torch.einsum:
            self._record_einsum(owner, args)
        operands = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        if operands and isinstance(result, Tensor) and all(id(one) in self._parameters for one in operands):
            self._parameters[id(result)] = result
        return result

    def _record_product(self, func: Any, owner: str, args: tuple[Any, ...]) -> None:
        operands = args[1:3] if func in _ADDING_MATMULS else args[:2]
        if len(operands) < 2 or not all(isinstance(one, Tensor) for one in operands):
            return
        left, right = operands
        if func is linear and isinstance(self._modules.get(owner), nn.Linear):
            return  # a layer's own product: its weight's shape shows everything
        columns = right.shape[0] if func is linear else right.shape[-1]
        self._events.append(
            Event(owner=owner, what=self._kind(left, right), summed=left.shape[-1], result=columns)
        )

    def _record_einsum(self, owner: str, args: tuple[Any, ...]) -> None:
        """Sums of products of two tensors, written as an equation with its result; other equations are not
        analysed."""
        if len(args) != 3 or not isinstance(args[0], str) or "->" not in args[0] or "..." in args[0]:
            return
        inputs, _, output = args[0].replace(" ", "").partition("->")
        first, _, second = inputs.partition(",")
        _, left, right = args
        sizes = dict(zip(first + second, (*left.shape, *right.shape), strict=True))
        weight = first if id(left) in self._parameters else second
        summed = math.prod(sizes[one] for one in set(first) & set(second) - set(output))
        result = math.prod(sizes[one] for one in set(weight) & set(output))
        self._events.append(Event(owner=owner, what=self._kind(left, right), summed=summed, result=result))

    def _kind(self, left: Tensor, right: Tensor) -> str:
        return "product" if id(left) in self._parameters or id(right) in self._parameters else "scores"
