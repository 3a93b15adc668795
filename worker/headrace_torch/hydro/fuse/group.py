"""`Group`: many trials of one model that train as one.

    step     buckets → engine: losses, gradients → per member: unscale, clip → optimizer → counters
    drop     rows of the members that stay are selected; nothing else changes for them
    add      rows are appended, with step counts and moments of their own

The group's `MemberStates` is the only copy of the truth; the engine is picked by `probe` at the first step.
"""

import copy
import os
import pickle
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse import checkpoint
from headrace_torch.hydro.fuse.buckets import Batching, split
from headrace_torch.hydro.fuse.engines.loss import as_loss
from headrace_torch.hydro.fuse.engines.pool import PoolEngine
from headrace_torch.hydro.fuse.engines.separate import SeparateEngine
from headrace_torch.hydro.fuse.engines.work import Engine, EngineName, Traits, Work
from headrace_torch.hydro.fuse.errors import FuseError, FusionGapError, MemberError
from headrace_torch.hydro.fuse.gradients import after, clip, unscale
from headrace_torch.hydro.fuse.inspection import inspect
from headrace_torch.hydro.fuse.layout import Layout
from headrace_torch.hydro.fuse.member import Member, OptimizerName, parse_member
from headrace_torch.hydro.fuse.optimizers import RowMultipliers, needs_momentum, update
from headrace_torch.hydro.fuse.probe import ProbeReport, compare, probe, stacked_engine, timed
from headrace_torch.hydro.fuse.row_kernels import fits, spans_of, update_by_kernels
from headrace_torch.hydro.fuse.source import Models
from headrace_torch.hydro.fuse.states import MOMENTS, MemberStates, Slot, fresh
from headrace_torch.hydro.parametrize.parametrization import Parametrization

EngineChoice = Literal["auto"] | EngineName
POOL_PAYS_S = 0.05  # a step of all members that takes less is over before a pool has sent its messages


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
        self._multipliers = _row_multipliers(layout, parametrization, template)
        self._spans = spans_of(layout, parametrization)
        self._next_id = 0
        self._states = self._fresh(members)
        self._engine: Engine | None = None
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
        buckets = split(states.slots, batch, loss, self._batching, self._traits.batch_norm)
        grads = self._grads
        if len(buckets) == 1:
            outcome = engine.run(states, buckets[0].positions, buckets[0].work, grads)
            self._apply(grads, outcome.unused)
            return outcome.losses
        losses = torch.zeros(len(states), dtype=torch.float32, device=states.rows.device)
        unused = frozenset(one.name for one in self._layout.segments)
        for bucket in buckets:
            part = torch.zeros(
                len(bucket.positions), self._layout.row, dtype=grads.dtype, device=grads.device
            )
            outcome = engine.run(states, bucket.positions, bucket.work, part)
            at = list(bucket.positions)
            grads[at] = part
            losses = losses.to(outcome.losses.dtype)
            losses[at] = outcome.losses
            unused &= outcome.unused
        self._apply(grads, unused)
        return losses

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
            FuseError: a state is of another model.
        """
        parsed = [parse_member(one, self._optimizer, self._next_id + i) for i, one in enumerate(members)]
        joined = self._fresh(parsed)
        for position, state in enumerate(states or ()):
            checkpoint.write(joined, position, state, self._template, self._parametrization)
        self._hold(self._states.append(joined))
        return [slot.id for slot in joined.slots]

    def repack(self) -> None:
        """Probes again at the next step: after many drops another engine may be the faster one.

        Until then the group keeps its engine, and with it survivors' bits.
        """
        self.close()
        self._engine = None

    def member_state(self, member_id: int) -> checkpoint.State:
        """Returns a member's state in terms of the plain model and torch's own optimizer; see `checkpoint.read`."""
        return checkpoint.read(self._states, self._position(member_id), self._template, self._parametrization)

    def member_model(self, member_id: int) -> nn.Module:
        """Returns a plain model with a member's parameters and buffers."""
        model = copy.deepcopy(self._template)
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

    @torch.no_grad()
    def _apply(self, grads: Tensor, unused: frozenset[str]) -> None:
        """Gradients to parameters: unscale, clip, update the members that go on, count."""
        states = self._states
        going = unscale(states.slots, grads)
        clip(states.slots, grads)
        kept = {name: view.clone() for name, view in self._views(states, unused).items()}
        if all(going):
            self._update(states, grads)
        else:
            at = [i for i, go in enumerate(going) if go]
            if at:
                part = states.select(at)
                self._update(part, grads[at])
                states.rows[at] = part.rows
                for name, value in part.moments.items():
                    states.moments[name][at] = value
        for name, view in self._views(states, unused).items():
            view.copy_(kept[name])
        states.slots = [after(slot, stepped=go) for slot, go in zip(states.slots, going, strict=True)]

    def _update(self, states: MemberStates, grads: Tensor) -> None:
        """One step of the optimizer; by torch's kernels where they can, which is a choice that bits depend on."""
        name, rows, moments = self._optimizer, states.rows, states.moments
        if fits(rows):
            update_by_kernels(name, states.slots, rows, grads, moments, self._spans)
        else:
            update(name, states.slots, rows, grads, moments, self._multipliers)

    def _views(self, states: MemberStates, names: frozenset[str]) -> dict[str, Tensor]:
        """Parameters without a gradient, which torch.optim leaves as they are; their moments stay zero."""
        if not names:
            return {}
        return {name: view for name, view in self._layout.stacked(states.rows).items() if name in names}

    def _choose(self, batch: Any, loss: Any) -> Engine:
        """Looks at the model, then takes the engine that was asked for, or probes."""
        states = self._states
        first = split(states.slots, batch, loss, self._batching, "")[0]
        model = self.member_model(self.ids[0])
        self._traits = inspect(model, first.work)
        if self._traits.recomputes and any(slot.member.dropout is not None for slot in states.slots):
            raise MemberError(
                "dropout: the model recomputes activations (checkpointing), and there dropout has the model's own "
                "rate; set rates in the factory, with the member's model arguments"
            )
        if self._traits.batch_norm:  # padding may be refused now
            split(states.slots, batch, loss, self._batching, self._traits.batch_norm)
        part = states.select(first.positions)
        if self._choice == "auto":
            self._engine, self.report = probe(self._template, self._traits, part, first.work)
            if self._engine.name == "separate" and self._workers != 0:
                self._engine, self.report = self._fall_back(part, first.work, self.report)
        elif self._choice == "separate" or self._choice == "pool":
            self._engine, self.report = self._asked(self._choice)
        else:
            engine = stacked_engine(self._template, self._traits, self._choice)
            reason, error = compare(self._template, self._traits, part, first.work, engine)
            if reason:
                raise FusionGapError(reason)
            errors: dict[str, float] = {} if error is None else {engine.name: error}
            self._engine = engine
            self.report = ProbeReport(engine=engine.name, reason="asked for", error=errors)
        return self._engine

    def _asked(self, name: Literal["separate", "pool"]) -> tuple[Engine, ProbeReport]:
        report = ProbeReport(engine=name, reason="asked for")
        if name == "separate":
            return SeparateEngine(self._template, self._traits), report
        return PoolEngine(self._template, self._traits, self._processes()), report

    def _processes(self) -> int:
        if self._workers is not None:
            return max(1, self._workers)
        return max(1, min(len(self._states), (os.cpu_count() or 1) // torch.get_num_threads()))

    def _fall_back(self, states: MemberStates, work: Work, report: ProbeReport) -> tuple[Engine, ProbeReport]:
        """Separate members in this process, or over a pool where that was asked for or is faster."""
        separate = SeparateEngine(self._template, self._traits)
        count = self._processes()
        why_not = self._no_pool(states, count)
        if not why_not and self._workers is None:
            alone = timed([separate], states, work, rounds=1)[0]
            if alone < POOL_PAYS_S:
                why_not = f"a step takes {alone * 1e3:.1f} ms, too little for processes"
        why_not = why_not or self._cannot_pickle(work)
        if why_not:
            return separate, _with(report, "separate", f"{report.reason}; {why_not}")
        pool = PoolEngine(self._template, self._traits, count)
        if self._workers is None:
            alone, spread = timed([separate, pool], states, work, rounds=2)
            if spread >= alone:
                pool.close()
                return separate, _with(
                    report, "separate", f"{report.reason}; {count} processes are no faster"
                )
        return pool, _with(report, "pool", f"{report.reason}; over {count} processes")

    def _no_pool(self, states: MemberStates, count: int) -> str:
        if states.rows.device.type != "cpu":
            return "a pool needs a CPU"
        if self._workers is None and count < 2:
            return "there is no core for a second process"
        return ""

    def _cannot_pickle(self, work: Work) -> str:
        try:
            pickle.dumps((self._template, work.loss_fn))
        except Exception as error:  # noqa: BLE001  pickling runs the user's code
            if self._workers is not None:
                warnings.warn(
                    f"no process pool: the model or the loss cannot be pickled ({error})", stacklevel=5
                )
            return "the model or the loss cannot be pickled"
        return ""


def _with(report: ProbeReport, engine: EngineName, reason: str) -> ProbeReport:
    return ProbeReport(
        engine=engine,
        reason=reason,
        gaps=report.gaps,
        error=report.error,
        speedup=report.speedup,
        bit_stable=report.bit_stable,
    )


def _row_multipliers(layout: Layout, parametrization: Parametrization, model: nn.Module) -> RowMultipliers:
    if parametrization.is_identity:
        return RowMultipliers()
    device = next(model.parameters()).device
    rows = {}
    for field in ("lr", "weight_decay", "eps"):
        values = {one.name: float(getattr(parametrization[one.name], field)) for one in layout.segments}
        if any(value != 1 for value in values.values()):
            rows[field] = layout.per_element(values, layout.dtype).to(device)
    return RowMultipliers(**rows)
