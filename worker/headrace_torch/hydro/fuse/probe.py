"""Decides how a group runs, by trying the user's own model, batch and loss.

    equality     each engine against `reference`, plain torch, in float64 where only rounding differs: losses,
                 gradients, parameters and buffers of two steps within 1e-9 (or the rounding of the loss's own type,
                 if that is narrower); an error is a gap, with the layer and the op in the reason
    speed        forward and backward passes of all members, engines in turn, the best of some rounds
    stability    of `grouped` and of the fastest fused engine: whether a member's numbers are bit-identical next to
                 different members, in other numbers and places

A fused engine is used only if it is equal, and faster than separate members here and now. If no engine is equal,
the model is rejected. Everything runs on copies; the user's batch, generators and Python state stay as they are.

This is most of a first step. So only what the choice requires is run: a few of the separate members are timed,
since each costs the same, and an engine that is far behind is not timed further.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from headrace_torch.hydro.fuse.engines.work import Engine, Work
from headrace_torch.hydro.fuse.equality import Local, Subject, compare, measure, spread
from headrace_torch.hydro.fuse.errors import FuseError
from headrace_torch.hydro.fuse.inspection import same
from headrace_torch.hydro.fuse.report import ProbeReport
from headrace_torch.hydro.fuse.states import MemberStates

Fused = Literal["grouped", "vmap"]
FUSED: tuple[Fused, ...] = ("grouped", "vmap")
FEW = 2  # this many of the separate members are timed
FAR = (1.3, 1.1)  # after a first and a later round: an engine this many times slower than the quickest is out


def probe(
    subject: Subject, candidates: Sequence[Fused] = FUSED, *, rounds: int = 3
) -> tuple[Engine, ProbeReport]:
    """Tries the candidates and picks one, or the separate engine.

    Args:
        subject: the group.
        candidates: fused engines to try.
        rounds: rounds of timing.

    Raises:
        FuseError: no engine computes what torch.optim would.
    """
    yardstick = measure(subject)
    gaps: dict[str, str] = {}
    errors: dict[str, float] = {}
    passed: list[Local] = []
    every: tuple[Local, ...] = (*candidates, "separate")
    for name in every:
        reason, error = compare(yardstick, name)
        if error is not None:
            errors[name] = error
        if reason:
            gaps[name] = reason
            continue
        passed.append(name)
    if not passed:
        raise FuseError(f"no engine trains this model as torch.optim would: {gaps['separate']}")
    if lost := yardstick.lost:
        reason = f"the loss of member {lost[0]} is nan at the first step, so nothing can be compared for it"
        passed, gaps = ["separate"], {**dict.fromkeys(candidates, reason), **gaps}
    seconds, stable = _tried(subject, passed, rounds, gaps)
    found = ProbeReport(engine="separate", reason="", gaps=gaps, error=errors, bit_stable=stable)
    if "separate" not in passed:
        if not seconds:
            raise FuseError(f"no engine trains this model as torch.optim would: {gaps['separate']}")
        fastest = min(seconds, key=seconds.__getitem__)
        reason = f"separate members would differ: {gaps['separate']}"
        return subject.engine(fastest), replace(found, engine=fastest, reason=reason)
    if len(seconds) < 2:
        found = replace(found, reason=next(iter(gaps.values()), "asked for"))
        return subject.engine("separate"), found
    speedup = {name: seconds["separate"] / seconds[name] for name in seconds if name != "separate"}
    best = max(speedup, key=speedup.__getitem__)
    chosen: Local = best if speedup[best] > 1 else "separate"
    reason = (
        f"{best} runs {len(subject.states)} members {speedup[best]:.2f} times as fast as one after the other"
    )
    if chosen != best:
        reason += ", so they run separately"
    speeds = {str(name): value for name, value in speedup.items()}
    return subject.engine(chosen), replace(found, engine=chosen, reason=reason, speedup=speeds)


def _tried(
    subject: Subject, passed: Sequence[Local], rounds: int, gaps: dict[str, str]
) -> tuple[dict[Local, float], dict[str, bool]]:
    """Seconds per engine, if there is a fused one; and whether the fastest of these is stable, and `grouped`,
    whose bits are promised.

    A fused engine that raises is left out, and `gaps` says why: a model may do something else in a later step.
    """
    if passed == ["separate"]:
        return {}, {}
    with subject.untouched() as copy:
        engines = {name: copy.engine(name) for name in passed}
        seconds = timed(engines, copy.states, copy.work, rounds, gaps)
    stable: dict[str, bool] = {}
    for name in sorted(seconds.keys() - {"separate"}, key=seconds.__getitem__):
        if stable and name != "grouped":
            continue
        try:
            with subject.untouched() as copy:
                stable[name] = bit_stable(engines[name], copy.states, copy.work)
        except Exception as error:  # noqa: BLE001  whatever the user's code raises in a later step is the reason
            gaps[name] = _later(error)
            del seconds[name]
    return seconds, stable


def bit_stable(engine: Engine, states: MemberStates, work: Work) -> bool:
    """Whether members' losses and gradients are the same to the last bit in other numbers and at other places."""
    n = len(states)
    apart = spread(states.slim(range(n)))
    alone = _run(engine, apart, work)
    for positions in {tuple(range(n - 1, 0, -1)), (n - 1,), tuple(range(0, n, 2))}:
        if not positions:
            continue
        found = _run(engine, apart.select(positions), _part(work, positions))
        if any(not same(a[list(positions)], b) for a, b in zip(alone, found, strict=True)):
            return False
    return True


def _run(engine: Engine, states: MemberStates, work: Work) -> tuple[Tensor, Tensor]:
    grads = torch.zeros_like(states.rows)
    return engine.run(states, range(len(states)), work, grads).losses, grads


def _part(work: Work, positions: Sequence[int]) -> Work:
    """The work for some members."""
    return replace(
        work,
        batch=[work.batch[i] for i in positions] if work.own else work.batch,
        rows=None if work.rows is None else tuple(work.rows[i] for i in positions),
    )


def timed(
    engines: Mapping[Local, Engine], states: MemberStates, work: Work, rounds: int, gaps: dict[str, str]
) -> dict[Local, float]:
    """Seconds of one forward and backward of all members, per engine: in turn, the best of some rounds.

    Only a FEW of the separate members are run; each of the others is assumed to cost the same. An engine that
    takes FAR times as long as the quickest one is out, and a single remaining one is not timed further. If one
    thread does everything, its CPU time is used, which other processes on the machine do not lengthen. A fused
    engine that raises is left out, and `gaps` says why.
    """
    n = len(states)
    trial = states.slim(range(n))
    grads = torch.zeros_like(states.rows)
    clock = (
        time.thread_time
        if torch.get_num_threads() == 1 and states.rows.device.type == "cpu"
        else time.perf_counter
    )
    best = dict.fromkeys(engines, float("inf"))
    for turn in range(rounds + 1):
        going = list(best)
        if turn > 1:
            bound = FAR[turn > 2] * min(best.values())
            going = [name for name in best if best[name] < bound]
        if len(going) < 2:
            break
        for name in going:
            some = range(min(n, FEW)) if name == "separate" else range(n)
            part = _part(work, some)
            _wait(states.rows.device)
            start = clock()
            try:
                engines[name].run(trial, some, part, grads[: len(some)])
            except Exception as error:
                if name == "separate":
                    raise
                gaps[name] = _later(error)
                del best[name]
                continue
            _wait(states.rows.device)
            if turn > 0:  # the first round warms up
                best[name] = min(best[name], (clock() - start) * n / len(some))
    return best


def _later(error: Exception) -> str:
    return f"a later step could not be fused: {error}".partition("\n")[0]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
