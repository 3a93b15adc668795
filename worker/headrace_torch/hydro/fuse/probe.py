"""Decides how a group runs, by trying on the user's own model, batch and loss.

    equality     each engine against `reference`, plain torch, in float64 where only rounding differs: losses,
                 gradients, parameters and buffers of two steps within 1e-9 (or the rounding of the loss's own type,
                 if that is narrower); what raises is a gap, with the layer and the op in the reason
    stability    whether a member's numbers are bit-identical beside other members, in other numbers and places
    speed        forward and backward of all members, engines in turn, the best of some rounds

A fused engine is taken only where it is equal, and faster than separate members here and now. Where no engine is
equal the model is refused. Everything runs on copies; the user's batch, generators and Python state stay as they are.
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


def probe(
    subject: Subject, candidates: Sequence[Fused] = FUSED, *, rounds: int = 3
) -> tuple[Engine, ProbeReport]:
    """Tries the candidates and picks one, or the separate engine.

    Args:
        subject: the group.
        candidates: fused engines to try.
        rounds: of timing.

    Raises:
        FuseError: no engine computes what torch.optim would.
    """
    yardstick = measure(subject)
    gaps: dict[str, str] = {}
    errors: dict[str, float] = {}
    stable: dict[str, bool] = {}
    passed: list[Local] = []
    every: tuple[Local, ...] = (*candidates, "separate")
    for name in every:
        reason, error = compare(yardstick, name)
        if error is not None:
            errors[name] = error
        if reason:
            gaps[name] = reason
            continue
        if name != "separate":
            try:
                with subject.untouched() as copy:
                    stable[name] = bit_stable(copy.engine(name), copy.states, copy.work)
            except Exception as error:  # noqa: BLE001  a model may do something else in a later step
                gaps[name] = _later(error)
                continue
        passed.append(name)
    if not passed:
        raise FuseError(f"no engine trains this model as torch.optim would: {gaps['separate']}")
    if lost := yardstick.lost:
        reason = f"the loss of member {lost[0]} is nan at the first step, so nothing can be compared for it"
        passed, gaps = ["separate"], {**dict.fromkeys(candidates, reason), **gaps}
    found = ProbeReport(engine=passed[0], reason="", gaps=gaps, error=errors, bit_stable=stable)
    if "separate" not in passed:
        reason = f"separate members would differ: {gaps['separate']}"
        return subject.engine(passed[0]), replace(found, reason=reason)
    seconds: dict[Local, float] = {}
    if len(passed) > 1:
        with subject.untouched() as copy:
            engines = {name: copy.engine(name) for name in passed}
            seconds = timed(engines, copy.states, copy.work, rounds, gaps)
    if len(seconds) < 2:
        found = replace(found, engine="separate", reason=next(iter(gaps.values()), "asked for"))
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


def bit_stable(engine: Engine, states: MemberStates, work: Work) -> bool:
    """Whether members' losses and gradients are the same to the last bit in other numbers and at other places."""
    n = len(states)
    whole = list(range(n))
    alone = _run(engine, spread(states.slim(whole)), work, whole)
    for positions in {tuple(whole[::-1][: n - 1]), tuple(whole[1:]), (n - 1,), tuple(whole[::2])}:
        if not positions:
            continue
        part = replace(
            work,
            batch=[work.batch[i] for i in positions] if work.own else work.batch,
            rows=None if work.rows is None else tuple(work.rows[i] for i in positions),
        )
        found = _run(engine, spread(states.slim(whole)).slim(positions), part, list(range(len(positions))))
        if any(not same(a[list(positions)], b) for a, b in zip(alone, found, strict=True)):
            return False
    return True


def _run(engine: Engine, states: MemberStates, work: Work, at: Sequence[int]) -> tuple[Tensor, Tensor]:
    grads = torch.zeros_like(states.rows)
    return engine.run(states, at, work, grads).losses, grads


def timed(
    engines: Mapping[Local, Engine], states: MemberStates, work: Work, rounds: int, gaps: dict[str, str]
) -> dict[Local, float]:
    """Seconds of one forward and backward of all members, per engine: in turn, the best of some rounds.

    Where one thread does everything its own time is taken, which other processes on the machine do not lengthen.
    A fused engine that raises is left out, and `gaps` says why.
    """
    whole = list(range(len(states)))
    trial = states.slim(whole)
    grads = torch.zeros_like(states.rows)
    clock = (
        time.thread_time
        if torch.get_num_threads() == 1 and states.rows.device.type == "cpu"
        else time.perf_counter
    )
    best = dict.fromkeys(engines, float("inf"))
    for turn in range(rounds + 1):
        for name in list(best):
            _wait(states.rows.device)
            start = clock()
            try:
                engines[name].run(trial, whole, work, grads)
            except Exception as error:
                if name == "separate":
                    raise
                gaps[name] = _later(error)
                del best[name]
                continue
            _wait(states.rows.device)
            if turn > 0:  # the first round warms up
                best[name] = min(best[name], clock() - start)
    return best


def _later(error: Exception) -> str:
    return f"a later step could not be fused: {error}".partition("\n")[0]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
