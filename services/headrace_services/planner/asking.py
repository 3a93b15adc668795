"""From the words of a command line or a message to the values of a search. Every refusal names field, value, remedy."""

import time
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from headrace_services.planner import catalogue
from headrace_services.planner.checking import Checker, nearest
from headrace_services.planner.cluster import Cluster
from headrace_services.planner.costing import Request
from headrace_services.planner.layer_cost import AttentionKernel
from headrace_services.planner.memory import ZeroStage
from headrace_services.planner.model import Model
from headrace_services.planner.modes import MODES, Mode
from headrace_services.planner.schedules import Schedule
from headrace_services.planner.search import Method, Progress, Search, Watch

TARGETS = ("deepspeed", "megatron", "torchtitan")
BATCH_PER_DEVICE = 16
E = TypeVar("E", bound=Enum)


def request(
    model: str,
    cluster: str,
    batch: int | None,
    sequence: int | None,
    schedule: str,
    chunks: int,
    zero: int,
    attention: str,
) -> Request:
    """The request that these words make. Raises InvalidFieldError."""
    return assembled(
        catalogue.model(model), catalogue.cluster(cluster), batch, sequence, schedule, chunks, zero, attention
    )


def assembled(
    model: Model,
    cluster: Cluster,
    batch: int | None,
    sequence: int | None,
    schedule: str,
    chunks: int,
    zero: int,
    attention: str,
) -> Request:
    """The request for a model and a cluster that are known. Raises InvalidFieldError."""
    check = Checker("")
    size = {"batch": batch, "sequence": sequence, "chunks": chunks, "zero": zero}
    whole = check.integer(size, "batch", low=1, high=10**9) if batch is not None else 0
    length = check.integer(size, "sequence", low=1, high=10**8) if sequence is not None else model.sequence
    check.integer(size, "chunks", low=1, high=64)
    check.integer(size, "zero", low=1, high=3)
    order = _choice(check, "schedule", schedule, Schedule)
    kernel = _choice(check, "attention", attention, AttentionKernel)
    if order is Schedule.INTERLEAVED and chunks < 2:
        check.fail("chunks", chunks, "must be at least 2 for an interleaved schedule", "Say --chunks 2.")
    check.done()
    return Request(
        model=replace(model, sequence=length),
        cluster=cluster,
        batch=whole or BATCH_PER_DEVICE * cluster.devices,
        schedule=order,
        chunks=chunks,
        zero=ZeroStage(zero),
        attention=kernel,
    )


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


def search(request: Request, method: Method, watch: Watch | None) -> Search:
    """A search that reports at most ten times a second."""
    return Search(request, method=method, watch=_seldom(watch) if watch is not None else None)


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
