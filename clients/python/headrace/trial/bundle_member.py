"""A member of a bundle: an ordinary trial whose steps a group runs together with those of others.

Its checkpoint is that of a trial that tracks `model=` and `optimizer=` (and `scaler=`, if the group has one). So
it can continue in a plain script, and a plain script's checkpoint can continue here. Additional state of the
group is stored next to it.
"""

import functools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.trial.best import Best
from headrace.trial.bundle_runtime import Seat
from headrace.trial.codec import encode, try_encode
from headrace.trial.configuration import Params
from headrace.trial.one_of_a_kind import OneOfAKind
from headrace.trial.restore import Restore
from headrace.trial.saving import Content, Saver
from headrace.trial.tracking import Tracked

PLAIN = ("model", "optimizer", "scaler")
"""The parts of a group's state of a member that a plain script tracks under the same names."""


class Member(OneOfAKind):
    """One trial of a bundle."""

    def __init__(self, seat: Seat) -> None:
        self._assignment = assignment = seat.assignment
        self.params: Mapping[str, Any] = Params(assignment.params)
        # The script's own plain values, saved with this member.
        self.state: dict[str, Any] = {}
        # The step being trained, or last trained.
        self.step = 0
        # Its id in the group; None while it is not in the group.
        self.id: int | None = None
        self.lease = seat.lease
        self.milestone = assignment.next_milestone
        # It has reported, and waits for its decision.
        self.waits = False
        # Its state while it is out of the group; None for a new member.
        self.kept: Mapping[str, Any] | None = None
        # The number of completed steps, and the last step that this process reported.
        self.done = self.reported = 0
        self.to_tell: list[str] = []
        self.restore: Restore | None = None
        self._saver = Saver(assignment)
        self._best = Best(assignment)
        self._sequence = 0
        self._saved_step = 0
        self._since = time.monotonic()

    @property
    def name(self) -> str:
        """`studies/{study}/trials/{number}`."""
        return self._assignment.trial

    @property
    def number(self) -> int:
        """The trial's number within its study; the member's position in a run by hand."""
        number = self.name.rpartition("/")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def seed(self) -> int:
        """The trial's own seed."""
        return self._assignment.seed

    @property
    def max_steps(self) -> int:
        """The full budget."""
        return self._assignment.max_steps

    @property
    def resumed(self) -> bool:
        """Whether it continues from a checkpoint."""
        return self._assignment.restore_dir is not None

    @property
    def roles(self) -> dict[str, str]:
        """The metrics that the study reads, and their roles."""
        read = {
            self._assignment.metric: "the study's objective",
            **dict.fromkeys(self._assignment.further_metrics, "a further objective"),
            **dict.fromkeys(self._assignment.constraint_metrics, "a constraint"),
        }
        return {name: role for name, role in read.items() if name}

    def fresh_seat(self) -> Seat | None:
        """Its seat for a trial run that leaves nothing behind; None if it continues from a checkpoint."""
        if self._assignment.restore_dir is not None:
            return None
        return Seat(lease=self.lease, assignment=replace(self._assignment, checkpoint_dir=None))

    @property
    def saves(self) -> bool:
        """Whether it writes checkpoints."""
        return self._assignment.checkpoint_dir is not None

    @property
    def at_milestone(self) -> bool:
        """Whether the step being trained must be reported, and needs a decision."""
        return self.step >= self.milestone or self.step in self._assignment.rungs

    def read(self) -> None:
        """Reads the checkpoint to continue from, if there is one; raises the same errors as for a single trial."""
        if self.restore is not None or self._assignment.restore_dir is None:
            return
        self.restore = restore = Restore(self._assignment.restore_dir, seed=self.seed)
        restore.put_back_values(self.state)
        state: dict[str, Any] = dict(restore.member)
        scaled = "scaler" in restore.names()
        for name in PLAIN if scaled else PLAIN[:2]:
            restore.give(
                Tracked(
                    name=name,
                    target=None,
                    get_state=dict,
                    set_state=functools.partial(state.__setitem__, name),
                ),
                self.params,
            )
        self.kept = state
        self.step = self.done = restore.loop_step
        self._saved_step = restore.step

    def enter(self, number: int) -> None:
        """The member is now in the group, with this id."""
        self.id, self.kept = number, None
        self._since = time.monotonic()

    def due(self, row: Mapping[str, float], *, asked: bool, every: int | None) -> bool:
        """Whether the step that it reports, with these metrics, must be saved."""
        asked |= self._best.observe(row)
        often = every is not None and self.step - self._saved_step >= every
        often = often or self.step >= self.milestone or self._assignment.asked_to_leave
        return (asked or often) and self.saves

    def save(self, state: Mapping[str, Any], shared: Mapping[str, Tracked]) -> Path | None:
        """Writes its checkpoint from the group's state of the member."""
        content = self._content(state, shared, self.step, self.step)
        folder = self._saver.save(content, self._sequence + 1, longest_s=0.0)
        self._saved_step = self.step
        return folder

    def save_at_end(self, state: Mapping[str, Any], shared: Mapping[str, Tracked]) -> Path | None:
        """Writes a last checkpoint, as of its last report; None if that report was saved, or should not be."""
        if not self.saves or self._saved_step >= self.reported:
            return None
        content = self._content(state, shared, self.reported, self.done)
        return self._saver.save_at_end(content, self._sequence + 1)

    def _content(
        self, state: Mapping[str, Any], shared: Mapping[str, Tracked], step: int, loop_step: int
    ) -> Content:
        beyond = {name: value for name, value in state.items() if name not in PLAIN}
        try:
            encode(beyond.get("settings"), "settings", for_json=False)
        except TypeError:  # a user's own object, which the user's function creates again
            del beyond["settings"]
        return Content(
            step=step,
            loop_step=loop_step,
            tracked={**{name: _plain(name, state) for name in PLAIN if name in state}, **shared},
            state=self.state,
            params=self.params,
            member=beyond,
        )

    def next_sequence(self) -> int:
        """The number of its next report."""
        self._sequence += 1
        self.reported = self.step
        return self._sequence

    def trained_s(self) -> float:
        """How long it has trained since it joined, or since its last report was answered."""
        return time.monotonic() - self._since

    def answered(self) -> None:
        """The turn's call has returned."""
        self._since = time.monotonic()


def try_state(state: Mapping[str, Any]) -> None:
    """Raises `TypeError`, naming the part, if a checkpoint could not hold a member's state."""
    for name, value in state.items():
        if name != "settings":
            try_encode(value, name)


def _plain(name: str, state: Mapping[str, Any]) -> Tracked:
    return Tracked(name=name, target=None, get_state=lambda: state[name], set_state=lambda _: None)
