"""Decides how a group runs, by trying on the user's own model, batch and loss.

    equality     each fused engine against separate members in float64, where only rounding differs: losses,
                 gradients and buffers within 1e-9 (or the rounding of the loss's own type, if that is
                 narrower); what raises is a gap, with the layer and the op in the reason
    stability    whether a member's numbers are bit-identical beside other members, in other numbers and places
    speed        forward and backward of all members, engines in turn, the best of some rounds

A fused engine is taken only where it is faster than separate members here and now; so fusing never costs.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from headrace_torch.hydro.fuse.engines.separate import SeparateEngine
from headrace_torch.hydro.fuse.engines.stacked import StackedEngine
from headrace_torch.hydro.fuse.engines.work import Engine, EngineName, Traits, Work
from headrace_torch.hydro.fuse.inspection import Watch, reason_of
from headrace_torch.hydro.fuse.states import MemberStates

TOLERANCE = 1e-9
# Where the loss casts to a narrower type by itself, as `.float()` after an autocast does, it rounds in float64 runs
# too: so many units in the last place of that type are rounding.
ROUNDING = 32
SPREAD = 0.01  # probe members' parameters differ by this much, so that mixing them up shows
Fused = Literal["grouped", "vmap"]
FUSED: tuple[Fused, ...] = ("grouped", "vmap")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What the probe found.

    Attributes:
        engine: what the group runs on.
        reason: why, in one sentence.
        gaps: for engines that cannot run this model or are not equal, why not.
        error: the greatest relative difference from separate members in float64, per engine that ran.
        speedup: separate members' time over the engine's, per engine that was timed.
        bit_stable: per engine that was tried, whether drop and repack change no bit of the survivors.
    """

    engine: EngineName
    reason: str
    gaps: Mapping[str, str] = field(default_factory=dict)
    error: Mapping[str, float] = field(default_factory=dict)
    speedup: Mapping[str, float] = field(default_factory=dict)
    bit_stable: Mapping[str, bool] = field(default_factory=dict)


def stacked_engine(model: nn.Module, traits: Traits, name: Fused) -> StackedEngine:
    """Makes one of the two engines over `torch.vmap` with a copy of the model."""
    return StackedEngine(copy.deepcopy(model), traits, grouped=name == "grouped")


def probe(
    model: nn.Module,
    traits: Traits,
    states: MemberStates,
    work: Work,
    candidates: Sequence[Fused] = FUSED,
    *,
    rounds: int = 3,
) -> tuple[Engine, ProbeReport]:
    """Tries the candidates and picks one, or the separate engine.

    Args:
        model: the template.
        traits: from `inspect`.
        states: the members; not changed.
        work: the first step's, for all members.
        candidates: fused engines to try.
        rounds: of timing.
    """
    gaps: dict[str, str] = {}
    errors: dict[str, float] = {}
    stable: dict[str, bool] = {}
    engines: dict[str, Engine] = {"separate": SeparateEngine(model, traits)}
    for name in candidates:
        engine = stacked_engine(model, traits, name)
        reason, error = compare(model, traits, states, work, engine)
        if error is not None:
            errors[name] = error
        if reason:
            gaps[name] = reason
            continue
        stable[name] = bit_stable(engine, states, work)
        engines[name] = engine
    if len(engines) == 1:
        return engines["separate"], ProbeReport(
            engine="separate", reason=next(iter(gaps.values()), "asked for"), gaps=gaps, error=errors
        )
    seconds = timed(list(engines.values()), states, work, rounds)
    speedup = {
        name: seconds[0] / taken for name, taken in zip(engines, seconds, strict=True) if name != "separate"
    }
    best = max(speedup, key=speedup.__getitem__)
    chosen = best if speedup[best] > 1 else "separate"
    reason = f"{best} runs {len(states)} members {speedup[best]:.2f} times as fast as one after the other" + (
        "" if chosen == best else ", so they run separately"
    )
    return engines[chosen], ProbeReport(
        engine=engines[chosen].name,
        reason=reason,
        gaps=gaps,
        error=errors,
        speedup=speedup,
        bit_stable=stable,
    )


def compare(
    model: nn.Module, traits: Traits, states: MemberStates, work: Work, engine: Engine
) -> tuple[str, float | None]:
    """Runs an engine and separate members in float64 on up to three members.

    Returns:
        Why the engine must not be used, or an empty string; and the greatest relative difference, if it ran.
    """
    double = torch.float64
    some = list(range(min(3, len(states))))
    exact = copy.deepcopy(model).to(double)
    small = _spread(states.slim(some).cast(double))
    part = replace(
        work,
        batch=_cast(work.batch[: len(some)] if work.own else work.batch, double),
        rows=None if work.rows is None else work.rows[: len(some)],
    )
    reference, subject = small.slim(some), small.slim(some)
    expected = torch.zeros_like(reference.rows)
    found = torch.zeros_like(subject.rows)
    base = SeparateEngine(exact, traits).run(reference, some, part, expected)
    trial = engine.fresh(exact)
    watch = Watch(trial.model)
    try:
        with watch, watch.layers():
            ours = trial.run(subject, some, part, found)
    except Exception as error:  # noqa: BLE001  whatever an op raises under vmap is the reason that is reported
        return reason_of(error, watch, traits), None
    tolerance = _tolerance(base.losses.dtype)
    pairs = [("loss", base.losses, ours.losses), ("gradient", expected, found)]
    pairs += [(f"buffer {name}", reference.buffers[name], subject.buffers[name]) for name in traits.mutable]
    worst = 0.0
    for what, a, b in pairs:
        apart = relative(a, b)
        worst = max(worst, apart)
        if not apart <= tolerance:
            return _difference(what, a, b, apart, len(some), tolerance), apart
    return "", worst


def _tolerance(dtype: torch.dtype) -> float:
    return TOLERANCE if dtype == torch.float64 else ROUNDING * torch.finfo(dtype).eps


def relative(expected: Tensor, found: Tensor) -> float:
    """The greatest difference over members, relative to the member's greatest number; infinite for a stray NaN."""
    a = expected.to(torch.float64).reshape(expected.shape[0], -1)
    b = found.to(torch.float64).reshape(found.shape[0], -1)
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
    return f"the {what} differs from that of separate members by {error:.1e}, relative, in float64"


def bit_stable(engine: Engine, states: MemberStates, work: Work) -> bool:
    """Whether members' losses and gradients are the same to the last bit in other numbers and at other places."""
    n = len(states)
    whole = list(range(n))
    reference = _run(engine, _spread(states.slim(whole)), work, whole)
    for positions in {tuple(whole[::-1][: n - 1]), tuple(whole[1:]), (n - 1,), tuple(whole[::2])}:
        if not positions:
            continue
        part = replace(
            work,
            batch=[work.batch[i] for i in positions] if work.own else work.batch,
            rows=None if work.rows is None else tuple(work.rows[i] for i in positions),
        )
        found = _run(engine, _spread(states.slim(whole)).slim(positions), part, list(range(len(positions))))
        if any(not _same(a[list(positions)], b) for a, b in zip(reference, found, strict=True)):
            return False
    return True


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())


def _run(engine: Engine, states: MemberStates, work: Work, at: Sequence[int]) -> tuple[Tensor, Tensor]:
    grads = torch.zeros_like(states.rows)
    return engine.run(states, at, work, grads).losses, grads


def timed(engines: Sequence[Engine], states: MemberStates, work: Work, rounds: int) -> list[float]:
    """Seconds of one forward and backward of all members, per engine: in turn, the best of some rounds.

    Where one thread does everything its own time is taken, which other processes on the machine do not lengthen.
    """
    whole = list(range(len(states)))
    trial = states.slim(whole)
    grads = torch.zeros_like(states.rows)
    alone = torch.get_num_threads() == 1 and all(one.name != "pool" for one in engines)
    clock = time.thread_time if alone and states.rows.device.type == "cpu" else time.perf_counter
    best = [float("inf")] * len(engines)
    for turn in range(rounds + 1):
        for i, engine in enumerate(engines):
            _wait(states.rows.device)
            start = clock()
            engine.run(trial, whole, work, grads)
            _wait(states.rows.device)
            if turn > 0:  # the first round warms up
                best[i] = min(best[i], clock() - start)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _cast(batch: Any, dtype: torch.dtype) -> Any:
    return tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, batch
    )


def _spread(states: MemberStates) -> MemberStates:
    """Moves members' parameters apart by a deterministic factor near 1; changes and returns `states`."""
    n = len(states)
    pattern = torch.arange(states.layout.row, device=states.rows.device) % 7 - 3
    for i in range(n):
        states.rows[i].mul_(1 + SPREAD * (i + 1) / n * pattern.to(states.rows.dtype) / 3)
    return states
