"""What a rank writes at each instruction, and when it opens its gate.

The states of a stage: outside a step; computing; waiting. A wait starts before a communication instruction and
ends after it. At its start the rank looks up the slot's length in the agent's table. If there is one, and the
agent's lease is valid, the gate opens until that deadline; when the wait ends, the rank closes it.

An unknown window is not used. If micro-batches or shapes change, and after a pause, the rank starts another
generation, and opens nothing before the agent has learned it. A wait that starts later than usual is taken to be
shorter by as much: what the stage waits for may have been sent in time.

On a CPU the rank's thread really sleeps inside the instruction, so the host's clock is the truth. On a GPU the
host runs ahead of its stream, and a gate opened here would be wrong, so `attach` rejects GPUs.

Nothing here waits, takes a lock, allocates on the device or touches a file. All our code is guarded: an exception
removes the hook for good, and the primary continues.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from headrace_torch.bubble_shm import (
    AT,
    BEGINS,
    RINGS,
    SLOTS,
    TABLE,
    Alarm,
    Awaits,
    StageFile,
    StepKind,
)
from headrace_torch.bubble_shm.futex import Futex
from headrace_torch.bubble_shm.layout import RECORD, STEP_RING, WINDOW_RING, is_control

log = logging.getLogger("headrace.bubbles")
now: Final = time.monotonic_ns

STEP, STEPPING, FILLED, STATE, SLOT = (AT[name] for name in ("step", "stepping", "filled", "state", "slot"))
WAIT_BEGAN, AWAITS, AWAITS_INDEX = AT["wait_began"], AT["awaits"], AT["awaits_index"]
FORWARDS, FORWARD_BEGAN = AT["forwards"], AT["forward_began"]
BACKWARDS, BACKWARD_BEGAN = AT["backwards"], AT["backward_began"]
EPOCH, DEADLINE, CLOSED = AT["gate_epoch"], AT["gate_deadline"], AT["gate_closed"]
GENERATION, MICRO_BATCHES, ALARM = AT["generation"], AT["micro_batches"], AT["alarm"]
WINDOWS, STEPS = AT["windows"], AT["steps"]
LEASE, PERMITTED, TABLE_GENERATION = AT["lease"], AT["permitted"], AT["table_generation"]
CONTROL_SHARE, TRIAL_WAITING = AT["control_share"], AT["trial_waiting"]
WINDOW_START, STEP_START, _ = RINGS
PAUSED: Final = 5
"""A rank without an instruction for this multiple of its longest step has paused. Learning again takes about as
many steps."""
DECAY: Final = 6
"""A shorter step lowers the longest by 2⁻⁶ of the difference."""


class Hook:
    """The words of one rank. `leave` removes the wrappers from the engine."""

    def __init__(self, file: StageFile, leave: Callable[[], None], *, dynamic: bool = False) -> None:
        """Nothing is written before the first step.

        Args:
            file: the stage's file.
            leave: removes the wrappers.
            dynamic: whether shapes change without notice. How long the stage waits for an input is then not known.
        """
        self.file, self._leave, self._dynamic = file, leave, dynamic
        self.words = file.words
        self._futex = Futex(file.map, EPOCH)
        self.stepping = self._filled = False
        self._kind = StepKind.UNUSED
        self.slot = -1
        self._generation = self._micro_batches = self._shape = 0
        self._epoch = self._step = self._step_began = self._wait_began = 0
        self._awaited = [0, 0, 0]
        self._windows = self._steps = 0
        self._heard = self._longest = 0
        self._paused = False
        self.why = ""

    def begin_step(self, step: int, micro_batches: int) -> None:
        """A train step starts."""
        try:
            words = self.words
            began = now()
            self._hear(began)
            if micro_batches != self._micro_batches or self._paused:
                self._micro_batches = words[MICRO_BATCHES] = micro_batches
                self.changed()
            self._paused = False
            self.slot = -1
            self._awaited = [0, 0, 0]
            self._step = words[STEP] = step
            words[FORWARDS] = words[BACKWARDS] = 0
            self._step_began = began
            good = words[PERMITTED] and words[LEASE] > began and words[TABLE_GENERATION] == self._generation
            if not good:
                self._kind = StepKind.UNUSED
            elif is_control(step, words[CONTROL_SHARE]):
                self._kind = StepKind.CONTROL
            else:
                self._kind = StepKind.FILLED
            self._filled = self._kind is StepKind.FILLED
            words[FILLED] = self._filled
            words[STEPPING] = 1
            self.stepping = True
        except Exception as error:  # noqa: BLE001  the primary goes on
            self.fail(error)

    def end_step(self) -> None:
        """The step has ended."""
        try:
            self.stepping = False
            words = self.words
            words[STEPPING] = 0
            ended = self._heard = now()
            if not self._paused:
                length = ended - self._step_began
                self._longest = max(length, self._longest - (self._longest - length >> DECAY))
            here = STEP_START + self._steps % STEP_RING * RECORD
            words[here] = self._step
            words[here + 1] = self._step_began
            words[here + 2] = ended
            words[here + 3] = self._kind
            self._steps += 1
            words[STEPS] = self._steps
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def begin_wait(self, awaits: int = Awaits.NOTHING) -> None:
        """The rank is about to wait for a neighbour; `awaits` is an `Awaits`."""
        try:
            words = self.words
            slot = self.slot = self.slot + 1
            began = self._wait_began = now()
            self._hear(began)
            words[SLOT] = slot
            words[WAIT_BEGAN] = began
            words[AWAITS] = awaits
            words[AWAITS_INDEX] = self._awaited[awaits]
            self._awaited[awaits] += 1
            words[STATE] = 1
            if self._filled and slot < SLOTS and not (self._dynamic and awaits == Awaits.FORWARD):
                late = began - self._step_began - words[BEGINS + slot]
                length = words[TABLE + slot] - (late if late > 0 else 0)
                if length > 0 and words[LEASE] > began and words[TABLE_GENERATION] == self._generation:
                    words[DEADLINE] = began + length
                    self._epoch += 1
                    words[EPOCH] = self._epoch
                    if words[TRIAL_WAITING]:
                        self._futex.wake()
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def end_wait(self) -> None:
        """The rank continues."""
        try:
            words = self.words
            ended = now()
            if self._epoch & 1:
                self._close(ended)
            self._hear(ended)
            words[STATE] = 0
            here = WINDOW_START + self._windows % WINDOW_RING * RECORD
            words[here] = self._step << 16 | self.slot & 0xFFFF
            words[here + 1] = self._wait_began
            words[here + 2] = ended
            words[here + 3] = self._generation
            self._windows += 1
            words[WINDOWS] = self._windows
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def begin_forward(self, shape: int) -> None:
        """A forward pass starts; `shape` stands for the shape of its input. A new shape starts the learning again."""
        try:
            if shape != self._shape:
                self._shape = shape
                self.changed()
            words = self.words
            words[FORWARD_BEGAN] = now()
            words[FORWARDS] += 1
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def begin_backward(self) -> None:
        """A backward pass starts: a hint that the previous stage will receive its gradient."""
        try:
            words = self.words
            words[BACKWARD_BEGAN] = now()
            words[BACKWARDS] += 1
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def changed(self) -> None:
        """What was learned no longer holds: no gate opens until the agent has learned again."""
        try:
            self._generation += 1
            self._filled = False
            self._kind = StepKind.UNUSED
            self.words[GENERATION] = self._generation
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def _hear(self, when: int) -> None:
        """The rank reaches an instruction. After a pause nothing opens in this step: what was sent meanwhile has
        arrived. The next step starts another generation."""
        if self._longest and when - self._heard > PAUSED * self._longest:
            self._paused = True
            self._filled = False
            self._kind = StepKind.UNUSED
        self._heard = when

    def alarm(self, what: Alarm) -> None:
        """Tells the agent that something went wrong in the primary; it disables at once."""
        try:
            self.words[ALARM] |= what
            self._filled = False
            self._kind = StepKind.UNUSED
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Our own code failed: leave the engine alone from now on, and log that once."""
        self.detach(f"it failed: {type(error).__name__}: {error}")

    def detach(self, why: str) -> None:
        """Removes the hook. The gate closes, and the training continues without it."""
        if self.why:
            return
        self.why = why
        self._filled = self.stepping = False
        self._leave()
        try:
            self._close(now())
            self.words[AT["detached"]] = 1
        except Exception as error:  # noqa: BLE001
            why = f"{why} ({error})"
        log.warning(
            "headrace bubbles: the hook is detached from this rank: %s. Training continues without it.", why
        )

    def _close(self, when: int) -> None:
        words = self.words
        if self._epoch & 1:
            self._epoch += 1
            words[EPOCH] = self._epoch
        words[CLOSED] = when
        words[DEADLINE] = 0


def shape_of(value: Any) -> int:
    """A number that stands for the shapes of a stage's input; 0 if it has none."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    shapes = tuple(tuple(part.shape) for part in parts if hasattr(part, "shape"))
    return hash(shapes) if shapes else 0
