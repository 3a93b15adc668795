"""Find studies that no longer have to wait for another one, and start or fail them (`core/study_launch.py`). One
on each replica."""

import asyncio
import logging
import random

from headrace.errors import HeadraceError
from headrace_services.scheduler.core.inputs import AfterEnded
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.looks import Looks
from headrace_services.scheduler.engine.scales import NoScaleError, choose
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store import after
from headrace_services.scheduler.store.after import WaitOver
from headrace_services.scheduler.store.database import transaction

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
_ENDED = {StudyState.STOPPED: "was stopped", StudyState.FAILED: "failed"}


class Followers:
    """Several at once are harmless: a study starts once, whichever replica submits it."""

    def __init__(self, hub: Hub, tasks: asyncio.TaskGroup) -> None:
        self._hub = hub
        self._tasks = tasks
        self._looks = Looks(log, "studies whose wait is over")
        self._telling: set[int] = set()
        """Studies with a submission in progress: a study whose cycle hangs must not hold up the others."""

    async def run(self) -> None:
        """Check every second, with jitter, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
            with self._looks.look():
                await self.look()

    async def look(self) -> None:
        """Check once; what is found is submitted in tasks."""
        async with transaction(self._hub.engine) as conn:
            found = await after.waits_over(conn)
        for one in found:
            if one.id not in self._telling and not self._hub.closing:
                self._telling.add(one.id)
                self._tasks.create_task(self._tell(one), name=f"begin {one.id}")

    async def _tell(self, one: WaitOver) -> None:
        try:
            said = await self._said(one)
            await self._hub.submit(one.id, Submission(input=said))
        except HeadraceError as error:
            log.info("study %s was not notified that '%s' has ended: %s", one.id, one.after, error)
        except Exception:
            log.exception(
                "study %s was not notified that '%s' has ended; the next check tries again", one.id, one.after
            )
        finally:
            self._telling.discard(one.id)

    async def _said(self, one: WaitOver) -> AfterEnded:
        """Whether the study starts or never does, and the scale that its pilot has chosen."""
        if why_not := _why_not(one):
            return AfterEnded(study=one.after, why_not=why_not)
        pilot = one.spec.surrogate.pilot if one.spec.surrogate is not None else None
        if pilot is None or one.scale is not None:
            return AfterEnded(study=one.after, scale=None if pilot is None else one.scale)
        async with transaction(self._hub.engine) as conn:
            trials = await after.pilot_trials(conn, one.project, pilot.study)
            maximize = await after.maximizes(
                conn, one.project, pilot.study
            )  # this study may be the gate, whose goal is another
        try:
            choice = choose(pilot, trials, study=pilot.study, maximize=maximize)
        except NoScaleError as error:
            return AfterEnded(study=one.after, why_not=str(error))
        return AfterEnded(study=one.after, scale=choice)


def _why_not(one: WaitOver) -> str:
    """Why the study can never start; empty if it can."""
    if one.state is StudyState.COMPLETED:
        return ""
    how = "was deleted" if one.state is None else _ENDED[one.state]
    why = f": {one.detail}" if one.detail else ""
    return f"study '{one.after}', after which this one begins, {how}{why}"
