"""Read the data for one proposal, and find what its process does not know yet."""

from collections import Counter
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import StudySpec
from headrace.spec.space import admitted, assignment_problems
from headrace_services.scheduler.core.records import Proposal, Study
from headrace_services.scheduler.samplers.history import (
    EVERY_RUNG,
    FIRST_RESULT,
    Result,
    choose_level,
    told_levels,
)
from headrace_services.scheduler.samplers.protocol import Suggestion
from headrace_services.scheduler.store import proposals
from headrace_services.scheduler.suggesting.pool import Learnt
from headrace_services.scheduler.suggesting.process import Model, Question

_EARLIER_AT_MOST = 10_000
"""How many trials of an earlier study are read."""


@dataclass(slots=True)
class Levels:
    """How many results a study has at each level, up to an event."""

    counts: Counter[int]
    cursor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One question to the pool, with everything that was known when it was asked."""

    study: Study
    question: Question
    learnt: Learnt
    """What the process will have learned once it answers."""

    def proposal(self, suggestion: Suggestion) -> Proposal:
        """The record of the answer."""
        return Proposal(
            sampler="random" if suggestion.is_draw else self.study.spec.sampler.kind,
            level=max(self.learnt.level, 0),
            results=self.learnt.results,
            warm_results=self.learnt.warm,
            pending=len(self.question.pending),
            generation=suggestion.generation,
        )


async def read(
    conn: AsyncConnection, study: Study, levels: Levels, known: Learnt | None, attempt: int
) -> Reading:
    """Read the data of a question; `levels` is brought up to date, `known` is what the study's process was given.
    `attempt` counts the earlier failures."""
    spec, upto = study.spec, study.cursor
    for level, count in (await proposals.levels_since(conn, study.id, levels.cursor, upto)).items():
        levels.counts[level] += count
    levels.cursor = upto
    level = choose_level(spec, levels.counts.items())
    top = spec.rungs()[-1]
    among = told_levels(spec) if level == EVERY_RUNG else ()
    begin = known is None or (known.level, known.among) != (level, among)
    cursor = 0 if known is None or begin else known.cursor
    measured = await proposals.results_since(
        conn, study.id, level, cursor, upto, budgets=spec.budgets, among=among
    )
    warm: tuple[Result, ...] = ()
    if begin and spec.warm_start is not None:
        for warm_level, below in _warm_levels(spec, level):
            source = spec.warm_start.study
            found = await proposals.earlier(
                conn, study.project, source, warm_level, _EARLIER_AT_MOST, top=top, below=below
            )
            warm += warm_results(spec, found, spec.warm_start.max_trials)
    before = 0 if known is None or begin else known.results
    return Reading(
        study=study,
        question=Question(
            study=study.uid,
            begin=Model(spec=spec, warm=warm) if begin else None,
            fresh=[
                Result.of(spec, one.params, one.metrics, one.generation, level=one.level) for one in measured
            ],
            pending=await proposals.pending(conn, study.id, level),
            number=study.sampled - len(spec.enqueued),
            attempt=attempt,
        ),
        learnt=Learnt(
            level=level,
            among=among,
            cursor=upto,
            results=before + len(measured),
            warm=len(warm) if known is None or begin else known.warm,
        ),
    )


def _warm_levels(spec: StudySpec, level: int) -> list[tuple[int, int | None]]:
    """The rungs of this study at which the results of an earlier one are read, for a model at a level. Each comes
    with the next higher one: a report that reached that one counts there."""
    if level == EVERY_RUNG:
        told = told_levels(spec)
        return list(zip(told, (*told[1:], None), strict=True))
    return [(spec.rungs()[0] if level == FIRST_RESULT else level, None)]


def warm_results(spec: StudySpec, found: list[proposals.Measured], most: int) -> tuple[Result, ...]:
    """The results of an earlier study that belong to this one: every parameter is one of this space, in its
    domain, and every objective was measured. Feasible ones come first, then the best by the first objective."""
    fitting = [
        Result.of(spec, admitted(spec.space, one.params), one.metrics, one.generation, level=one.level)
        for one in found
        if next(assignment_problems(one.params, spec.space, spec.space), None) is None
    ]
    sign = spec.objective.sign
    ranked = sorted(
        (result for result in fitting if result.finite),
        key=lambda result: (sum(max(0.0, by) for by in result.excesses), sign * result.values[0]),
    )
    return tuple(ranked[:most])
