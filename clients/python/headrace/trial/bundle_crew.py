"""The members of a bundle's process: who trains, who waits for a decision, who joins and who leaves.

    joins ── in the group, trains ── has reported, waits ──┬── may continue: trains
                                                           ├── must leave, or its lease is over: out of the group
                                                           └── no decision while others train on: out of the group
                                                               with its state, and back in when it may continue

A member that the script drops from the group has ended by itself, as of its last report. Otherwise the group changes
only between turns. No member takes a step past its milestone without a decision; members
before it are answered at once. Nothing that happens to one member changes anything for the others: a member that
the group rejects, whose checkpoint cannot be read or whose report is rejected fails alone.

The runtime repeats a message that is lost. If a process is lost, so is what its members did since their
checkpoints, as for any trial.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from headrace.trial import raised
from headrace.trial.bundle_cost import Stopwatch
from headrace.trial.bundle_member import Member, try_state
from headrace.trial.bundle_runtime import Attached, BundleRuntime, Finish, Refused, Said
from headrace.trial.bundle_shared import Shared
from headrace.trial.runtime import TOLD, UNREADABLE, Action, Decision, OwnEnd, Report, TurnCost

logger = logging.getLogger("headrace.trial")
Settings = Mapping[str, Any]
_APART = (
    "Trials that differ in it need bundles of their own: name it in fuse.apart, and take it as an argument of the "
    "model's function, as in `def make_model(width)` with bundle.model(make_model), or from bundle.params['width']"
)


class Group(Protocol):
    """What a bundle requires of a fused group. Without `seen`, a failure in a step ends the process."""

    @property
    def ids(self) -> Sequence[int]:
        """Its members, in the order of their losses. An id is never reused."""

    def add(self, members: Sequence[Any], states: Sequence[Mapping[str, Any]] | None = None) -> Sequence[int]:
        """Adds members, all or none, and returns their ids."""

    def drop(self, members: Sequence[int | str]) -> None:
        """Removes members."""

    def member_state(self, member: int) -> Mapping[str, Any]:
        """A copy of a member's state, from which `add` restores it bit for bit."""


class Crew:
    """All members of one process, over all calls of its function."""

    def __init__(self, runtime: BundleRuntime, attached: Attached) -> None:
        self._runtime = runtime
        self.seats = attached.seats
        self.charged = attached.charges
        # What the study's trials train; the same for all members.
        self.surrogate = attached.members[0].assignment.surrogate if attached.members else None
        self._members = {seat.lease: Member(seat) for seat in attached.members}
        self._leaving: list[int] = []
        self._restored: list[tuple[str, float]] = []
        self._finished: list[Finish] = []
        self.over = self.has_reported = self._told_apart = False
        # The states of shared objects at the last time when all members were between two steps.
        self._then: Mapping[str, Any] = {}
        self.build_anew()

    def build_anew(self) -> None:
        """The function starts: nothing is built yet."""
        self._group: Group | None = None
        self._drop: Callable[[Sequence[int | str]], None] = lambda _: None
        self._settings: Callable[[Member], Any] = self._all_settings
        self._shared = Shared({})
        # The parameters that the program was built with.
        self.built_with: dict[str, Any] = {}
        self._leaving.clear()
        self._mark: Mapping[int, int] | None = None
        self._checked = self._stepped = False
        self._stopwatch = Stopwatch()
        self._how: object = None
        self._told_first: object = None

    @property
    def tracked(self) -> bool:
        """Whether there is a group."""
        return self._group is not None

    @property
    def live(self) -> list[Member]:
        """All members with a valid lease, including those that wait."""
        return list(self._members.values())

    @property
    def training(self) -> list[Member]:
        """The members in the group, in its order."""
        if self._group is None:
            return []
        known = {member.id: member for member in self._members.values() if member.id is not None}
        return [known[number] for number in self._group.ids if number in known]

    def track(
        self, group: Group, settings: Callable[[Member], Any] | None, shared: Mapping[str, Any]
    ) -> None:
        """Takes the group, and adds the current members to it."""
        self._shared = Shared(shared, before=self._then)
        self._group, self._drop = group, group.drop
        group.drop = self._dropped  # type: ignore[method-assign]  # on this object: the script's calls end trials
        self._settings = settings or self._all_settings
        self._settle()

    def ready(self) -> bool:
        """Brings the group up to date, and waits until a member can train; False if none is left."""
        while not self.over:
            if not all(member.waits for member in self.live):  # otherwise the group does not change
                self._settle()
                if self.training:
                    return True
            self.talk(waits=True)
        return False

    def begin(self) -> None:
        """The members now train their next step."""
        members = self.training
        for member in members:
            member.step += 1
        self._stopwatch.begin([member.id for member in members if member.id is not None])
        self._how = getattr(self._group, "report", None)

    def _with_first_step(self, cost: TurnCost | None) -> TurnCost | None:
        """The cost, with that of the group's first step once the cost of a later one is known."""
        first = getattr(self._group, "first_step", None)
        if first is None or first is self._told_first or not first.later_s:
            return cost
        self._told_first = first
        if cost is None or cost.members != first.members:
            cost = TurnCost(members=first.members, turns=1, time_s=0.0, memory_bytes=0, fresh=False)
        return replace(cost, first_step_s=first.time_s, later_step_s=first.later_s)

    def report(self, rows: Sequence[Mapping[str, float]], *, save: bool, every: int | None) -> None:
        """Saves the members that are due, sends their reports, and receives their decisions."""
        assert self._group is not None
        members, cost = self.training, self._stopwatch.told()
        if getattr(self._group, "report", None) is not self._how:
            cost = None  # the group measured again how to run its members, which took time
        cost = self._with_first_step(cost)
        if len(members) > 1 and not self._told_apart and (gains_nothing := _runs_apart(self._group)):
            members[0].to_tell.append(gains_nothing)
            self._told_apart = True
        trained = [member.trained_s() for member in members]
        if not self._stepped and members[0].saves:
            try_state(self._group.member_state(members[0].id or 0))  # with the first step's state
            self._stepped = True
        reports = []
        for member, row, trained_s in zip(members, rows, trained, strict=True):
            assert member.id is not None
            started = time.monotonic()
            folder = None
            if member.due(row, asked=save, every=every):
                folder = member.save(self._group.member_state(member.id), self._shared.entries)
            report = Report(
                sequence=member.next_sequence(),
                step=member.step,
                metrics=row,
                checkpoint_dir=folder,
                train_time_s=trained_s,
                save_time_s=time.monotonic() - started if folder is not None else 0.0,
                warnings=tuple(member.to_tell),
                turn=cost if member is members[0] else None,
            )
            member.to_tell.clear()
            reports.append((member.lease, report))
        for member in members:
            member.waits = True
        self.has_reported = True
        self._come_to_rest()
        self.talk(reports=tuple(reports))
        for member in members:
            member.answered()

    def talk(self, *, reports: tuple[tuple[str, Report], ...] = (), waits: bool = False) -> None:
        """Exchanges one turn's messages with the runtime."""
        said = Said(
            restored=tuple(self._restored), reports=reports, finished=tuple(self._finished), waits=waits
        )
        self._restored.clear()
        self._finished.clear()
        answer = self._runtime.turn(said)
        for lease, verdict in answer.decisions:
            if (member := self._members.get(lease)) is not None:
                self._apply(member, verdict)
        for seat in answer.joined:
            self._members.setdefault(seat.lease, Member(seat))
        for lease in answer.gone:
            if (member := self._members.get(lease)) is not None:
                self._leave(member)
        if answer.over:
            self.over = True

    def tell_finished(self) -> None:
        """Sends the messages that were not sent yet."""
        if self._finished:
            self.talk()

    def end_by_itself(self) -> None:
        """The function has ended, with members that nobody asked to end: each is saved as of its last report."""
        for member in [] if self.over else self.training:
            if (own := self._saved_at_end(member)) is not None:
                self._finished.append(Finish(lease=member.lease, own=own))
                self._leave(member)

    def _saved_at_end(self, member: Member) -> OwnEnd | None:
        """How a member ends by itself; None if it has nothing to save. A state that cannot be saved is not a
        failure.
        """
        assert self._group is not None
        assert member.id is not None
        started = time.monotonic()
        try:
            folder = member.save_at_end(self._group.member_state(member.id), self._shared.entries)
        except Exception as error:  # noqa: BLE001  (whatever the group raises)
            why = f"the state of {member.name} at its end is not saved: {error}"
            logger.warning("headrace: %s", why)
            return OwnEnd(unsaved=why)
        if folder is None:
            return None
        return OwnEnd(checkpoint_dir=folder, step=member.reported, save_time_s=time.monotonic() - started)

    def _dropped(self, members: Sequence[int | str]) -> None:
        """The script stops members early: each ends by itself, with its state as of its last report."""
        at_rest = self._mark is not None and self._mark == self._seen()
        for member in [one for one in self.training if one.id in members]:
            own = self._saved_at_end(member) or OwnEnd()
            self._finished.append(Finish(lease=member.lease, own=replace(own, by_itself=True)))
            del self._members[member.lease]
        self._leaving = [one for one in self._leaving if one not in members]
        self._drop(members)
        if at_rest:
            self._mark = self._seen()

    def blamed(self, error: BaseException) -> Member | None:
        """The member named by an exception."""
        number = None if raised.out_of_memory(error) else raised.blamed(error)
        return next((member for member in self.training if member.id == number), None)

    def go_on_without(self, member: Member, error: BaseException) -> bool:
        """The member fails; `talk` will report it. Returns whether the others can start again in this process,
        from where they are. They can unless the error occurred in the middle of their step.
        """
        assert self._group is not None
        at_rest = self._mark is not None and self._mark == self._seen()
        self._fail(member, error)
        others = self.training
        if others and not at_rest:
            self.charged = False  # it is known who will be
            return False
        for one in others:
            assert one.id is not None
            one.kept, one.id, one.step = self._group.member_state(one.id), None, one.done
        return True

    def _settle(self) -> None:
        """Removes and adds members."""
        group = self._group
        assert group is not None
        for member in self.training:
            if member.waits and member.id is not None:
                member.kept = group.member_state(member.id)
                self._leaving.append(member.id)
                member.id = None
        if self._leaving:
            self._drop(tuple(self._leaving))
            self._leaving.clear()
        entering = [member for member in self._members.values() if member.id is None and not member.waits]
        prepared = [
            (member, settings) for member in entering if (settings := self._prepared(member)) is not None
        ]
        fresh = [one for one in prepared if one[0].kept is None]
        self._add([one for one in prepared if one[0].kept is not None])
        self._add(fresh)
        self._check_state()
        self._come_to_rest()

    def _prepared(self, member: Member) -> Any:
        """Reads a member's checkpoint and returns its settings; None if it cannot train, and is out."""
        try:
            first = member.restore is None
            member.read()
            if member.done >= member.max_steps:
                self._finish(member)
                return None
            for name, value in self.built_with.items():
                if member.params.get(name) != value:
                    raise ValueError(  # noqa: TRY301 - it is this member's
                        f"{member.name} has {name}={member.params.get(name)!r}, "
                        f"and this bundle was built with {value!r}. {_APART}"
                    )
            settings = self._settings(member)
            if settings is None:
                raise TypeError(  # noqa: TRY301
                    "bundle.track(member=...) returned None; return the member's settings, such as {'lr': 0.1}"
                )
            self._shared.meet(member)
        except Exception as error:  # noqa: BLE001 - it is this member's, and told
            self._fail(member, error)
            return None
        if first and member.restore is not None:
            self._restored.append((member.lease, member.restore.read_time_s))
        return settings

    def _add(self, entering: Sequence[tuple[Member, Any]]) -> None:
        if not entering:
            return
        assert self._group is not None
        states = [member.kept for member, _ in entering if member.kept is not None]
        try:
            ids = self._group.add([settings for _, settings in entering], states or None)
        except Exception as error:
            if raised.out_of_memory(error):
                raise
            if len(entering) > 1:
                for one in entering:
                    self._add([one])
                return
            self._fail(entering[0][0], error, remedy=_APART if raised.of_shapes(error) else "")
            return
        for (member, _), number in zip(entering, ids, strict=True):
            member.enter(number)

    def _all_settings(self, member: Member) -> Settings:
        own = {name: value for name, value in member.params.items() if name not in self.built_with}
        return {"seed": member.seed, **own}

    def _check_state(self) -> None:
        """Checks before the first step that a checkpoint can hold the group's state of every member."""
        if not self._checked and (training := self.training):
            assert self._group is not None
            assert training[0].id is not None
            try_state(self._group.member_state(training[0].id))
            self._checked = True

    def _apply(self, member: Member, verdict: Decision | Refused) -> None:
        member.waits = False
        if isinstance(verdict, Refused):
            self._finish(member, error=f"the worker refuses the report: {verdict.reason}")
        elif verdict.action is not Action.CONTINUE:
            self._leave(member)
        elif member.done >= member.max_steps:
            self._finish(member)
        else:
            member.milestone = verdict.next_milestone or member.milestone

    def _fail(self, member: Member, error: BaseException, remedy: str = "") -> None:
        others = ", and the others in its bundle continue" if len(self._members) > 1 else ""
        logger.warning("headrace: %s fails%s", member.name, others)
        traceback.print_exception(error, file=sys.stderr)
        line, trace = raised.words(error)
        own = UNREADABLE if raised.unreadable(error) else TOLD
        self._finish(member, error=f"{line}. {remedy}" if remedy else line, trace=trace, own=own)

    def _finish(self, member: Member, *, error: str = "", trace: str = "", own: OwnEnd = TOLD) -> None:
        self._finished.append(Finish(lease=member.lease, error=error, traceback=trace or error, own=own))
        self._leave(member)

    def _leave(self, member: Member) -> None:
        del self._members[member.lease]
        if member.id is not None:
            self._leaving.append(member.id)

    def _come_to_rest(self) -> None:
        """All members are between two steps: they can start again from here."""
        for member in self.training:
            member.done = member.step
        self._mark = self._seen()
        self._then = self._shared.states()

    def _seen(self) -> Mapping[int, int] | None:
        seen = getattr(self._group, "seen", None)
        return None if seen is None else dict(seen())


def _runs_apart(group: Group) -> str:
    """The warning for a group that trains its members one after the other, because it may not or cannot fuse
    them.
    """
    report = getattr(group, "report", None)
    if getattr(group, "engine", None) != "separate" or report is None:
        return ""
    return (
        f"the bundle trains its members one after the other, not fused: {report.reason}. Fix that, or leave out fuse: "
        "processes of their own use more cores"
    )
