"""Where a trained state comes from: in population-based training, a chain of trials that copied one another.

The result of a population is a *schedule*: the parameters that its best state was trained with, and when. It is
traced back from the trial that holds the state, through the donor of its last exploit, to a trial that started
from scratch.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.client.model import TrialInfo
from headrace.spec import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The steps after `start` up to `end` of a schedule, trained by `trial` with `params`."""

    start: int
    end: int
    trial: int
    params: Mapping[str, Value]
    code_changed: tuple[str, ...] = ()
    """The source files that differed from the study's first code while some of these steps were trained."""


def schedule(trials: Mapping[int, TrialInfo], number: int, *, at: int | None = None) -> list[Stretch]:
    """The stretches that led to a trial's state at a step (None: now), first to last; only one if it never copied.

    The list starts late if a trial that it copied is not among `trials`. Raises KeyError if the trial itself is
    not.
    """
    stretches: list[Stretch] = []
    trial = trials[number]
    later = next((exploit for exploit in trial.lineage if at is not None and exploit.step >= at), None)
    end, rung = trial.step if at is None else at, later.rung if later is not None else None
    while True:
        before = [exploit for exploit in trial.lineage if rung is None or exploit.rung < rung]
        after = [exploit for exploit in trial.lineage if rung is not None and exploit.rung >= rung]
        start = before[-1].step if before else 0
        params = after[0].previous_params if after else trial.last_params
        stretches.append(
            Stretch(
                start=start,
                end=end,
                trial=trial.number,
                params=params,
                code_changed=_changed(trials[number], trial.number, start, end),
            )
        )
        donor = trials.get(before[-1].donor) if before else None
        if donor is None:
            return stretches[::-1]
        end, rung, trial = start, before[-1].rung, donor


def own_stretches(trial: TrialInfo) -> Iterator[Stretch]:
    """The stretches that a member trained itself, from each copy to the next."""
    start, params = 0, trial.lineage[0].previous_params if trial.lineage else trial.params
    for copied in trial.lineage:
        yield Stretch(start=start, end=copied.step, trial=trial.number, params=params)
        start, params = copied.step, copied.params
    yield Stretch(start=start, end=max(trial.step, start), trial=trial.number, params=params)


def changes(members: Iterable[TrialInfo], name: str) -> bool:
    """Whether a parameter changed when a member copied another."""
    return any(
        copied.params.get(name) != copied.previous_params.get(name)
        for trial in members
        for copied in trial.lineage
    )


def _changed(trial: TrialInfo, trainer: int, start: int, end: int) -> tuple[str, ...]:
    """The changed source files that a trial ran while it trained these steps of a state."""
    found = (
        one
        for one in trial.other_code
        if one.trial == trainer and one.first_step <= end and one.last_step > start
    )
    return tuple(dict.fromkeys(file for one in found for file in one.files))
