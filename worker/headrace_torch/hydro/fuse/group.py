"""`Group`: many trials of one model that train as one.

    step     buckets → engine: losses, gradients → per member: unscale, clip → optimizer → counters
    drop     rows of the members that stay are selected; nothing else changes for them
    add      rows are appended, with step counts and moments of their own

The group's `MemberStates` is the only copy of the truth; the engine is picked by `probe` at the first step.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from headrace_torch.hydro.errors import HydroError
from headrace_torch.hydro.fuse import checkpoint
from headrace_torch.hydro.fuse.between import Between, Callback
from headrace_torch.hydro.fuse.buckets import Batching, Bucket, PerMember, split
from headrace_torch.hydro.fuse.engines.loss import as_loss
from headrace_torch.hydro.fuse.engines.pool import PoolEngine, unreachable
from headrace_torch.hydro.fuse.engines.separate import SeparateEngine
from headrace_torch.hydro.fuse.engines.work import Engine, Outcome, Traits, Work
from headrace_torch.hydro.fuse.equality import Subject, compare, measure
from headrace_torch.hydro.fuse.errors import FuseError, FusionGapError, MemberError, PoolError
from headrace_torch.hydro.fuse.inspection import inspect
from headrace_torch.hydro.fuse.layout import Layout
from headrace_torch.hydro.fuse.member import Member, OptimizerName, parse_member
from headrace_torch.hydro.fuse.obstacles import ENGINES, EngineName, Need, refuse_loss, why_not
from headrace_torch.hydro.fuse.optimizers import needs_momentum
from headrace_torch.hydro.fuse.probe import probe
from headrace_torch.hydro.fuse.report import ProbeReport
from headrace_torch.hydro.fuse.source import Models
from headrace_torch.hydro.fuse.states import MOMENTS, MemberStates, Slot, fresh
from headrace_torch.hydro.fuse.updates import updates_of
from headrace_torch.hydro.parametrize.parametrization import Parametrization

EngineChoice = Literal["auto"] | EngineName


class Group:
    """Members that train together; made by `hydro.fuse`.

    Attributes:
        report: what the probe found, from the first step on.
    """

    def __init__(
        self,
        *,
        template: nn.Module,
        models: Models,
        layout: Layout,
        members: Sequence[Member],
        optimizer: OptimizerName,
        parametrization: Parametrization,
        engine: EngineChoice,
        workers: int | None,
        batching: Batching,
    ) -> None:
        """Makes members' initial states; use `hydro.fuse`."""
        self._template, self._models, self._layout = template, models, layout
        self._optimizer, self._parametrization = optimizer, parametrization
        self._choice, self._workers, self._batching = engine, workers, batching
        self._updates = updates_of(optimizer, layout, parametrization, template)
        self._next_id = 0
        self._states = self._fresh(members)
        self._engine: Engine | None = None
        self._between = Between()
        self._traits = Traits()
        self._grads = torch.zeros_like(self._states.rows)
        self.report: ProbeReport | None = None

    @property
    def ids(self) -> list[int]:
        """Members' ids in the order of the losses that `step` returns; an id is never reused."""
        return [slot.id for slot in self._states.slots]

    @property
    def members(self) -> dict[int, Member]:
        """Hyperparameters by id."""
        return {slot.id: slot.member for slot in self._states.slots}

    @property
    def engine(self) -> EngineName | None:
        """What runs the group; None before the first step."""
        return None if self._engine is None else self._engine.name

    @property
    def worker_ids(self) -> list[int]:
        """Process ids of the pool's workers; empty for other engines."""
        return self._engine.process_ids if isinstance(self._engine, PoolEngine) else []

    @property
    def device(self) -> torch.device:
        """Where the members train."""
        return self._states.rows.device

    def __len__(self) -> int:
        return len(self._states)

    def __enter__(self) -> Self:
        """Returns the group."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the group."""
        self.close()

    def close(self) -> None:
        """Ends worker processes, if there are any. The state stays."""
        if self._engine is not None:
            self._engine.close()

    def step(self, batch: Any, loss_fn: Any) -> Tensor:
        """Trains every member on a batch, once.

        Args:
            batch: a nest of tensors that all members share (each may use the first rows only, `batch_size`), or
                `PerMember`.
            loss_fn: (model, batch) to one number, the mean over one member's batch; or a criterion of
                (output, target) such as `nn.CrossEntropyLoss()` for batches (*inputs, target).

        Returns:
            Each member's loss before the step, (n,), detached, in the order of `ids`.

        Raises:
            LossShapeError: the loss is not one number per member.
            MemberError: a batch size is larger than the batch.
            FusionGapError: an engine was asked for by name that cannot run this model.
            FuseError: the group has no members left.
        """
        states = self._states
        if not len(states):
            raise FuseError("the group has no members left")
        loss = as_loss(loss_fn)
        engine = self._engine or self._choose(batch, loss)
        self._between.begin(engine)
        buckets = split(states.slots, batch, loss, self._batching, self._traits.batch_norm)
        if len(buckets) > 1:
            self._check_buckets(batch)
        grads = self._grads
        unused: list[frozenset[str]] = [frozenset()] * len(states)
        if len(buckets) == 1:
            outcome = self._run(engine, buckets[0], grads)
            self._updates.apply(states, grads, outcome.unused, self._between)
            return outcome.losses
        losses = torch.zeros(len(states), dtype=torch.float32, device=states.rows.device)
        for bucket in buckets:
            part = torch.zeros(
                len(bucket.positions), self._layout.row, dtype=grads.dtype, device=grads.device
            )
            outcome = self._run(engine, bucket, part)
            at = list(bucket.positions)
            grads[at] = part
            losses = losses.to(outcome.losses.dtype)
            losses[at] = outcome.losses
            for position, none in zip(at, outcome.unused, strict=True):
                unused[position] = none
        self._updates.apply(states, grads, unused, self._between)
        return losses

    def between(self, callback: Callback | None) -> None:
        """Calls `callback` between the parts of each step: before layers, after gradients, before members' updates.

        It gets the place's number in the step, and must not compute: no number changes. None takes it away.

        Raises:
            FuseError: at the next step, where the engine is a pool of processes.
        """
        self._between.callback = callback

    def drop(self, ids: Sequence[int]) -> None:
        """Ends members and repacks: the others keep every bit of their state, and train on in less memory.

        Raises:
            FuseError: an id is not of this group.
        """
        gone = set(ids)
        if unknown := sorted(gone - set(self.ids)):
            raise FuseError(f"member {unknown[0]} is not in the group; its members are {self.ids}")
        self._hold(
            self._states.select([i for i, slot in enumerate(self._states.slots) if slot.id not in gone])
        )

    def add(
        self, members: Sequence[Mapping[str, Any] | Member], states: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Lets members join: from their initial values and step 0, or from states of `member_state`.

        Args:
            members: their hyperparameters.
            states: one per member.

        Returns:
            Their ids.

        Raises:
            MemberError: a hyperparameter is unknown or out of range.
            StaticShapeError: a factory made another shape.
            FuseError: a state is of another model; or members are fused, and a step changes an attribute of the model.
        """
        changes = self._traits.needs.get(Need.MEMORY)
        if changes and self._engine is not None and ENGINES[self._engine.name].fused:
            raise FuseError(
                f"no member can join later: {changes}, and a fused pass has one for all members; use engine='separate'"
            )
        parsed = [parse_member(one, self._optimizer, self._next_id + i) for i, one in enumerate(members)]
        joined = self._fresh(parsed)
        for position, state in enumerate(states or ()):
            checkpoint.write(joined, position, state, self._template, self._parametrization)
        self._hold(self._states.append(joined))
        return [slot.id for slot in joined.slots]

    def repack(self) -> None:
        """Probes again at the next step: after many drops another engine may be the faster one.

        Until then the group keeps its engine, and with it survivors' bits. So it does for good where a step changes an
        attribute of the model, which another engine would begin anew.
        """
        if self._traits.needs.keys() & {Need.ATTRIBUTES, Need.MEMORY}:
            return
        self.close()
        self._engine = None

    def member_state(self, member_id: int) -> checkpoint.State:
        """Returns a member's state in terms of the plain model and torch's own optimizer; see `checkpoint.read`."""
        return checkpoint.read(self._states, self._position(member_id), self._template, self._parametrization)

    def member_model(self, member_id: int) -> nn.Module:
        """Returns a plain model with a member's parameters and buffers."""
        model = self._own(self.members[member_id])
        model.load_state_dict(self.member_state(member_id)["model"])
        return model

    def member_optimizer(self, member_id: int, model: nn.Module) -> torch.optim.Optimizer:
        """Returns torch's optimizer with a member's state, over a model from `member_model`."""
        slot = self._states.slots[self._position(member_id)]
        optimizer = checkpoint.plain_optimizer(model, self._parametrization, slot.member, slot.step)
        optimizer.load_state_dict(self.member_state(member_id)["optimizer"])
        return optimizer

    def steps(self) -> dict[int, int]:
        """Returns how many optimizer steps each member has taken, by id."""
        return {slot.id: slot.step for slot in self._states.slots}

    def memory_bytes(self) -> int:
        """Returns the bytes of parameters, moments, buffers and gradients of all members."""
        return self._states.memory_bytes() + self._grads.numel() * self._grads.element_size()

    def _position(self, member_id: int) -> int:
        try:
            return self.ids.index(member_id)
        except ValueError:
            raise FuseError(f"member {member_id} is not in the group; its members are {self.ids}") from None

    def _fresh(self, members: Sequence[Member]) -> MemberStates:
        first = self._next_id
        slots = [
            Slot(id=first + i, member=one, scale=one.scaler.init_scale if one.scaler else 1.0)
            for i, one in enumerate(members)
        ]
        self._next_id += len(members)
        models = self._models.make(members, first, self._template)
        kept = MOMENTS[self._optimizer]
        if self._optimizer == "sgd" and not needs_momentum(members):
            kept = ()
        device = next(self._template.parameters()).device
        return fresh(self._layout, models, slots, kept, device)

    def _hold(self, states: MemberStates) -> None:
        self._states = states
        self._grads = torch.zeros_like(states.rows)

    def _own(self, member: Member) -> nn.Module:
        return self._models.own(member, self._template)

    def _run(self, engine: Engine, bucket: Bucket, grads: Tensor) -> Outcome:
        """Runs a bucket; an engine that fails later than at the first step gives way to separate members."""
        try:
            return engine.run(self._states, bucket.positions, bucket.work, grads)
        except HydroError as error:
            if not isinstance(error, PoolError) or self._choice == "pool":
                raise
            reason = f"the pool failed: {error}".partition("\n")[0]
        except Exception as error:
            if not ENGINES[engine.name].fused:
                raise  # the user's code raises it
            reason = f"a step could not be fused: {error}".partition("\n")[0]
            if self._choice != "auto":
                raise FusionGapError(reason) from error
            if why := self._not_again():
                raise FusionGapError(f"{reason}; it is not repeated separately: {why}") from error
        engine.close()
        self._engine = SeparateEngine(self._own, self._traits)
        if self.report is not None:
            self.report = replace(self.report, engine="separate", reason=reason)
        return self._engine.run(self._states, bucket.positions, bucket.work, grads)

    def _not_again(self) -> str:
        """Why a fused step that failed must not be repeated separately; empty if it may."""
        if self._traits.mutable:
            return f"buffer {min(self._traits.mutable)} may be half a step ahead"
        if changes := self._traits.needs.get(Need.MEMORY):
            return f"{changes}, and a separate module begins without it; use engine='separate' from the start"
        if self._traits.remembers:
            return (
                "a call changes what the loss keeps, and separately there is one per member; keep its count in the "
                "model, or use engine='separate' from the start"
            )
        return ""

    def _check_buckets(self, batch: Any) -> None:
        """Refuses several calls a step, one per batch size, where the user's code counts calls or changes the batch."""
        if self._traits.counts_calls:
            raise FuseError(
                "the loss computes something else when it is called again, and members of different batch sizes need a "
                "call per size: keep its count in the model, or make a group per batch size"
            )
        if Need.BATCH in self._traits.needs and not isinstance(batch, PerMember):
            raise FuseError(
                "the forward pass changes its batch in place, and members of different batch sizes share its rows: let "
                "it change a copy (x = x.clone()), or make a group per batch size"
            )

    def _choose(self, batch: Any, loss: Any) -> Engine:
        """Looks at the model, then takes the engine that was asked for, or probes."""
        states = self._states
        refuse_loss(getattr(loss, "criterion", loss))
        first = split(states.slots, batch, loss, self._batching, "")[0]
        model = self.member_model(self.ids[first.positions[0]])
        self._traits = inspect(model, first.work, differ=self._models.differ)
        if self._traits.recomputes and any(slot.member.dropout is not None for slot in states.slots):
            raise MemberError(
                "dropout: the model recomputes activations (checkpointing), and there dropout has the model's own "
                "rate; set rates in the factory, with the member's model arguments"
            )
        if self._traits.batch_norm:  # padding may be refused now
            split(states.slots, batch, loss, self._batching, self._traits.batch_norm)
        subject = Subject(
            template=self._template,
            own=self._own,
            traits=self._traits,
            states=states.select(first.positions),
            work=first.work,
            updates=self._updates,
        )
        if self._choice == "auto":
            engine, self.report = probe(subject)
            if engine.name == "separate" and self._workers:
                engine, self.report = self._spread_out(first.work, engine, self.report)
        else:
            engine, self.report = self._asked(self._choice, subject)
        self._engine = engine
        return engine

    def _asked(self, name: EngineName, subject: Subject) -> tuple[Engine, ProbeReport]:
        """The engine that was asked for by name, if it is right."""
        local = "separate" if name == "pool" else name
        reason = why_not(name, subject.traits.needs)
        if name == "pool":
            reason = reason or unreachable(self._template, subject.work.loss_fn)
        error: float | None = None
        if not reason:
            reason, error = compare(measure(subject), local)
        if reason and not ENGINES[name].fused and name != "pool":
            raise FuseError(f"no engine trains this model as torch.optim would: {reason}")
        if reason:
            raise FusionGapError(reason)
        errors: dict[str, float] = {} if error is None else {local: error}
        report = ProbeReport(engine=name, reason="asked for", error=errors)
        return (self._pool() if name == "pool" else subject.engine(local)), report

    def _pool(self) -> PoolEngine:
        count = self._workers or min(len(self._states), (os.cpu_count() or 1) // torch.get_num_threads())
        return PoolEngine(self._template, self._traits, max(1, count))

    def _spread_out(self, work: Work, separate: Engine, report: ProbeReport) -> tuple[Engine, ProbeReport]:
        """Separate members over a pool, which was asked for with `workers`, if it can run them."""
        reason = why_not("pool", self._traits.needs)
        if not reason and self.device.type != "cpu":
            reason = "a pool needs a CPU"
        reason = reason or unreachable(self._template, work.loss_fn)
        if reason:
            warnings.warn(f"no process pool: {reason}", stacklevel=5)
            return separate, replace(report, reason=f"{report.reason}; no pool: {reason}")
        return self._pool(), replace(
            report, engine="pool", reason=f"{report.reason}; over {self._workers} processes"
        )
