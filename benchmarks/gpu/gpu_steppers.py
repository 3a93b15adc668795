"""Programs that train side by side on one device, each in a process of its own, started at the same moment.

Each makes its step, warms it up, and then waits: the processes of a pool are there from the start, and those that
are not asked hold memory but no time of the device. They end with this process, whatever ends it.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

import torch
from fuse_throughput_cuda import Step, wait

Make = Callable[[torch.device], Step]
"""Makes a step on a device; it is called in another process, so it must be importable."""

WARM = 3
BETWEEN = 8
"""This many steps are queued before a process waits for the device and reads the clock."""
LEAD_S = 0.2
"""From the order to the common start."""


class StepperError(RuntimeError):
    """A program could not be started or has ended, for example for lack of memory."""


class Pool:
    """Programs that wait for an order. Several pools may start at once: wait for all before the first order."""

    def __init__(self, pipes: Sequence["Connection[object, object]"]) -> None:
        self._pipes = pipes

    def wait(self) -> None:
        """Returns when every program has warmed up."""
        for pipe in self._pipes:
            _received(pipe)

    def begin(self, count: int, seconds: float) -> None:
        """Lets the first `count` programs train for this long."""
        start = time.monotonic() + LEAD_S
        for pipe in self._pipes[:count]:
            pipe.send((start, seconds))

    def rates(self, count: int) -> list[float]:
        """The steps a second of each of them, when they are done."""
        return [_received(pipe) for pipe in self._pipes[:count]]


@contextmanager
def pool(
    make: Make,
    count: int,
    device: torch.device,
    *,
    env: Mapping[str, str] | None = None,
    context: BaseContext | None = None,
) -> Iterator[Pool]:
    """Starts programs, with variables added to their environment before they open the device.

    Raises:
        StepperError: one of them failed.
    """
    context = context or multiprocessing.get_context("spawn")
    pipes = []
    processes = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, device, dict(env or {})))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield Pool(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _received(pipe: "Connection[object, object]") -> float:
    try:
        found = pipe.recv()
    except EOFError:
        raise StepperError("a process has ended without a message") from None
    if isinstance(found, str):
        raise StepperError(found)
    return float(found)  # type: ignore[arg-type]  # a rate


def _serve(
    pipe: "Connection[object, object]", make: Make, device: torch.device, env: Mapping[str, str]
) -> None:
    os.environ.update(env)
    try:
        step = make(device)
        for _ in range(WARM):
            step()
        wait(device)
        pipe.send(0.0)
        while True:
            pipe.send(_rate(step, device, *pipe.recv()))  # type: ignore[misc]  # start and seconds
    except (EOFError, BrokenPipeError):
        return  # the pool is closed
    except Exception as error:  # noqa: BLE001  whatever it is, the pool raises it
        pipe.send(f"{type(error).__name__}: {str(error)[:300]}")


def _rate(step: Step, device: torch.device, start: float, seconds: float) -> float:
    time.sleep(max(0.0, start - time.monotonic()))  # all start at once
    steps, now = 0, start
    while now < start + seconds:
        for _ in range(BETWEEN):
            step()
        wait(device)
        steps, now = steps + BETWEEN, time.monotonic()
    return steps / (now - start)
