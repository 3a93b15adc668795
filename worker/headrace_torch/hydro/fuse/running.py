"""What runs a group's steps: the engine, picked at the first step, and what happens when it fails.

    first step          inspect the model, then probe, or take the requested engine
    group doubles       probe again: what is fastest for one member is not fastest for sixteen
    fused step fails    continue separately, if the step can be repeated
    member raises       buffers are restored; `MemberError` says whose step it was
    a call remembers    each member's calls run on what that member remembers (`remembering`)

Drops never change the engine, so that the remaining members keep their bits.
"""

import os
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from headrace_torch.hydro.errors import HydroError
from headrace_torch.hydro.fuse import checkpoint
from headrace_torch.hydro.fuse.buckets import Batching, Bucket, PerMember, split
from headrace_torch.hydro.fuse.engines.pool import PoolEngine, unreachable
from headrace_torch.hydro.fuse.engines.separate import SeparateEngine
from headrace_torch.hydro.fuse.engines.stacked import StackedEngine
from headrace_torch.hydro.fuse.engines.work import Engine, Outcome, Traits, Work, free
from headrace_torch.hydro.fuse.equality import Subject, compare, measure
from headrace_torch.hydro.fuse.errors import (
    FuseError,
    FusionGapError,
    MemberError,
    OutOfMemoryError,
    PoolError,
    is_out_of_memory,
)
from headrace_torch.hydro.fuse.inspection import inspect
from headrace_torch.hydro.fuse.member import Member
from headrace_torch.hydro.fuse.obstacles import ENGINES, EngineName, Need, refuse_loss, why_not
from headrace_torch.hydro.fuse.probe import probe
from headrace_torch.hydro.fuse.reach import Owned, Roots
from headrace_torch.hydro.fuse.recall import Recall, extra_names, extra_of
from headrace_torch.hydro.fuse.remembering import Memory
from headrace_torch.hydro.fuse.report import ProbeReport
from headrace_torch.hydro.fuse.source import Models
from headrace_torch.hydro.fuse.states import MemberStates, Slot
from headrace_torch.hydro.fuse.surroundings import Losses, code_of, roots_of, roots_of_model
from headrace_torch.hydro.fuse.updates import Updates

EngineChoice = Literal["auto"] | EngineName
GROWTH = 2  # a group that has grown by this factor since it was probed is probed again


@dataclass(slots=True, kw_only=True)
class Running:
    """The engine of a group.

    Attributes:
        template: the model.
        models: makes members' own models.
        updates: the group's optimizer.
        choice: what the user asked for.
        workers: processes for what cannot be fused.
        batching: how different batch sizes are handled.
        engine: None until it is picked.
        traits: of the model, once the engine is picked.
        report: of the last probe.
        before: the engine of the run that a saved state is from; that run's bits depend on it.
        recall: members' Python state on its way into the group and out of it.
    """

    template: torch.nn.Module
    models: Models
    updates: Updates
    choice: EngineChoice
    workers: int | None
    batching: Batching
    engine: Engine | None = None
    traits: Traits = field(default_factory=Traits)
    report: ProbeReport | None = None
    before: EngineName | None = None
    _probed: int = 0
    _code: Roots = ()
    _losses: set[object] = field(default_factory=set)  # the code of the losses that were inspected
    _ran: Losses = field(default_factory=Losses)
    _here: set[int] = field(default_factory=set)  # ids of the members that have started here

    recall: Recall = field(init=False)

    def __post_init__(self) -> None:
        """Takes the model."""
        self.recall = Recall(self.template, Owned())

    @property
    def memory(self) -> Memory | None:
        """What members remember outside their tensors; None if a call changes nothing."""
        return self.recall.memory

    @property
    def changes(self) -> str:
        """The attribute that a step changes, if an engine must be kept because of it."""
        needs = self.traits.needs
        return needs.get(Need.ATTRIBUTES) or needs.get(Need.MEMORY) or ""

    def close(self) -> None:
        """Ends worker processes, if there are any."""
        if self.engine is not None:
            self.engine.close()

    def forget(self) -> None:
        """Picks again at the next step; not if a step changes an attribute, which another engine would start
        again."""
        if not self.changes:
            self.give_up()

    def give_up(self) -> None:
        """Picks again at the next step; separate members keep their attributes."""
        self.close()
        self.recall.ended()
        self.engine = None

    def refuse_returning(self, slots: Sequence[Slot], here: Container[int] = ()) -> None:
        """Rejects members that have trained elsewhere, if a count in Python is part of their state.

        Raises:
            FuseError: names the count.
        """
        for slot in slots:
            if slot.seen and self.traits.counts and slot.id not in here:
                raise FuseError(
                    f"member {slot.id} has seen {slot.seen} batches elsewhere, and its state does not hold "
                    f"{self.traits.counts}, a number that each call changes: keep it in a buffer of the model "
                    "(register_buffer), which a state holds"
                )

    def replaced(self) -> None:
        """Other members replace all present ones."""
        self._here.clear()
        if self.memory is not None:
            self.memory.forget()
        self.give_up()
        self.recall.keep(())

    def arrive(self, slots: Sequence[Slot], states: Sequence[Mapping[str, Any]]) -> None:
        """Members arrive with states."""
        for slot, state in zip(slots, states, strict=True):
            self.recall.arrive(slot.id, state)
            if "remembered" in state:
                self._here.add(slot.id)

    def joined(self, slots: Sequence[Slot]) -> None:
        """Members have joined; these are the current ones."""
        if self.engine is None:
            return
        larger = self.choice == "auto" and len(slots) >= GROWTH * self._probed
        other = bool(self.models.differ) and Need.ATTRIBUTES not in self.traits.needs
        brought = self.recall.waiting and why_not(self.engine.name, {Need.RECORD: self.recall.waiting})
        if larger or other or brought or self._differs(slots):
            self.forget()

    def _differs(self, slots: Sequence[Slot]) -> str:
        """The attribute with which a member arrived, if no engine that may run would give each member its own."""
        if self.changes:
            return ""
        members = {slot.id: slot.member for slot in slots}
        return self.recall.differs(members, lambda number: self.own(members[number]))

    def model(self, states: MemberStates, position: int) -> torch.nn.Module:
        """A plain model with everything that a member has."""
        slot = states.slots[position]
        model = self.own(slot.member)
        self.recall.onto(slot.id, model)
        return checkpoint.fill(model, states, position)

    def extra_state(self, states: MemberStates, position: int) -> dict[str, Any]:
        """A member's extra state, by the names of a state dict."""
        if not extra_names(self.template):
            return {}
        live = self.recall.module(states.slots[position].id)
        return extra_of(self.model(states, position) if live is None else live)

    def own(self, member: Member) -> torch.nn.Module:
        """A member's own module."""
        return self.models.own(member, self.template)

    def engine_for(self, states: MemberStates, batch: Any, loss: Any) -> Engine:
        """Returns the engine; picks it if there is none."""
        if self.engine is None:
            self.engine = self._pick(states, batch, loss)
            self._probed, self.before = len(states), None
        elif code_of(loss) not in self._losses:
            self._look(states, batch, loss)
            record: dict[Need, str] = {
                need: why for need, why in self.traits.needs.items() if need is Need.RECORD
            }
            if why := why_not(self.engine.name, record):
                if self.choice != "auto":
                    raise FusionGapError(why)
                self.close()
                self.engine = self._pick(states, batch, loss)
        self._losses.add(code_of(loss))
        shared = Need.MEMORY in self.traits.needs and ENGINES[self.engine.name].fused
        if self.memory is None and (shared or Need.RECORD in self.traits.needs):
            self.recall.owned.add(self.template)
            self.recall.memory = Memory(self.recall.owned)
        self.recall.keep(slot.id for slot in states.slots)
        self.refuse_returning(states.slots, self._here)
        self._here.update(slot.id for slot in states.slots)
        return self.engine

    def remember(self, loss: Any) -> None:
        """Starts a step's calls."""
        if self.memory is not None:
            self.memory.begin(self._roots(loss))
            self.recall.bring(self._fused_module)

    def buckets(self, states: MemberStates, batch: Any, loss: Any) -> list[Bucket]:
        """Splits a batch among the members, and separates those that do not remember the same.

        Raises:
            FuseError: there is a call per batch size, and the user's code changes the batch.
        """
        found = split(states.slots, batch, loss, self.batching, self.traits.batch_norm)
        if len(found) > 1 and Need.BATCH in self.traits.needs and not isinstance(batch, PerMember):
            raise FuseError(
                "the forward pass changes its batch in place, and members of different batch sizes share its rows: "
                "let it change a copy (x = x.clone()), or make a group per batch size"
            )
        if self.memory is None or self.engine is None or not ENGINES[self.engine.name].fused:
            return found
        alike = [self.memory.cohorts([states.slots[i].id for i in one.positions]) for one in found]
        return [part for one, places in zip(found, alike, strict=True) for part in one.parts(places)]

    @contextmanager
    def undone(self, states: MemberStates) -> Iterator[None]:
        """Runs a step. After an error, what members remember is as before; so are buffers, if members ran one
        after another.

        Raises:
            OutOfMemoryError: an allocation failed.
        """
        fused = self.engine is not None and ENGINES[self.engine.name].fused
        kept = {} if fused else {name: states.buffers[name].clone() for name in self.traits.mutable}
        try:
            yield
            if self.memory is not None:
                self.memory.end([slot.id for slot in states.slots])
        except Exception as error:
            if self.memory is not None:
                self.memory.undo()
            for name, value in kept.items():
                states.buffers[name].copy_(value)
            if is_out_of_memory(error) and not isinstance(error, OutOfMemoryError):
                raise OutOfMemoryError(len(states), states.rows.device, error) from error
            raise

    def run(self, states: MemberStates, bucket: Bucket, grads: Tensor) -> Outcome:
        """Runs a bucket; an engine that fails after the first step is replaced by separate members."""
        engine = self.engine
        assert engine is not None
        try:
            return engine.run(states, bucket.positions, bucket.work, grads)
        except HydroError as error:
            if not isinstance(error, PoolError) or self.choice == "pool":
                raise
            reason = f"the pool failed: {error}".partition("\n")[0]
        except Exception as error:
            if not ENGINES[engine.name].fused or is_out_of_memory(error):
                raise  # the user's code raised it; or there are too many members, which another engine would hide
            reason = f"a step could not be fused: {error}".partition("\n")[0]
            if self.choice != "auto":
                raise FusionGapError(reason) from error
            if why := self._not_again():
                raise FusionGapError(f"{reason}; it is not repeated separately: {why}") from error
        engine.close()
        self.engine = SeparateEngine(self.own, self.traits, self._turn, self.recall.begun)
        if self.report is not None:
            self.report = replace(self.report, engine="separate", reason=reason)
        return self.engine.run(states, bucket.positions, bucket.work, grads)

    def _not_again(self) -> str:
        """Why a fused step that failed must not be repeated separately; empty if it may."""
        if self.traits.mutable:
            return f"buffer {min(self.traits.mutable)} may be half a step ahead"
        if changes := self.traits.needs.get(Need.MEMORY):
            return f"{changes}, and a separate module begins without it; use engine='separate' from the start"
        return ""

    def _turn(self, ids: Sequence[int]) -> AbstractContextManager[None]:
        """The context of each call of these members."""
        return free(ids) if self.memory is None else self.memory.turn(ids)

    def _roots(self, loss: Any) -> Roots:
        """Where the code of a step starts; in a fused pass, members remember the attributes of the one module."""
        if not self._code:
            self._code = roots_of_model(self.template)
        roots = [*self._ran.roots(loss), *self._code]
        if (module := self._fused_module) is not None:
            roots.append(("", module))
        return roots

    @property
    def _fused_module(self) -> torch.nn.Module | None:
        """The module of a fused pass, if members remember its attributes."""
        if isinstance(self.engine, StackedEngine) and Need.MEMORY in self.traits.needs:
            return self.engine.module
        return None

    def _pick(self, states: MemberStates, batch: Any, loss: Any) -> Engine:
        """Inspects the model, then takes the requested engine, or probes."""
        refuse_loss(getattr(loss, "criterion", loss))
        first = self._look(states, batch, loss)
        rated = [slot.id for slot in states.slots if slot.member.dropout is not None]
        if self.traits.recomputes and rated:
            raise MemberError(
                "dropout: the model recomputes activations (checkpointing), and there dropout has the model's own "
                "rate; set rates in the factory, with the member's model arguments",
                member=rated[0],
            )
        if self.traits.batch_norm:  # padding may be rejected now
            split(states.slots, batch, loss, self.batching, self.traits.batch_norm)
        subject = Subject(
            template=self.template,
            own=self.own,
            traits=self.traits,
            states=states.select(first.positions),
            work=first.work,
            updates=self.updates,
            roots=roots_of(first.work.loss_fn, self.template),
            turn=self._turn,
            owns=self.recall.begun,
        )
        if self.choice != "auto":
            engine, self.report = self._asked(self.choice, subject, len(states))
            return engine
        if self.before is not None:
            with suppress(FuseError):  # another machine, another torch: what ran there may not be equal here
                engine, self.report = self._asked(self.before, subject, len(states))
                return engine
        engine, self.report = probe(subject)
        if engine.name == "separate" and self.workers:
            engine, self.report = self._spread_out(first.work, engine, self.report, states)
        return engine

    def _look(self, states: MemberStates, batch: Any, loss: Any) -> Bucket:
        """Finds out what a step with this loss does; what an earlier one remembered is kept. Returns what it ran."""
        first = split(states.slots, batch, loss, self.batching, "")[0]
        at = first.positions[0]
        model = checkpoint.fill(self.own(states.slots[at].member), states, at)
        found = inspect(model, first.work, differ=self.models.differ)
        known = self.traits if self.engine is not None else found
        needs = dict(known.needs)
        for one in (self.traits, found):
            if record := one.needs.get(Need.RECORD):
                needs.setdefault(Need.RECORD, record)
        if waiting := self.recall.waiting:
            needs.setdefault(Need.RECORD, f"a member joined with {waiting}")
        self.traits = replace(known, needs=needs, counts=self.traits.counts or found.counts)
        if self.engine is None and (differs := self._differs(states.slots)):
            needs[Need.ATTRIBUTES] = differs
        return first

    def _asked(self, name: EngineName, subject: Subject, members: int) -> tuple[Engine, ProbeReport]:
        """The engine that was requested by name, if it is correct."""
        local = "separate" if name == "pool" else name
        reason = why_not(name, subject.traits.needs)
        if name == "pool":
            reason = reason or unreachable(self.template, subject.work.loss_fn)
        error: float | None = None
        if not reason:
            reason, error = compare(measure(subject), local)
        if reason and not ENGINES[name].fused and name != "pool":
            raise FuseError(f"no engine trains this model as torch.optim would: {reason}")
        if reason:
            raise FusionGapError(reason)
        errors: dict[str, float] = {} if error is None else {local: error}
        report = ProbeReport(engine=name, reason="asked for", error=errors)
        return (self._pool(members) if name == "pool" else subject.engine(local)), report

    def _pool(self, members: int) -> PoolEngine:
        count = self.workers or min(members, (os.cpu_count() or 1) // torch.get_num_threads())
        return PoolEngine(self.template, self.traits, max(1, count))

    def _spread_out(
        self, work: Work, separate: Engine, report: ProbeReport, states: MemberStates
    ) -> tuple[Engine, ProbeReport]:
        """Separate members over a pool, which was requested with `workers`, if it can run them."""
        reason = why_not("pool", self.traits.needs)
        if not reason and states.rows.device.type != "cpu":
            reason = "a pool needs a CPU"
        reason = reason or unreachable(self.template, work.loss_fn)
        if reason:
            warnings.warn(f"no process pool: {reason}", stacklevel=6)
            return separate, replace(report, reason=f"{report.reason}; no pool: {reason}")
        return self._pool(len(states)), replace(
            report, engine="pool", reason=f"{report.reason}; over {self.workers} processes"
        )
