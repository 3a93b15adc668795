"""Speed by device type, learned from reports: seconds of training per step.

A study sums steps and seconds for each kind of grant (device model, interconnect of a gang's slots, number of
slots, share of each). A trial keeps its own sums too, since configurations differ in how much they gain from a
faster device. A prediction uses, in order of preference, the trial's own measurement, its measurement on another
kind scaled by the study's ratio, or the study's mean.

The fast device goes to the trial with the comparative advantage. If others wait too, a trial prefers the type on
which it does best relative to them, so the fast devices go to the trials that gain most from them. If it is alone,
it prefers the fastest.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import log

from headrace_services.scheduler.core.placement.joints import choose, kind_of, kinds
from headrace_services.scheduler.core.placement.values import Request
from headrace_services.scheduler.core.records import Slot

Sums = Mapping[str, tuple[float, float]]
"""Steps and seconds by kind of grant."""
_ALIKE = 0.05
"""Advantages that differ by less than this on a log scale count as equal."""


def grant_kind(model: str, slots: int, milli: int) -> str:
    """Name a kind of grant, such as `H200`, `H200 (NVLink) x4` or `H200 /250`."""
    whole = f"{model} x{slots}" if slots > 1 else model
    return whole if milli == 1000 else f"{whole} /{milli}"


def learn(sums: Sums, kind: str, steps: float, seconds: float) -> dict[str, tuple[float, float]]:
    """Add a measurement. Recent ones count more: the sums are halved whenever they pass 1000 steps."""
    known, took = sums.get(kind, (0.0, 0.0))
    known, took = known + steps, took + seconds
    if known > 1000:
        known, took = known / 2, took / 2
    return {**sums, kind: (known, took)}


def step_s(kind: str, study: Sums, trial: Sums) -> float | None:
    """Predict seconds per step on a kind of grant, or None if nothing was measured."""
    if kind in trial:
        return _mean(trial[kind])
    if kind not in study:
        return None
    known = [other for other in trial if other in study and _mean(study[other]) > 0]
    if not known:
        return _mean(study[kind])
    ratio = sum(_mean(trial[other]) / _mean(study[other]) for other in known) / len(known)
    return _mean(study[kind]) * ratio


def run_s(models: Iterable[str], request: Request, steps: int, study: Sums, trial: Sums) -> dict[str, float]:
    """Predict by device model how long `steps` steps take; models without a measurement are missing."""
    found = {}
    for model in models:
        per_step = step_s(grant_kind(model, request.slots, request.milli), study, trial)
        if per_step is not None:
            found[model] = per_step * steps
    return found


def guessed(times: Mapping[str, float], free: Iterable[Slot]) -> dict[str, float]:
    """Add a guess for the interconnects of a model that were not measured: the slowest of those that were. So a
    gang's preference among device types does not wait until each was tried with each interconnect."""
    found = dict(times)
    for model in {slot.model for slot in free if slot.links}:
        known = [times[each] for each in kinds(model) if each in times]
        if known:
            found |= {each: max(known) for each in kinds(model) if each not in times}
    return found


def preference(own: Mapping[str, float], others: Mapping[str, float], models: set[str]) -> dict[str, float]:
    """Rank device models for a trial: the lowest is the best. Empty if a model was not measured yet.

    `own` and `others` are predicted times, by model: the trial's, and the mean of those that wait at the same
    time.
    """
    if len(models) < 2 or any(own.get(model, 0.0) <= 0 for model in models):
        return {}
    advantage = dict.fromkeys(models, 0.0)
    if all(others.get(model, 0.0) > 0 for model in models):
        advantage = {model: log(own[model] / others[model]) for model in models}
        least = min(advantage.values())
        if max(advantage.values()) - least < _ALIKE:
            advantage = dict.fromkeys(models, 0.0)
    ranked = sorted(models, key=lambda model: (advantage[model], own[model], model))
    return {model: float(place) for place, model in enumerate(ranked)}


def kinds_of(slots: Iterable[Slot], request: Request) -> set[str]:
    """What a trial could run on among free slots: device models and, for a gang, the best interconnect of each."""
    if request.slots == 1:
        return {slot.model for slot in slots}
    found, joined = set[str](), defaultdict[int, list[Slot]](list)
    for slot in slots:
        if not slot.links:
            found.add(slot.model)
        elif slot.free_milli >= request.milli:
            joined[slot.worker_id].append(slot)
    fitting = (here for here in joined.values() if len(here) >= request.slots)
    return found | {kind_of(choose(here, request.slots)) for here in fitting}


def all_kinds(found: Iterable[Slot]) -> set[str]:
    """The device models among slots, with every possible interconnect of gangs on them if that is known."""
    slots = list(found)
    return {slot.model for slot in slots} | {
        each for model in {slot.model for slot in slots if slot.links} for each in kinds(model)
    }


def _mean(sums: tuple[float, float]) -> float:
    return sums[1] / sums[0] if sums[0] else 0.0
