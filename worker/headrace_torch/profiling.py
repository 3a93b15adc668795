"""Profiles the layers of an `nn.Sequential` for `headrace plan`: seconds and bytes of each, by micro-batch size.

    from headrace_torch.profiling import profile

    profile(net, lambda n: torch.randn(n, 784), micro_batches=(1, 2, 4), out="layers.json")

Every layer runs alone, on the device and in the precision of `net`, forward and backward, `repeats` times after
two warm-ups; the median counts. Layers of one kind (the same module, parameters and bytes) get the same numbers,
the medians over all of them, because noise would otherwise make each a separate kind. Saved activations are what
autograd keeps, by storage: what a layer shares with the previous one is counted there. As a command:

    python -m headrace_torch.profiling module:function --micro-batches 1,2,4 --out layers.json

Here `function()` returns the module and a function from a micro-batch size to an input.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from headrace.errors import HeadraceError
from headrace.trial.target import TargetError, import_target

WARM_UPS = 2
Sample = Callable[[int], Tensor]
"""From a micro-batch size to an input."""


class ProfileError(HeadraceError):
    """A layer cannot be run alone."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One layer with one micro-batch."""

    forward_s: float
    backward_s: float
    weight_s: float
    activation_bytes: int
    input_bytes: int


def profile(
    net: nn.Sequential,
    sample: Sample,
    *,
    micro_batches: Sequence[int] = (1, 2, 4),
    repeats: int = 5,
    name: str = "",
    out: str | Path | None = None,
) -> dict[str, Any]:
    """The profile, as `headrace plan` reads it; written to `out` too, if given.

    Afterwards the gradients of `net` are gone, and buffers (running means) have seen the samples. Raises
    ProfileError for a layer that does not take one tensor to one tensor or changes its input, and ValueError for
    no sizes.
    """
    if not isinstance(net, nn.Sequential) or not len(net):
        raise ProfileError(
            f"net is a {type(net).__name__}, not an nn.Sequential with layers.",
            remedy="Write the model as nn.Sequential(layer, layer, ...).",
        )
    sizes = sorted(set(micro_batches))
    if not sizes or sizes[0] < 1 or repeats < 1:
        raise ValueError(f"micro_batches {list(micro_batches)} and repeats {repeats} must be positive")
    runs = [_chain(net, sample(size), repeats) for size in sizes]
    flops = _flops(net, sample(sizes[0]), sizes[0])
    number_bytes = max((p.element_size() for p in net.parameters()), default=2)
    # The first layer computes no gradient of its input, so it is unlike any other.
    kinds = [(index == 0, _kind(layer, [run[index] for run in runs])) for index, layer in enumerate(net)]
    told: dict[str, Any] = {
        "source": f"headrace_torch.profiling on {_device_name(net)}, torch {torch.__version__}",
        "micro_batches": sizes,
        "number_bytes": number_bytes,
        "layers": [],
    }
    if name:
        told["name"] = name
    for index, layer in enumerate(net):
        alike = [i for i, kind in enumerate(kinds) if kind == kinds[index]]
        if index and kinds[index] == kinds[index - 1]:
            told["layers"][-1]["count"] += 1
            continue
        entry: dict[str, Any] = {"name": type(layer).__name__, "count": 1}
        for field in ("forward_s", "backward_s", "weight_s"):
            entry[field] = [_seconds(getattr(run[i], field) for i in alike) for run in runs]
        for field in ("activation_bytes", "input_bytes"):
            entry[field] = [getattr(run[index], field) for run in runs]
        entry["parameter_bytes"] = number_bytes * sum(p.numel() for p in layer.parameters())
        entry["forward_flops"] = flops[index]
        told["layers"].append(entry)
    if out is not None:
        Path(out).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return told


def _chain(net: nn.Sequential, inputs: Tensor, repeats: int) -> list[_Run]:
    """Runs every layer on what the previous one makes of the inputs."""
    found: list[_Run] = []
    x, before = inputs, set[int]()
    for index, layer in enumerate(net):
        where = f"layer {index} ({type(layer).__name__})"
        run, x, before = _measured(layer, x, before, repeats, where, first=index == 0)
        found.append(run)
    net.zero_grad(set_to_none=True)
    return found


def _measured(
    layer: nn.Module, x: Tensor, before: set[int], repeats: int, where: str, *, first: bool
) -> tuple[_Run, Tensor, set[int]]:
    """One layer's run, its output, and the storages that it saved."""
    x = x.detach()
    if x.is_floating_point() and not first:
        x.requires_grad_()
    saved: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in (*layer.parameters(), *layer.buffers())}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = _forward(layer, x, where)
    # While `y` lives, so do the storages, and no address is reused.
    activation_bytes = sum(size for address, size in saved.items() if address not in before)
    forward: list[float] = []
    backward: list[float] = []
    through: list[float] = []
    for attempt in range(WARM_UPS + repeats):
        start = _now(x)
        made = _forward(layer, x, where)
        middle = _now(x)
        if made.requires_grad:
            gradient = torch.ones_like(made)
            middle_again = _now(x)
            if x.requires_grad:
                torch.autograd.grad(made, x, gradient, retain_graph=True)
            input_only = _now(x)
            torch.autograd.backward(made, gradient)
            end = _now(x)
            if attempt >= WARM_UPS:
                through.append(input_only - middle_again)
                backward.append(end - input_only)
        x.grad = None
        if attempt >= WARM_UPS:
            forward.append(middle - start)
    whole = _seconds(backward) if backward else 0.0
    own_gradients = any(p.requires_grad for p in layer.parameters())
    weight = max(whole - (_seconds(through) if x.requires_grad else 0.0), 0.0) if own_gradients else 0.0
    run = _Run(
        forward_s=_seconds(forward),
        backward_s=whole,
        weight_s=weight,
        activation_bytes=activation_bytes,
        input_bytes=x.numel() * x.element_size(),
    )
    return run, y.detach(), set(saved)


def _forward(layer: nn.Module, x: Tensor, where: str) -> Tensor:
    version = x._version
    try:
        y = layer(x)
    except RuntimeError as error:
        if "in-place" not in str(error):
            raise
        raise _in_place(where) from None
    if not isinstance(y, Tensor):
        raise ProfileError(
            f"{where} returns a {type(y).__name__}, not one tensor.",
            remedy="Wrap it, so that one tensor goes in and one comes out.",
        )
    if x._version != version:
        raise _in_place(where)
    return y


def _in_place(where: str) -> ProfileError:
    return ProfileError(
        f"{where} changes its input in place, so it cannot be run alone.",
        remedy="Set inplace=False, or merge it with the previous layer.",
    )


def _flops(net: nn.Sequential, x: Tensor, size: int) -> list[float]:
    found = []
    with torch.no_grad():
        for layer in net:
            with FlopCounterMode(display=False) as counter:
                x = layer(x)
            found.append(counter.get_total_flops() / size)
    return found


def _kind(layer: nn.Module, runs: Sequence[_Run]) -> tuple[object, ...]:
    """What distinguishes layers whose times differ only by noise."""
    parameters = tuple((tuple(p.shape), p.dtype, p.requires_grad) for p in layer.parameters())
    sizes = tuple((run.activation_bytes, run.input_bytes) for run in runs)
    return (repr(layer), parameters, sizes)


def _seconds(values: Iterable[float]) -> float:
    return float(f"{median(values):.4g}")


def _now(x: Tensor) -> float:
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def _device_name(net: nn.Module) -> str:
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace_torch.profiling",
        description="Profile the layers of an nn.Sequential for `headrace plan`.",
    )
    parser.add_argument(
        "function", help="module:function, which returns the net and a function size -> input"
    )
    parser.add_argument("--micro-batches", default="1,2,4", help="the sizes to measure (default: 1,2,4)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each layer (default: 5)")
    parser.add_argument("--out", type=Path, required=True, help="the file to write, such as layers.json")
    told = parser.parse_args(words)
    try:
        sizes = [int(word) for word in told.micro_batches.split(",")]
    except ValueError:
        parser.error(f"--micro-batches {told.micro_batches!r} is not a list of whole numbers, such as 1,2,4")
    try:
        net, sample = import_target(told.function, str(Path.cwd()))()
        found = profile(net, sample, micro_batches=sizes, repeats=told.repeats, out=told.out)
    except (HeadraceError, TargetError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    count = sum(entry["count"] for entry in found["layers"])
    print(f"wrote {told.out}: {count} layers, {len(found['layers'])} entries")


if __name__ == "__main__":
    main()
