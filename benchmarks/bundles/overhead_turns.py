"""What `overhead.py` measures: turns of one group, under the service and without it.

Both sides are separate processes that wait for the benchmark's command, take that many turns, and report how long
each took. A turn is `STEPS` steps of the group and the use of the losses: they are reported to the service, or
read. A turn lasts from its first step to the first step of the next one, so everything that the service does
between two turns counts. The time after its last step is reported too. If the benchmark requests it, the service
saves all members in a visit's first turn.
"""

import os
import sys
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Literal

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "fused_digits"))

from train import load_data, loss_of, make_model

from headrace import trial
from headrace_torch import hydro

BATON, STEPS = "OVERHEAD_BATON", "OVERHEAD_STEPS"
BATCH_ROWS = 32
ENGINE: Literal["grouped"] = "grouped"
"""The same on both sides: a probe might choose differently for a group that has just started to fill."""


class Turns:
    """This side's turns: when to take them, and how long they took."""

    def __init__(self, name: str) -> None:
        self._line: Connection = Client(os.environ[BATON])
        self._line.send(name)
        self._left = 0
        self._taken: list[tuple[float, float]] = []
        self._since = self._worked = 0.0
        # Whether the service should save in the turn that starts.
        self.saves = False

    def begin(self) -> bool:
        """Ends the previous turn, and waits for a command if that was the visit's last. Returns False if there are
        no more."""
        if self._left:
            now = time.perf_counter()
            self._taken.append((now - self._since, now - self._worked))
            self._left -= 1
            self.saves = False
            if not self._left:
                self._line.send(self._taken)
        if not self._left:
            self._taken = []
            self._left, self.saves = self._line.recv()
        self._since = time.perf_counter()
        return self._left > 0

    def worked(self, losses: torch.Tensor) -> list[float]:
        """The turn's steps are done: the time after this is not the group's."""
        values: list[float] = losses.tolist()
        self._worked = time.perf_counter()
        return values


class Work:
    """The steps of one turn of a group."""

    def __init__(self, group: hydro.Group) -> None:
        torch.set_num_threads(1)
        images, labels, _, _ = load_data()
        self._group = group
        self._batches = hydro.EpochBatches(group, images, labels, batch_size=BATCH_ROWS, seed=7)
        self._at = 0

    def turn(self, steps: int) -> torch.Tensor:
        """Trains all members; returns their losses."""
        for _ in range(steps):
            # One batch for all, whatever each has seen: members that joined a turn later cost no more.
            losses = self._group.step(self._batches.of(self._at), loss_of)
            self._at += 1
        return losses


def service(bundle: trial.Bundle) -> None:
    """All members under the service: the turns start when every seat is taken."""
    group = hydro.fuse(bundle.model(make_model), optimizer="adamw", engine=ENGINE)
    bundle.track(group=group)
    work, steps = Work(group), int(os.environ[STEPS])
    turns: Turns | None = None
    for _turn in bundle.steps():
        if turns is None and len(bundle) == bundle.seats:
            turns = Turns("service")
        if turns is None:
            bundle.report(loss=work.turn(1))
        elif turns.begin():
            bundle.report(loss=turns.worked(work.turn(steps)), save=turns.saves)
        else:
            return


def bare_group(members: int) -> hydro.Group:
    """A group without a service."""
    rates = torch.logspace(-4, -1, members).tolist()
    each = [{"lr": lr, "seed": seed} for seed, lr in enumerate(rates)]
    return hydro.fuse(make_model, each, optimizer="adamw", engine=ENGINE)


def bare(name: str, members: int) -> None:
    """The same number of members in a plain group."""
    work, steps = Work(bare_group(members)), int(os.environ[STEPS])
    turns = Turns(name)
    while turns.begin():
        turns.worked(work.turn(steps))


if __name__ == "__main__":
    bare(sys.argv[1], int(sys.argv[2]))
