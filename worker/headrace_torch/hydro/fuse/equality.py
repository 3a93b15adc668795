"""Whether an engine computes what the user's own module does under torch.optim.

Two members, or three of different kinds, take two steps in `reference`, and in the engine: losses, gradients, which
parameters have one, parameters and buffers are compared, in float64 where only rounding differs. Everything runs on
copies.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from headrace_torch.hydro.fuse import reference
from headrace_torch.hydro.fuse.engines.separate import SeparateEngine
from headrace_torch.hydro.fuse.engines.stacked import StackedEngine
from headrace_torch.hydro.fuse.engines.work import Engine, Traits, Turn, Work, copied, free
from headrace_torch.hydro.fuse.errors import FuseError
from headrace_torch.hydro.fuse.inspection import Watch, reason_of, same
from headrace_torch.hydro.fuse.lanes import kept_tensors
from headrace_torch.hydro.fuse.member import FIELDS, Member
from headrace_torch.hydro.fuse.obstacles import Need, why_not
from headrace_torch.hydro.fuse.reach import Owned, Roots
from headrace_torch.hydro.fuse.remembering import Memory
from headrace_torch.hydro.fuse.states import MOMENTS, MemberStates
from headrace_torch.hydro.fuse.surroundings import roots_of, untouched
from headrace_torch.hydro.fuse.twin import cast, twin
from headrace_torch.hydro.fuse.updates import Updates

STEPS = 2  # the second sees what the first has left: moments, buffers, attributes
TOLERANCE = 1e-9
# After an update: Adam divides by a gradient's size. A gradient that is only rounding, such as that of a bias in
# front of a norm, moves its parameter by rounding times rate over ε.
AFTER_UPDATE = 1e-6
# If the loss itself casts to a narrower type, as `.float()` after an autocast does, it rounds in float64 runs too:
# this many units in the last place of that type count as rounding.
ROUNDING = 32
SPREAD = 0.01  # probe members' parameters differ by this factor, so that mixing them up shows
NATIVE = 1e-4  # the tolerance for a model that cannot run in float64
UPDATED = "parameters after a step"
Local = Literal["grouped", "vmap", "separate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is tested: a group at its first step.

    Attributes:
        template: the model.
        own: makes a member's own module.
        traits: from `inspect`.
        states: the members; not changed.
        work: the first step's work, for all members.
        updates: the group's optimizer.
        roots: where the code of a step starts.
        turn: the context of members' calls.
        owns: receives the modules of separate members.
    """

    template: nn.Module
    own: Callable[[Member], nn.Module]
    traits: Traits
    states: MemberStates
    work: Work
    updates: Updates
    roots: Roots
    turn: Turn = free
    owns: Callable[[int, nn.Module], None] | None = None

    def engine(self, name: Local) -> Engine:
        """Makes an engine that runs in this process."""
        if name == "separate":
            return SeparateEngine(self.own, self.traits, self.turn, self.owns)
        return StackedEngine(twin(self.template), self.traits, grouped=name == "grouped", turn=self.turn)

    @contextmanager
    def untouched(self) -> Iterator["Subject"]:
        """The same with a batch that may be changed; what the user's functions change is restored afterwards."""
        with untouched(self.roots):
            work = replace(self.work, batch=copied(self.work.batch))
            yield replace(self, work=work, turn=free, owns=None)

    def small(self, dtype: torch.dtype) -> "Subject":
        """The same for two or three members, moved apart, in another dtype."""
        some = telling([slot.member for slot in self.states.slots])
        work, template = self.work, cast(twin(self.template), dtype)
        return replace(
            self,
            template=template,
            roots=roots_of(work.loss_fn, template),
            own=lambda member: cast(self.own(member), dtype),
            states=spread(_at_start(self.states.select(some).cast(dtype))),
            work=replace(
                work,
                batch=_cast([work.batch[i] for i in some] if work.own else work.batch, dtype),
                rows=None if work.rows is None else tuple(work.rows[i] for i in some),
            ),
        )


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Two steps of two or three members under torch.optim, and the subject that they belong to."""

    subject: Subject
    members: Sequence[Sequence[reference.Step]]
    tolerance: float
    exact: bool

    @property
    def lost(self) -> list[int]:
        """Members whose first loss is NaN, by id: what equals NaN is unknown."""
        return [
            slot.id
            for slot, steps in zip(self.subject.states.slots, self.members, strict=True)
            if steps[0].loss.isnan()
        ]


def measure(subject: Subject) -> Yardstick:
    """Runs the reference: in float64, or in the model's own type if it cannot run in float64.

    Raises:
        FuseError: the forward pass changes a batch that members share, and each member changes it differently.
    """
    native = subject.states.layout.dtype
    try:
        return _measured(subject.small(torch.float64), exact=True)
    except FuseError:
        raise
    except Exception:
        if native == torch.float64:
            raise
        return _measured(subject.small(native), exact=False)


def _measured(small: Subject, *, exact: bool) -> Yardstick:
    members, left = [], []
    for position, slot in enumerate(small.states.slots):
        with small.untouched() as one:
            works = [one.work] * STEPS
            module = one.own(slot.member)
            members.append(
                reference.train(module, one.states, position, works, one.traits, one.updates.parametrization)
            )
            left.append(tree_leaves(reference.batch_of(one.work, position)))
    if Need.BATCH in small.traits.needs and not small.work.own:
        for other in left[1:]:
            if any(isinstance(a, Tensor) and not same(a, b) for a, b in zip(left[0], other, strict=True)):
                raise FuseError(
                    "the forward pass changes its batch in place, and each member in another way, so they cannot "
                    "share it: let it change a copy (x = x.clone()), or give each its own with hydro.PerMember"
                )
    dtype = members[0][0].loss.dtype
    tolerance = TOLERANCE if dtype == torch.float64 else ROUNDING * torch.finfo(dtype).eps
    return Yardstick(small, members, tolerance if exact else NATIVE, exact)


def compare(yardstick: Yardstick, name: Local) -> tuple[str, float | None]:
    """Runs an engine for the reference's steps.

    Returns:
        Why the engine must not be used, or an empty string; and the largest relative difference, if it ran.
    """
    small = yardstick.subject
    if reason := why_not(name, small.traits.needs):
        return reason, None
    with small.untouched() as one:
        states = one.states.select(range(len(one.states)))
        states.moments = {key: torch.zeros_like(states.rows) for key in MOMENTS[one.updates.optimizer]}
        memory = None
        if name == "separate" and Need.RECORD in one.traits.needs:
            memory = Memory(owned := Owned())
            one = replace(one, turn=memory.turn, owns=lambda _, module: owned.add(module))
        engine = one.engine(name)
        watch = Watch(engine.module if isinstance(engine, StackedEngine) else one.template)
        ops = watch if isinstance(engine, StackedEngine) else nullcontext()  # inspecting every op is slow
        worst = 0.0
        for step in range(STEPS):
            grads = torch.zeros_like(states.rows)
            if memory is not None:
                memory.begin(one.roots)
            try:
                with ops, watch.layers(), _leaks(engine) as leaked:
                    outcome = engine.run(states, range(len(states)), one.work, grads)
            except Exception as error:  # noqa: BLE001  whatever an op raises under vmap is the reason
                return reason_of(error, watch, one.traits), None
            if leaked:
                return leaked[0], None
            if memory is not None:
                memory.end([slot.id for slot in states.slots])
            found = grads.clone()
            one.updates.apply(states, grads, outcome.unused)
            theirs = [member[step] for member in yardstick.members]
            for what, a, b in _pairs(theirs, states, outcome.losses, found, outcome.unused, yardstick.exact):
                if isinstance(a, str) or isinstance(b, str):
                    return f"{what} {b}, and under torch.optim it {a}", worst
                apart = relative(a, b)
                worst = max(worst, apart) if not (step or what == UPDATED) else worst
                updated = step > 0 or what == UPDATED
                tolerance = max(yardstick.tolerance, AFTER_UPDATE) if updated else yardstick.tolerance
                if not apart <= tolerance:
                    return _difference(what, a, b, apart, len(states), tolerance), apart
    return "", worst


def _pairs(
    theirs: Sequence[reference.Step],
    states: MemberStates,
    losses: Tensor,
    grads: Tensor,
    unused: Sequence[frozenset[str]],
    exact: bool,
) -> Iterator[tuple[str, Any, Any]]:
    """What is compared after a step, for the reference and for the engine."""
    yield "loss", torch.stack([one.loss for one in theirs]), losses
    expected = torch.zeros_like(grads)
    for row, one, none in zip(expected, theirs, unused, strict=True):
        for name, view in states.layout.of_row(row).items():
            gradient = one.gradients[name]
            if (gradient is None) != (name in none):
                has = ("has a gradient", "has none")
                yield f"parameter {name}", has[gradient is None], has[name in none]
            if gradient is not None:
                view.copy_(gradient)
    yield "gradient", expected, grads
    if exact:
        after = torch.zeros_like(states.rows)
        for row, one in zip(after, theirs, strict=True):
            for name, view in states.layout.of_row(row).items():
                view.copy_(one.tensors[name])
        yield UPDATED, after, states.rows
    for name, value in states.buffers.items():
        yield f"buffer {name}", torch.stack([one.tensors[name] for one in theirs]), value


@contextmanager
def _leaks(engine: Engine) -> Iterator[list[str]]:
    """Says whether tensors of all members outlive a fused pass: the loss then keeps what has a meaning only inside
    it."""
    found: list[str] = []
    if not isinstance(engine, StackedEngine):
        yield found
        return
    before = [(one, dict(vars(one))) for one in engine.module.modules()]
    with kept_tensors() as kept:
        yield found
    for one, held in before:  # what the engine's copy of the module keeps is its own, and nobody reads it
        vars(one).clear()
        vars(one).update(held)
    if any(one() is not None for one in kept):
        gc.collect()
        if any(one() is not None for one in kept):
            found.append(
                "the loss keeps a tensor after the step, and in a fused pass that is one of all members at once: "
                "compute metrics after the step, with group.member_model(i)"
            )


def relative(expected: Tensor, found: Tensor) -> float:
    """The largest difference over members, relative to the member's largest number; infinite for a stray NaN."""
    a = expected.to(torch.float64).reshape(expected.shape[0], -1)
    b = found.to(torch.float64).reshape(found.shape[0], -1)
    if not a.numel() or torch.equal(a, b):
        return 0.0
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    size = a.nan_to_num().abs().amax(1).clamp_min(torch.finfo(torch.float64).tiny)
    return float(((a - b).nan_to_num().abs().amax(1) / size).max())


def _difference(
    what: str, expected: Tensor, found: Tensor, error: float, members: int, tolerance: float
) -> str:
    if what == "gradient" and members > 1 and relative(expected / members, found) <= tolerance:
        return (
            f"each member's gradient is 1/{members} of its own: the loss is a mean over members, "
            "and must be their sum"
        )
    kind = str(expected.dtype).removeprefix("torch.")
    return f"the {what} differs from torch.optim's by {error:.1e}, relative, in {kind}"


def _cast(batch: Any, dtype: torch.dtype) -> Any:
    return tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, batch
    )


def telling(members: Sequence[Member]) -> list[int]:
    """Positions of the members that are compared: the first, and others that are trained differently.

    Two members show whether members are mixed up. A third is added if there are more kinds of training: with and
    without a clip, a schedule, momentum. Members whose settings differ only in their numbers are of the same kind.
    """
    first_of = {_kind(one): i for i, one in reversed(list(enumerate(members)))}
    others = [*sorted(first_of.values())[1:], *range(1, len(members))]
    return sorted({0, *others[: max(1, min(2, len(first_of) - 1))]})


def _kind(member: Member) -> tuple[Any, ...]:
    values = {name: getattr(member, name) for name in FIELDS if name != "seed"}
    return tuple(repr(one) if isinstance(one, Mapping) else (type(one), bool(one)) for one in values.values())


def spread(states: MemberStates) -> MemberStates:
    """Moves members' parameters apart by a deterministic factor near 1; changes and returns `states`."""
    n = len(states)
    pattern = torch.arange(states.layout.row, device=states.rows.device) % 7 - 3
    for i in range(n):
        states.rows[i].mul_(1 + SPREAD * (i + 1) / n * pattern.to(states.rows.dtype) / 3)
    return states


def _at_start(states: MemberStates) -> MemberStates:
    """Sets the counters to those of a first step, without a scaler, whose factor only rounds; changes `states`."""
    states.slots = [
        replace(slot, step=0, skipped={}, scale=1.0, member=replace(slot.member, scaler=None))
        for slot in states.slots
    ]
    return states
