"""Converts the words of a command line or a message to the values of a search. Every error names field, value and
remedy."""

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from headrace.errors import InvalidFieldError, Violation
from headrace_services.planner import catalogue
from headrace_services.planner.checking import Checker, nearest
from headrace_services.planner.cluster import OVERLAPS, Cluster
from headrace_services.planner.costing import MOST_SEQUENCES, USABLE_MEMORY, Request
from headrace_services.planner.memory import Gradients, ZeroStage
from headrace_services.planner.model import AttentionKernel, Model
from headrace_services.planner.modes import MODES, Mode
from headrace_services.planner.schedules import Schedule
from headrace_services.planner.search import Limit, Method, Progress, Search, Watch

TARGETS: Final = ("deepspeed", "megatron")
GRADIENTS: Final[Mapping[str | None, str]] = MappingProxyType(
    {None: "fp32", "megatron": "fp32", "deepspeed": "bf16"}
)
"""The precision of gradients that each target has with bf16 by default; without a target, the larger one."""
BATCH_PER_DEVICE: Final = 16
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What can be specified for a plan besides its model and cluster, as unchecked words and numbers."""

    batch: int | None = None
    sequence: int | None = None
    schedule: str = "1f1b"
    chunks: int = 1
    zero: int = 1
    attention: str = "flash"
    gradients: str | None = None
    """None: the target's default; without a target, Megatron-LM's."""
    selective: str | None = None
    """Layers that recompute their attention scores, such as 1-12,20; with materialised attention."""
    overlap: str | None = None
    """None: the cluster's own ratios. Else `all`, `none`, or some of gradients, tensor and optimizer."""
    sequence_parallel: bool = True
    usable_memory: float = USABLE_MEMORY
    constants: Path | None = None
    """A file that `headrace plan calibrate --out` wrote; only commands read it."""
    target: str | None = None


def request(model: str, cluster: str, options: Options) -> Request:
    """The request that these words make. Raises InvalidFieldError."""
    where = catalogue.cluster(cluster)
    if options.constants is not None:
        where = where.calibrated(catalogue.calibration(options.constants))
    return assembled(catalogue.model(model, options.sequence), where, options)


def assembled(model: Model, cluster: Cluster, options: Options) -> Request:
    """The request for a known model and cluster. Raises InvalidFieldError."""
    check = Checker("")
    size = asdict(options)
    batch = BATCH_PER_DEVICE * cluster.devices
    if options.batch is not None:
        batch = check.integer(size, "batch", low=1, high=MOST_SEQUENCES)
    check.integer(size, "chunks", low=1, high=64)
    check.integer(size, "zero", low=1, high=3)
    usable = check.number(size, "usable_memory", low=0.01, high=1.0)
    order = _choice(check, "schedule", options.schedule, Schedule)
    kernel = _choice(check, "attention", options.attention, AttentionKernel)
    precision = _choice(check, "gradients", options.gradients or GRADIENTS[options.target], Gradients)
    overlapped = _overlapped(check, options.overlap, cluster)
    if options.selective is not None:
        model = _selective(check, options.selective, model, kernel)
    if model.profiled and options.target == "megatron":
        message = "has no layers but its own, and this model's are a profile"
        check.fail("target", options.target, message, "Say deepspeed, or describe the model.")
    if order is Schedule.INTERLEAVED and options.chunks < 2:
        check.fail(
            "chunks", options.chunks, "must be at least 2 for an interleaved schedule", "Say --chunks 2."
        )
    check.done()
    return Request(
        model=model,
        cluster=overlapped,
        batch=batch,
        schedule=order,
        chunks=options.chunks,
        zero=ZeroStage(options.zero),
        gradients=precision,
        attention=kernel,
        sequence_parallel=options.sequence_parallel,
        usable_memory=usable,
    )


def _overlapped(check: Checker, named: str | None, cluster: Cluster) -> Cluster:
    """The cluster with the ratios for what the job overlaps: its own, or 1 if nobody has measured one."""
    if named is None:
        return cluster
    patterns = {field.removeprefix("overlap_"): field for field in OVERLAPS}
    words = {"all": list(patterns), "none": []}.get(named, [word.strip() for word in named.split(",")])
    for word in words:
        if word not in patterns:
            check.fail("overlap", word, "is not a pattern of communication", nearest(word, patterns))
    constants = cluster.device.efficiencies
    ratios: dict[str, Any] = {
        field: (getattr(constants, field) or 1.0) if name in words else 0.0
        for name, field in patterns.items()
    }
    return cluster.with_efficiencies(replace(constants, **ratios))


def _selective(check: Checker, told: str, model: Model, kernel: AttentionKernel) -> Model:
    """The model, with the scores of these layers recomputed in the backward pass."""
    if kernel is not AttentionKernel.MATERIALISED:
        message = f"applies only to materialised attention: {kernel.value} saves no scores"
        check.fail("selective", told, message, "Say --attention materialised too.")
        return model
    last = len(model.layers) - 1
    again: set[int] = set()
    for piece in told.split(","):
        run = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", piece)
        first, end = (int(run[1]), int(run[2] or run[1])) if run else (1, 0)
        if not first <= end <= last:
            message = f"is not a layer, nor a run of layers, from 0 to {last}"
            check.fail("selective", piece, message, "Write layers as plans number them, such as 1-12,20.")
            return model
        again.update(range(first, end + 1))
    without = [i for i in sorted(again) if not model.layers[i].heads]
    if without:
        message = f"names layer {without[0]}, which has no attention"
        check.fail("selective", told, message, "Leave out embedding and head, the first and the last layer.")
        return model
    layers = (
        replace(layer, attention=AttentionKernel.SELECTIVE) if i in again else layer
        for i, layer in enumerate(model.layers)
    )
    return replace(model, layers=tuple(layers))


def mode(name: str) -> Mode:
    """A row of Table 1. Raises InvalidFieldError."""
    check = Checker("")
    if name not in MODES:
        check.fail("mode", name, "is not a mode", nearest(name, MODES))
    check.done()
    return MODES[name]


def method(name: str) -> Method:
    """How level 2 is solved. Raises InvalidFieldError."""
    check = Checker("")
    found = _choice(check, "method", name, Method)
    check.done()
    return found


def target(name: str | None) -> str | None:
    """A framework to write for. Raises InvalidFieldError."""
    check = Checker("")
    if name is not None and name not in TARGETS:
        check.fail("target", name, "is not a target", nearest(name, TARGETS))
    check.done()
    return name


def limit(seconds: float | None, budget: int | None) -> Limit:
    """When a search that starts now ends. Raises InvalidFieldError."""
    check = Checker("")
    said = {"seconds": seconds, "budget": budget}
    end = (
        time.monotonic() + check.number(said, "seconds", low=0.01, high=1e6, unit="s")
        if seconds is not None
        else 0.0
    )
    most = check.integer(said, "budget", low=1, high=10**9) if budget is not None else None
    check.done()
    return Limit(tuples=most, enough=(lambda: time.monotonic() >= end) if seconds is not None else None)


def nothing_yet(solved: int) -> InvalidFieldError:
    """A limit that ended a search before it had a plan."""
    message = f"ended the search before it had a plan; {solved} tuples of degrees were solved"
    return InvalidFieldError(
        [Violation(field="seconds", message=message, remedy="Give more seconds, or a larger budget.")]
    )


def search(request: Request, method: Method, watch: Watch | None, limit: Limit = Limit()) -> Search:  # noqa: B008  a value
    """A search that reports its progress at most ten times a second."""
    return Search(request, method=method, watch=_seldom(watch) if watch is not None else None, limit=limit)


def _seldom(watch: Watch) -> Watch:
    last = 0.0

    def tell(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 0.1:
            last = now
            watch(progress)

    return tell


def _choice(check: Checker, field: str, value: str, kind: type[E]) -> E:
    names = [str(one.value) for one in kind]
    if value not in names:
        check.fail(field, value, f"is not a {field}", nearest(value, names))
        return next(iter(kind))
    return kind(value)
