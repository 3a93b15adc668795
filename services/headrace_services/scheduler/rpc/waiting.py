"""Why trials that could run do not run yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import show_value
from headrace.spec import BestOfSampler
from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core import failed_starts
from headrace_services.scheduler.core.lifecycle import LEASED, State, StudyState
from headrace_services.scheduler.core.placement import Request, Waiting, is_suspect, request_of
from headrace_services.scheduler.core.placement.wants import described, lacking
from headrace_services.scheduler.core.records import Study, Trial
from headrace_services.scheduler.store import load, machines, placement, quotas
from headrace_services.scheduler.store.quotas import Holder
from headrace_services.scheduler.store.studies import Figures

NAMED = 5
"""How many of the trials that a study waits for are named."""


def study_waits_for(study: Study, figures: Figures) -> str:
    """What a whole study waits for: another study's end, slots (as noted by its last cycle), or a user. Empty if
    one of its trials runs."""
    if study.after is not None and not study.state.ended:
        return f"study {study.after}"
    if study.state is not StudyState.ACTIVE or any(figures.states.get(state) for state in LEASED):
        return ""
    sampler, more = study.spec.sampler, study.sampled < study.planned
    if more and isinstance(sampler, BestOfSampler) and not figures.runnable:
        return f"the best configurations of study '{sampler.study}'"
    if study.standing.held_off:
        return f"room for {_slots(study.standing.held_off)} in the quota of project '{study.project}'"
    wanted = Request.wanted(study.spec.resources, study.standing)
    if wanted is not None:
        return described(wanted)
    return "" if more or figures.runnable else _to_be_resumed(figures.user_paused)


def _to_be_resumed(numbers: Sequence[int]) -> str:
    if len(numbers) <= 1:
        return "".join(f"a user to resume trial {number}" for number in numbers)
    shown = [str(number) for number in numbers[:NAMED]]
    last = f"{len(numbers) - NAMED} more" if len(numbers) > NAMED else shown.pop()
    return f"a user to resume trials {', '.join(shown)} and {last}"


async def waits_for(conn: AsyncConnection, study: Study, trials: Iterable[Trial]) -> dict[int, str]:
    """What trials wait for, by number, in words that follow `waits for`.

    Trials that run or are over, and those without a milestone, are left out: the decisions of a trial say which
    results it waits for.
    """
    off = [trial for trial in trials if trial.state in (State.PENDING, State.PAUSED)]
    found = {trial.number: "a user to resume it" for trial in off if trial.user_paused}
    rest = [trial for trial in off if trial.runnable]
    if rest and (reason := await _of_the_study(conn, study)):
        return found | {trial.number: reason for trial in rest}
    resting = await _resting(conn, rest)
    found |= {trial.number: f"its next try, after a pause: {trial.detail}" for trial in resting}
    rest = [trial for trial in rest if trial.number not in found]
    by_size: dict[tuple[int, int, int, tuple[str, ...]], str] = {}
    quota = await _quota(conn, study) if rest else None
    for trial in rest:
        avoided = failed_starts.avoided_by(study, trial.number)
        request = request_of(study.spec, trial, avoided)
        if quota is not None and quota.keeps_off(request.size):
            found[trial.number] = quota.said(request.size) + _because(study, trial) + _or(study, trial)
            continue
        key = (*request.shape, request.avoided)
        if key not in by_size:
            waiting = Waiting(key=(study.id, trial.number), request=request, priority=study.spec.priority)
            drained = await machines.held_names(conn)
            by_size[key] = (
                lacking(await placement.devices(conn, request), waiting)
                + _but(study)
                + _nor(drained)
                + _nor_for_now(await machines.suspended(conn))
            )
        found[trial.number] = (
            by_size[key] + _because(study, trial) + _or(study, trial) + _shunned(study, trial)
        )
    return found


async def _resting(conn: AsyncConnection, trials: Iterable[Trial]) -> list[Trial]:
    """Those that may not be placed yet."""
    paused = [trial for trial in trials if trial.not_before_s is not None]
    if not paused:
        return []
    now_s = (await conn.execute(select(func.extract("epoch", func.clock_timestamp())))).scalar_one()
    return [trial for trial in paused if trial.rests(float(now_s))]


@dataclass(frozen=True, slots=True)
class _Quota:
    """A quota of slots, and which studies of its project hold how much of it."""

    project: str
    slots: int
    holders: Sequence[Holder]

    def keeps_off(self, milli: int) -> bool:
        """Whether it has no room for this much more."""
        return milli + sum(one.milli for one in self.holders) > WHOLE * self.slots

    def said(self, milli: int) -> str:
        """What a trial of this size waits for, and which studies hold it."""
        may = f"project '{self.project}' may hold {_slots(WHOLE * self.slots)} at once"
        if milli > WHOLE * self.slots:
            return f"a larger quota: {may}, and it takes {_slots(milli)}"
        held = [f"study {one.study} holds {one.milli / WHOLE:g}" for one in self.holders[:NAMED]]
        if others := self.holders[NAMED:]:
            held.append(f"{len(others)} others hold {sum(one.milli for one in others) / WHOLE:g}")
        return f"room for {_slots(milli)} in its project's quota: {may}, and {', '.join(held)}"


def _slots(milli: int) -> str:
    return f"{milli / WHOLE:g} slot{'s' * (milli != WHOLE)}"


async def _quota(conn: AsyncConnection, study: Study) -> _Quota | None:
    """The quota of a study's project; None if it has none."""
    project = await quotas.project(conn, study.project)
    if project is None or project.slots is None or study.spec.template is None:
        return None
    return _Quota(project.name, project.slots, await quotas.holders(conn, project.name))


def _or(study: Study, trial: Trial) -> str:
    """What would also do."""
    low = trial.milestone is not None and trial.milestone < study.spec.max_steps
    return ", or for bubbles of a large job" if study.spec.bubbles and low else ""


def _because(study: Study, trial: Trial) -> str:
    """What determines how much the trial takes."""
    if is_suspect(trial) and study.spec.resources.gpu_milli:
        return " (it shared a GPU when that failed, so it gets one of its own)"
    table, elastic = study.spec.resources.by, study.spec.elastic
    row = elastic.row_at(trial.step) if elastic else None
    if row is not None and request_of(study.spec, trial).part == row.part:
        return f" (from step {row.from_step} on it requires this)"
    if table is None:
        return ""
    if table.parameter not in trial.params:
        return f" (a trial without {table.parameter} requires this)"
    return f" ({table.parameter} = {show_value(trial.params[table.parameter])} requires this)"


def _but(study: Study) -> str:
    """The workers that would do but are avoided."""
    names = ", ".join(sorted(set(study.standing.avoided.values())))
    return f", other than {names}, where its first attempts failed" if names else ""


def _nor(drained: Sequence[str]) -> str:
    """The connected workers that get no trials."""
    if not drained:
        return ""
    shown = ", ".join(drained[:NAMED]) + (f" and {len(drained) - NAMED} more" if len(drained) > NAMED else "")
    return f"; {shown} {'gets' if len(drained) == 1 else 'get'} no trials (`headrace workers` says why)"


def _nor_for_now(suspended: Sequence[tuple[str, str, datetime]]) -> str:
    """The connected workers that are suspended."""
    said = [
        f"; {name} is suspended until {until.astimezone(UTC):%H:%M:%S} UTC, as it does not reach its programs: {why}"
        for name, why, until in suspended[:NAMED]
    ]
    return "".join(said) + (f"; so are {len(suspended) - NAMED} more" if len(suspended) > NAMED else "")


def _shunned(study: Study, trial: Trial) -> str:
    """The worker on which this trial is not placed for now."""
    one = failed_starts.shunned(study, trial.number)
    if one is None:
        return ""
    return f"; not on {one.worker} for now, which did not reach its program {one.times} times in a row"


async def _of_the_study(conn: AsyncConnection, study: Study) -> str:
    """What keeps all of its trials from running; empty if that is slots or its turn."""
    if study.after is not None:
        return f"study {study.after}, after which its study begins"
    if study.state is StudyState.PAUSED:
        return f"the study to be resumed ({study.detail})" if study.detail else "the study to be resumed"
    if study.spec.template is None:
        return "the next ask"
    if 0 < study.spec.max_parallel <= await load.live_count(conn, study.id):
        return f"a running trial of its study to end: at most {study.spec.max_parallel} run at once (max_parallel)"
    return ""
