"""Why trials that could run do not run yet."""

from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.lifecycle import State, StudyState
from headrace_services.scheduler.records import Study, Trial
from headrace_services.scheduler.step.placement import Waiting, request_at
from headrace_services.scheduler.step.placement.wants import lacking
from headrace_services.scheduler.store import placement, step_reads


async def waits_for(conn: AsyncConnection, study: Study, trials: Iterable[Trial]) -> dict[int, str]:
    """What trials wait for, by number, to be read after `waits for`.

    Trials that run or are over, and those of which nothing is wanted now, are left out: the decisions of a trial say
    which results it waits for.
    """
    off = [trial for trial in trials if trial.state in (State.PENDING, State.PAUSED)]
    found = {trial.number: "a user to resume it" for trial in off if trial.held}
    rest = [trial for trial in off if trial.runnable]
    if rest and (reason := await _of_the_study(conn, study)):
        return found | {trial.number: reason for trial in rest}
    by_size: dict[int, str] = {}
    for trial in rest:
        request = request_at(study.spec, trial.step)
        if request.slots not in by_size:
            waiting = Waiting(key=(study.id, trial.number), request=request, priority=study.spec.priority)
            by_size[request.slots] = lacking(await placement.devices(conn, request), waiting)
        found[trial.number] = by_size[request.slots]
    return found


async def _of_the_study(conn: AsyncConnection, study: Study) -> str:
    """What keeps all of its trials; empty where it is slots, or the turn."""
    if study.state is StudyState.PAUSED:
        return "the study to be resumed"
    if study.spec.template is None:
        return "the next ask"
    if 0 < study.spec.max_parallel <= await step_reads.live_count(conn, study.id):
        return f"a running trial of its study to leave: at most {study.spec.max_parallel} run at once (max_parallel)"
    return ""
