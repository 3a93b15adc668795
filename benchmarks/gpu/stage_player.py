"""A stage of a pipeline and a trial on one card: the stage alone, the trial alone, and both at once.

Run it:  python benchmarks/gpu/stage_player.py --how time-sliced --how mps
         python benchmarks/gpu/stage_player.py --device cpu --how time-sliced     (the code, on a CPU)

The stage plays a schedule: eight micro-batches, each 6 ms of matrix products and then a receive, which ends 12 ms
after that of the micro-batch before. A receive is a kernel that spins on a word in the host's memory, as NCCL's
does, until a neighbour's clock sets the word. The trial is a fused group of ResNet-18. Bubbles on CUDA are not
built yet, so no gate keeps the trial to the receives; the record says so.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import BaseContext
from queue import SimpleQueue
from typing import Protocol

import gpu_paths  # noqa: F401  the folders of what follows
import torch
from fuse_throughput_cuda import FULL, SMALL, Size, Step, autocast_loss, batch_on, hydro_step, wait
from gpu_sharing import WAYS, UnavailableError, asked
from gpu_steppers import StepperError, pool
from kit_lines import Line, say


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What the stage does in a step."""

    micro_batches: int
    side: int
    """Of the square matrices."""
    compute_s: float
    period_s: float
    """From one receive's end to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    schedule: Schedule
    members: int
    size: Size
    seconds: float


PLANS = {
    "cuda": Plan(
        schedule=Schedule(micro_batches=8, side=4096, compute_s=0.006, period_s=0.012),
        members=16,
        size=replace(FULL, rows=64),
        seconds=4.0,
    ),
    "cpu": Plan(
        schedule=Schedule(micro_batches=2, side=32, compute_s=0.0005, period_s=0.002),
        members=2,
        size=SMALL,
        seconds=0.1,
    ),
}


class Receiver(Protocol):
    """The stage's side of its neighbour."""

    def expect(self, times: Sequence[float]) -> None:
        """The neighbour will send at these times (monotonic)."""

    def receive(self) -> None:
        """Queues a receive of the next message, or on a CPU waits for it."""


class OnHost:
    """Waits for the neighbour's clock itself."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def expect(self, times: Sequence[float]) -> None:
        self._times = list(times)

    def receive(self) -> None:
        time.sleep(max(0.0, self._times.pop(0) - time.monotonic()))  # the message is due then


class OnCard:
    """Spins in a kernel on a word that a thread, the neighbour, sets: how many messages have been sent."""

    def __init__(self) -> None:
        from stage_receive import spin  # it needs Triton

        self._spin = spin
        self._word = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._view = self._word.numpy()
        self._received = 0
        self._due: SimpleQueue[float] = SimpleQueue()
        threading.Thread(target=self._send, daemon=True).start()

    def expect(self, times: Sequence[float]) -> None:
        for due in times:
            self._due.put(due)

    def receive(self) -> None:
        self._received += 1
        self._spin(self._word, self._received)

    def _send(self) -> None:
        while True:
            time.sleep(max(0.0, self._due.get() - time.monotonic()))  # the message is due then
            self._view[0] += 1


def stage(device: torch.device, *, schedule: Schedule) -> Step:
    """One step of the stage."""
    receiver: Receiver = OnCard() if device.type == "cuda" else OnHost()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a = torch.randn(schedule.side, schedule.side, device=device, dtype=dtype)
    b, out = torch.randn_like(a), torch.empty_like(a)
    products = max(1, round(schedule.compute_s / seconds_of(lambda: torch.mm(a, b, out=out), device)))

    def step() -> None:
        began = time.monotonic()
        receiver.expect([began + (i + 1) * schedule.period_s for i in range(schedule.micro_batches)])
        for _ in range(schedule.micro_batches):
            for _ in range(products):
                torch.mm(a, b, out=out)
            receiver.receive()
        wait(device)

    return step


def seconds_of(work: Callable[[], object], device: torch.device, times: int = 50) -> float:
    """How long one of many takes, after the first ones."""
    for _ in range(2):
        wait(device)
        began = time.monotonic()
        for _ in range(times):
            work()
        wait(device)
    return (time.monotonic() - began) / times


def trial(device: torch.device, *, members: int, size: Size) -> Step:
    """One step of the trial."""
    return hydro_step(members, batch_on(device, size), autocast_loss, device, size, "grouped")


def measure(how: str, device_type: str, plan: Plan, context: BaseContext | None = None) -> None:
    """The stage and the trial, alone and at once, sharing the card in one way."""
    device = torch.device(device_type)
    player, neighbour = (
        partial(stage, schedule=plan.schedule),
        partial(trial, members=plan.members, size=plan.size),
    )
    try:
        with (
            WAYS[how]() as env,
            pool(player, 1, device, env=env, context=context) as stages,
            pool(neighbour, 1, device, env=env, context=context) as trials,
        ):
            stages.wait()
            trials.wait()
            stages.begin(1, plan.seconds)
            (alone,) = stages.rates(1)
            say(Line(name="stage's step", at=f"{how}, stage alone", value=1e3 / alone, unit="ms"))
            trials.begin(1, plan.seconds)
            (free,) = trials.rates(1)
            say(Line(name="trial", at=f"{how}, trial alone", value=free, unit="steps a second"))
            stages.begin(1, plan.seconds)
            trials.begin(1, plan.seconds)
            (beside,), (harvested,) = stages.rates(1), trials.rates(1)
            at = f"{how}, both, no gate"
            say(Line(name="stage's step", at=at, value=1e3 / beside, unit="ms"))
            say(Line(name="slower", at=at, value=100 * (alone / beside - 1), unit="%"))
            say(Line(name="trial", at=at, value=harvested, unit="steps a second"))
    except UnavailableError as error:
        say(Line(name="stage's step", at=how, outcome="skipped", why=str(error)))
    except StepperError as error:
        say(Line(name="stage's step", at=how, outcome="failed", why=str(error)))


def main(words: Sequence[str] | None = None) -> None:
    options = asked(__doc__, words)
    for how in options.how:
        measure(how, options.device, PLANS[options.device])
    why = "bubbles on CUDA are not built yet, so no gate keeps the trial to the receives"
    say(Line(name="stage's step, gated", outcome="skipped", why=why))


if __name__ == "__main__":
    main()
