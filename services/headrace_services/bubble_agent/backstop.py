"""The backstop: signals for a trial that does not close its gate. The gate itself needs none.

A trial counts as running unless it says that it waits. One that has run for two quanta since its gate closed
commits an offence: it is stopped (SIGSTOP), and continued when the next window opens. After three offences it is
told to exit at its next checkpoint, and after six it stays stopped; only the worker's daemon, which started it,
ends it. A trial is not stopped inside a collective, where its peers would wait for it.

What counts as running depends on the device. On a GPU it is elapsed time. On a CPU it is the trial's own CPU time:
a trial that the kernel keeps off the core, because the rank needs it, is late and does no harm.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

QUANTA: Final = 2
"""For how many quanta after its gate has closed a trial may still run."""
OFFENCES: Final = 3
"""After this many offences a trial must exit."""
LAST: Final = 6
"""After this many offences it is not continued any more."""
SHORTEST_QUANTUM_NS: Final = 1_000_000
LONGEST_QUANTUM_NS: Final = 50_000_000
"""Bounds of the quantum that a trial may claim: the backstop's patience depends on it."""


class Action(StrEnum):
    """What to do to a trial."""

    STOP = "SIGSTOP"
    CONTINUE = "SIGCONT"
    EVICT = "evict"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSeen:
    """A gate and its trial at one instant.

    Attributes:
        open: whether work may run.
        ran: how long the trial has run since the gate closed, in nanoseconds; meaningless while open.
        waiting: whether the trial says that it waits.
        collective: whether the trial is inside a collective.
        quantum: what the trial needs to reach its next point, in nanoseconds.
    """

    open: bool
    ran: int
    waiting: bool
    collective: bool
    quantum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known about one trial: whether it is stopped, and how often it had to be stopped."""

    stopped: bool = False
    offences: int = 0
    evicted: bool = False


def judge(record: Record, seen: GateSeen) -> tuple[Record, list[Action]]:
    """Returns the updated record, and what to do."""
    if record.stopped:
        if seen.open and record.offences < LAST:
            return _with(record, stopped=False), [Action.CONTINUE]
        return record, []
    patience = QUANTA * min(max(seen.quantum, SHORTEST_QUANTUM_NS), LONGEST_QUANTUM_NS)
    late = not seen.open and not seen.waiting and seen.ran > patience
    if not late or seen.collective:
        return record, []
    offences = record.offences + 1
    actions = [Action.STOP]
    leaves = offences >= OFFENCES and not record.evicted
    if leaves:
        actions.insert(0, Action.EVICT)
    return Record(stopped=True, offences=offences, evicted=record.evicted or leaves), actions


def _with(record: Record, *, stopped: bool) -> Record:
    return Record(stopped=stopped, offences=record.offences, evicted=record.evicted)
