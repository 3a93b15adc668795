"""`Group`: many trials of one model that train as one.

    step        buckets → engine: losses, gradients → per member: unscale, clip → optimizer → counters
    drop        the rows of the remaining members are selected; nothing else changes for them
    add         rows are appended, with their own step counts and moments
    state_dict  everything, member by member

The group's `MemberStates` is the only copy of the state; `Running` has the engine.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse import checkpoint
from headrace_torch.hydro.fuse.between import Between, Callback
from headrace_torch.hydro.fuse.buckets import Bucket
from headrace_torch.hydro.fuse.engines.loss import as_loss
from headrace_torch.hydro.fuse.engines.pool import PoolEngine
from headrace_torch.hydro.fuse.errors import FuseError, MemberError
from headrace_torch.hydro.fuse.first_step import FirstStep, FirstSteps
from headrace_torch.hydro.fuse.layout import Layout
from headrace_torch.hydro.fuse.member import Member, OptimizerName
from headrace_torch.hydro.fuse.obstacles import EngineName
from headrace_torch.hydro.fuse.optimizers import needs_momentum
from headrace_torch.hydro.fuse.report import ProbeReport
from headrace_torch.hydro.fuse.running import Running
from headrace_torch.hydro.fuse.settings import listed, parse_member
from headrace_torch.hydro.fuse.source import Models
from headrace_torch.hydro.fuse.states import MOMENTS, MemberStates, Slot, fresh
from headrace_torch.hydro.fuse.updates import Updates


class Group:
    """Members that train together; made by `hydro.fuse`.

    Methods that take a member accept its id or its name.
    """

    def __init__(
        self,
        *,
        template: nn.Module,
        models: Models,
        layout: Layout,
        updates: Updates,
        running: Running,
        members: Sequence[Member],
    ) -> None:
        """Makes members' initial states; use `hydro.fuse`."""
        self._template, self._models, self._layout = template, models, layout
        self._updates, self._running = updates, running
        self._optimizer: OptimizerName = updates.optimizer
        self._between = Between()
        self._first_steps = FirstSteps()
        self._next_id = len(members)
        self._hold(self._fresh(members, range(len(members)), [None] * len(members)))

    @property
    def ids(self) -> list[int]:
        """Members' ids in the order of the losses that `step` returns; an id is never reused."""
        return [slot.id for slot in self._states.slots]

    @property
    def names(self) -> list[str | None]:
        """Members' names in the order of `ids`; None for a member without a name."""
        return [slot.name for slot in self._states.slots]

    @property
    def members(self) -> dict[int, Member]:
        """Hyperparameters by id."""
        return {slot.id: slot.member for slot in self._states.slots}

    @property
    def engine(self) -> EngineName | None:
        """What runs the group; None before the first step."""
        return None if self._running.engine is None else self._running.engine.name

    @property
    def report(self) -> ProbeReport | None:
        """What the last probe found; None before the first step."""
        return self._running.report

    @property
    def first_step(self) -> FirstStep | None:
        """The cost of the step that last picked the engine; None before the first step."""
        return self._first_steps.last

    @property
    def worker_ids(self) -> list[int]:
        """Process ids of the pool's workers; empty for other engines."""
        engine = self._running.engine
        return engine.process_ids if isinstance(engine, PoolEngine) else []

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
        """Ends worker processes, if there are any. The group's state is kept."""
        self._running.close()

    def step(self, batch: Any, loss_fn: Any) -> Tensor:
        """Trains every member on a batch, once.

        Args:
            batch: a nest of tensors that all members share (each may use the first rows only, `batch_size`), or
                `PerMember`.
            loss_fn: maps (model, batch) to one number, the mean over one member's batch; or a criterion of
                (output, target) such as `nn.CrossEntropyLoss()` for batches (*inputs, target).

        Returns:
            Each member's loss before the step, (n,), detached, in the order of `ids`.

        Raises:
            LossShapeError: the loss is not one number per member.
            MemberError: one member is the cause: its batch size is larger than the batch; or members run one after
                another, and the user's code raised. No member has trained; drop this one, and repeat the step.
            OutOfMemoryError: a device has too little memory for this many members.
            FusionGapError: the engine that was requested by name cannot run this model.
            FuseError: the group has no members left.
        """
        if not len(self):
            raise FuseError(f"the group has no members {'left' if self._next_id else 'yet'}; add some")
        loss, picks = as_loss(loss_fn), self._running.engine is None
        if not self._first_steps.wants(picks=picks):
            return self._step(batch, loss)
        with self._first_steps.timed(len(self), self.device, picks=picks):
            return self._step(batch, loss)

    def _step(self, batch: Any, loss: Any) -> Tensor:
        states, running = self._states, self._running
        with running.undone(states):
            self._between.begin(running.engine_for(states, batch, loss))
            running.remember(loss)
            buckets = running.buckets(states, batch, loss)
            if len(buckets) == 1:
                outcome = running.run(states, buckets[0], self._grads)
                losses, unused = outcome.losses, list(outcome.unused)
            else:
                losses, unused = self._in_parts(buckets)
            self._updates.apply(states, self._grads, unused, self._between)
        return losses

    def between(self, callback: Callback | None) -> None:
        """Calls `callback` between the parts of each step: before layers, after gradients, before members' updates.

        It receives the place's number in the step, and must not compute: no number changes. None removes it.

        Raises:
            FuseError: at the next step, if the engine is a pool of processes.
        """
        self._between.callback = callback

    def drop(self, members: Sequence[int | str]) -> None:
        """Ends members and repacks: the others keep every bit of their state, and continue in less memory.

        Raises:
            FuseError: one of them is not in this group.
        """
        gone = {self._position(one) for one in members}
        self._hold(self._states.select([i for i in range(len(self)) if i not in gone]))

    def add(
        self,
        members: Sequence[Mapping[str, Any] | Member],
        states: Sequence[Mapping[str, Any]] | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> list[int]:
        """Lets members join: from their initial values and step 0, or from states of `member_state`.

        A group that has doubled since it was probed is probed again at its next step.

        Args:
            members: their hyperparameters.
            states: one per member.
            names: one per member, which the other methods accept too; free again when the member has left.

        Returns:
            Their ids.

        Raises:
            MemberError: a hyperparameter is unknown or out of range; a state is of another model; a name is taken.
            StaticShapeError: a factory made another shape.
            FuseError: a state has seen batches, and the code counts them in Python, which no state holds.
        """
        members = listed(members)
        for what, given in (("states", states), ("names", names)):
            if given is not None and len(given) != len(members):
                raise FuseError(
                    f"{what} has {len(given)} entries for {len(members)} members: give one for each"
                )
        ids = range(self._next_id, self._next_id + len(members))
        parsed = [
            parse_member(one, self._optimizer, number) for number, one in zip(ids, members, strict=True)
        ]
        called: Sequence[str | None] = [None] * len(members) if names is None else names
        for place, (number, name) in enumerate(zip(ids, called, strict=True)):
            if name is not None and name in (*self.names, *called[:place]):
                raise MemberError(f"member {number}: the name {name!r} is taken", member=number)
        joined = self._fresh(parsed, ids, called)
        for position, state in enumerate(states or ()):
            checkpoint.write(joined, position, state, self._template, self._updates.parametrization)
        self._running.refuse_returning(joined.slots, _carried(joined.slots, states or ()))
        self._next_id = ids.stop
        self._hold(self._states.append(joined))
        self._running.arrive(joined.slots[: len(states or ())], states or ())
        self._running.joined(self._states.slots)
        return list(ids)

    def repack(self) -> None:
        """Probes again at the next step: after many drops another engine may be faster.

        Until then the group keeps its engine, and with it the bits of the remaining members. If a step changes an
        attribute of the model, it keeps the engine for good, because another engine would start that attribute
        again.
        """
        self._running.forget()

    def state_dict(self) -> dict[str, Any]:
        """Returns all members with their settings, ids, names and counters, to the bit; tensors are copies."""
        members = [
            {"id": slot.id, "name": slot.name, **self._state(position)}
            for position, slot in enumerate(self._states.slots)
        ]
        return {
            "optimizer": self._optimizer,
            "engine": self.engine,
            "next_id": self._next_id,
            "members": members,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces this group's members by those of a saved group. The next step runs on the engine of that group.

        Raises:
            FuseError: the state is of another model or optimizer, or has seen batches that the code counts in
                Python, which no state holds; the group is then unchanged.
        """
        if state["optimizer"] != self._optimizer:
            raise FuseError(
                f"the state is of a group with {state['optimizer']}, and this one has {self._optimizer}"
            )
        saved: Sequence[Mapping[str, Any]] = state["members"]
        ids = [int(one["id"]) for one in saved]
        parsed = [
            parse_member(one["settings"], self._optimizer, number)
            for number, one in zip(ids, saved, strict=True)
        ]
        loaded = self._fresh(parsed, ids, [one["name"] for one in saved])
        for position, one in enumerate(saved):
            checkpoint.write(loaded, position, one, self._template, self._updates.parametrization)
        self._running.refuse_returning(loaded.slots, _carried(loaded.slots, saved))
        self._next_id = int(state["next_id"])
        self._hold(loaded)
        self._running.replaced()
        self._running.arrive(loaded.slots, saved)
        self._running.before = state["engine"]

    def member_state(self, member: int | str) -> checkpoint.State:
        """Returns a member's state in terms of the plain model and torch's own optimizer; see `checkpoint.read`."""
        return self._state(self._position(member))

    def member_model(self, member: int | str) -> nn.Module:
        """Returns a plain model with a member's parameters, buffers, extra state and attributes."""
        return self._running.model(self._states, self._position(member))

    def member_optimizer(self, member: int | str, model: nn.Module) -> torch.optim.Optimizer:
        """Returns torch's optimizer with a member's state, over a model from `member_model`."""
        position = self._position(member)
        slot = self._states.slots[position]
        optimizer = checkpoint.plain_optimizer(model, self._updates.parametrization, slot.member, slot.step)
        optimizer.load_state_dict(self._state(position)["optimizer"])
        return optimizer

    def steps(self) -> dict[int, int]:
        """Returns how many optimizer steps each member has taken, by id."""
        return {slot.id: slot.step for slot in self._states.slots}

    def seen(self) -> dict[int, int]:
        """Returns how many batches each member has seen, by id: its steps, and those that its scaler skipped."""
        return {slot.id: slot.seen for slot in self._states.slots}

    def memory_bytes(self) -> int:
        """Returns the bytes of parameters, moments, buffers and gradients of all members."""
        return self._states.memory_bytes() + self._grads.numel() * self._grads.element_size()

    def _position(self, member: int | str) -> int:
        known: Sequence[int | str | None] = self.names if isinstance(member, str) else self.ids
        try:
            return known.index(member)
        except ValueError:
            raise FuseError(f"member {member} is not in the group; its members are {known}") from None

    def _state(self, position: int) -> checkpoint.State:
        return checkpoint.read(
            self._states,
            position,
            self._template,
            self._updates.parametrization,
            self._running.extra_state(self._states, position),
            self._running.recall.remembered(self._states.slots[position].id),
        )

    def _fresh(
        self, members: Sequence[Member], ids: Sequence[int], names: Sequence[str | None]
    ) -> MemberStates:
        slots = [
            Slot(id=number, name=name, member=one, scale=one.scaler.init_scale if one.scaler else 1.0)
            for number, name, one in zip(ids, names, members, strict=True)
        ]
        models = self._models.make(members, ids, self._template)
        kept = MOMENTS[self._optimizer]
        if self._optimizer == "sgd" and not needs_momentum(members):
            kept = ()
        device = next(self._template.parameters()).device
        return fresh(self._layout, models, slots, kept, device, like=self._template)

    def _hold(self, states: MemberStates) -> None:
        self._states = states
        self._grads = torch.zeros_like(states.rows)

    def _in_parts(self, buckets: Sequence[Bucket]) -> tuple[Tensor, list[frozenset[str]]]:
        """Runs buckets one after another; returns losses, and what each member did not use."""
        states, grads = self._states, self._grads
        unused: list[frozenset[str]] = [frozenset()] * len(states)
        losses = torch.zeros(len(states), dtype=torch.float32, device=states.rows.device)
        for bucket in buckets:
            at = list(bucket.positions)
            part = torch.zeros(len(at), self._layout.row, dtype=grads.dtype, device=grads.device)
            outcome = self._running.run(states, bucket, part)
            grads[at] = part
            losses = losses.to(outcome.losses.dtype)
            losses[at] = outcome.losses
            for position, none in zip(at, outcome.unused, strict=True):
                unused[position] = none
        return losses, unused


def _carried(slots: Sequence[Slot], states: Sequence[Mapping[str, Any]]) -> set[int]:
    """The members whose states hold what they remember."""
    return {slot.id for slot, state in zip(slots, states, strict=False) if "remembered" in state}
