"""The table of words: who writes each one, and what it means. Times are CLOCK_MONOTONIC in nanoseconds; 0 is
"never".

Two write orders keep pairs consistent. The rank writes `gate_deadline` before it makes `gate_epoch` odd, and makes
it even before it clears the deadline: a reader reads the epoch, the deadline and the epoch again. A ring's count
is raised after its record is written: a reader reads the count, the records and the count again.
"""

from enum import IntEnum, IntFlag
from typing import Final

MAGIC: Final = int.from_bytes(b"hrbubble", "little")
VERSION: Final = 3
HEADER_WORDS: Final = 64
"""Magic, version and size, then the header as JSON."""

SECTIONS: Final[dict[str, dict[str, str]]] = {
    "rank": {
        "micro_batches": "per step, now",
        "generation": "rises when micro-batches or shapes change, and after a pause: what was learned no longer holds",
        "step": "the engine's global step",
        "stepping": "1 inside `train_batch`",
        "filled": "1 if this step may open the gate, 0 in a control step",
        "state": "1 while the stage waits for a neighbour",
        "slot": "place of the latest communication instruction in its step",
        "wait_began": "start of the latest wait",
        "awaits": "what the wait ends with: an `Awaits`",
        "awaits_index": "which micro-batch of that kind, in this step",
        "forwards": "forward passes started in this step",
        "forward_began": "start of the latest one",
        "backwards": "backward passes started in this step",
        "backward_began": "start of the latest one",
        "gate_epoch": "odd while the gate is open; the word that a waiting trial sleeps on",
        "gate_deadline": "when an open gate closes by itself",
        "gate_closed": "when the rank last closed it",
        "alarm": "what went wrong in the primary: an `Alarm`",
        "memory_free": "free on the device, in bytes; 0 if the rank does not know",
        "memory_reserved": "reserved by the primary's allocator, in bytes",
        "memory_peak": "the most that it has reserved, in bytes",
        "windows": "records written to the ring of windows",
        "steps": "records written to the ring of steps",
        "detached": "1 once the hook is removed",
    },
    "agent": {
        "agent_pid": "process",
        "lease": "until when the agent's orders are valid",
        "permitted": "1 if gates may open",
        "table_generation": "the generation of the tables of lengths and of starts",
        "control_share": "share of control steps, out of 65536",
        "hint_epoch": "the gate's epoch that the hint is for",
        "hint_deadline": "when that window will end, as a neighbour's hint predicts",
        "guard": "how long before the end a quantum must be finished",
        "evict": "1 if the trial must exit at its next checkpoint",
        "stopped": "1 while the trial is stopped by a signal",
        "offences": "how often it had to be; all four are kept for a restarted agent",
        "judged": "the process that these concern",
        "members_share": "share of a fused trial's members that may run, out of 65536",
        "memory": "what trials may allocate on the stage's device, in bytes; 0 while that is unknown",
    },
    "trial": {
        "trial_pid": "process",
        "trial_started": "its start, in clock ticks since boot: the pid may have been reused",
        "trial_since": "when it took the gate",
        "trial_waiting": "1 while it waits at the gate",
        "trial_collective": "1 inside a collective",
        "trial_quantum": "the longest work up to the next point, in nanoseconds",
        "trial_usual": "the mean work up to the next point",
        "trial_harvested": "work done inside windows, in nanoseconds",
        "trial_quanta": "quanta done",
        "trial_overruns": "quanta that ended after their window",
        "trial_overrun_longest": "by how much the worst of them was late",
        "trial_acknowledged": "the epoch whose end it has seen",
        "trial_stretches": "records written to the ring of stretches",
    },
}

SLOTS: Final = 4096
"""How many communication instructions of a step fit in the table."""
WINDOW_RING: Final = 2048
STEP_RING: Final = 256
STRETCH_RING: Final = 1024
RECORD: Final = 4
"""Words of a record. Window: step and slot, start, end, generation. Step: step, start, end, a `StepKind`. Stretch
(consecutive quanta within one window): start, end, the number of quanta, by how much the last was late."""


class Awaits(IntEnum):
    """The event that ends a wait."""

    NOTHING = 0
    FORWARD = 1
    """the previous stage's forward pass"""
    BACKWARD = 2
    """the next stage's backward pass"""


class StepKind(IntEnum):
    """Whether gates were opened in a step."""

    FILLED = 0
    """where a window had room"""
    CONTROL = 1
    """left free, by the random draw"""
    UNUSED = 2
    """nothing was permitted, or not yet learned: such a step says nothing about trials"""


class Alarm(IntFlag):
    """What went wrong in the primary."""

    NONE = 0
    MEMORY = 1
    """its allocator failed, or had to free memory and try again"""
    FAILED = 2
    """an instruction raised: a collective timed out, or another failure"""


def _places() -> tuple[dict[str, int], int]:
    """Each section starts on its own cache line: no writer slows another's reads."""
    found, here = {}, HEADER_WORDS
    for words in SECTIONS.values():
        here = -(-here // 8) * 8
        for name in words:
            found[name] = here
            here += 1
    return found, -(-here // 8) * 8


AT, TABLE = _places()
"""Index of each word, and of the table of lengths."""
BEGINS: Final = TABLE + SLOTS
"""Index of the table of starts: how long after the step's start a slot's window usually starts at the latest."""
RING_SIZES: Final = (WINDOW_RING, STEP_RING, STRETCH_RING)
RINGS: Final = (
    BEGINS + SLOTS,
    BEGINS + SLOTS + WINDOW_RING * RECORD,
    BEGINS + SLOTS + (WINDOW_RING + STEP_RING) * RECORD,
)
"""Index of the rings of windows, of steps and of stretches."""
SIZE_BYTES: Final = 8 * (RINGS[2] + STRETCH_RING * RECORD)

_MASK: Final = (1 << 64) - 1


def is_control(step: int, share: int) -> bool:
    """Whether a step is a control step. The draw depends on its number, so that all ranks draw the same steps.

    Args:
        step: the engine's global step.
        share: out of 65536. A larger share contains the control steps of a smaller one.
    """
    mixed = (step + 1) * 0x9E3779B97F4A7C15 & _MASK  # splitmix64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return (mixed ^ mixed >> 31) & 0xFFFF < share
