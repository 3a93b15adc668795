"""Have proposals computed as they are needed, and submit them to their studies. One on each replica."""

import asyncio
import logging
import random
from collections import Counter
from dataclasses import dataclass, field
from time import perf_counter

from headrace.errors import DatabaseUnavailableError, DrainingError, StudyNotFoundError
from headrace.spec import BestOfSampler, check_assignment
from headrace_services.scheduler import measures
from headrace_services.scheduler.core.inputs import Proposed
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.records import Params, Proposal, ProposalFailure, Study
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.looks import Looks
from headrace_services.scheduler.engine.retries import cause
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.samplers import pooled_from
from headrace_services.scheduler.samplers.protocol import ATTEMPTS
from headrace_services.scheduler.samplers.random import RandomSampler
from headrace_services.scheduler.store import proposals
from headrace_services.scheduler.store.database import is_strained, transaction
from headrace_services.scheduler.store.defects import is_transient, reason_of
from headrace_services.scheduler.suggesting.best_of import next_of_best
from headrace_services.scheduler.suggesting.pool import AttemptFailedError, Pool
from headrace_services.scheduler.suggesting.reading import Levels, read

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
"""The pause after a first failure; each further pause is twice as long."""
SWEEP_EVERY_S = 2.0
FORGET_AFTER_S = 300.0
"""A study that needed nothing for this long is forgotten: a replica's memory grows only with the studies in
progress."""


@dataclass(slots=True)
class _Study:
    """What a replica remembers about a study that it proposes for; it could work without any of it."""

    wanted: int = 0
    levels: Levels = field(default_factory=lambda: Levels(counts=Counter()))
    broken: bool = False
    """The last proposal failed at every try, so the next one is tried only once."""
    defects: int = 0
    """How often proposing has failed since its last success, for reasons other than the sampler and the database."""
    task: asyncio.Task[None] | None = None
    last_used: float = 0.0


class Suggester:
    """Keeps every study of the pool supplied with proposals."""

    def __init__(self, hub: Hub, pool: Pool, tasks: asyncio.TaskGroup) -> None:
        self._hub = hub
        self._pool = pool
        self._tasks = tasks
        self._studies: dict[int, _Study] = {}

    def want(self, study_id: int, count: int) -> None:
        """A cycle of the study says how many further proposals it needs."""
        study = self._studies.setdefault(study_id, _Study())
        study.wanted = count
        study.last_used = asyncio.get_running_loop().time()
        if study.task is None and not self._hub.closing:
            study.task = self._tasks.create_task(self._serve(study_id, study), name=f"proposals {study_id}")

    def close(self) -> None:
        """Give up all attempts, and end the processes."""
        for study in self._studies.values():
            if study.task is not None:
                study.task.cancel()
        self._pool.close()

    async def run(self) -> None:
        """Look for studies that lack proposals because a replica died or an attempt was lost. Runs until
        cancelled.

        A study is served if two checks in a row find that it needs a proposal: another replica may be working on
        it.
        """
        before: set[int] = set()
        looks = Looks(log, "studies that want proposals")
        while True:
            await asyncio.sleep(SWEEP_EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
            with looks.look():
                async with self._hub.engine.connect() as conn:
                    waiting = set(await proposals.studies_to_propose_for(conn))
                for study_id in waiting & before:
                    study = self._studies.get(study_id)
                    if study is None or study.task is None:
                        self.want(study_id, 1)
                before = waiting
                self._forget_idle()

    def _forget_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for study_id, study in list(self._studies.items()):
            if study.task is None and now - study.last_used > FORGET_AFTER_S:
                del self._studies[study_id]

    async def _serve(self, study_id: int, study: _Study) -> None:
        """Propose until no more is needed."""
        pause_s = FIRST_PAUSE_S
        try:
            while study.wanted > 0 and not self._hub.closing:
                try:
                    if not await self._propose(study_id, study):
                        study.wanted = 0
                    study.defects = 0
                except DatabaseUnavailableError:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, 5.0)
        except (DrainingError, StudyNotFoundError):
            self._studies.pop(study_id, None)
        except Exception as error:
            log.exception("proposing for study %s failed", study_id)
            study.defects += not (isinstance(error, MemoryError) or is_transient(error))
            if study.defects >= ATTEMPTS:
                self._hub.quarantine(study_id, f"no trial can be proposed for it: {reason_of(error)}")
        finally:
            study.task = None

    async def _propose(self, study_id: int, study: _Study) -> bool:
        """Have the next proposal computed, and submit it. Returns False if the study accepts none now."""
        failures: list[str] = []
        attempts = 1 if study.broken else ATTEMPTS
        while True:
            async with self._pool.turn(study_id):
                async with transaction(self._hub.engine) as conn:
                    standing = await proposals.standing(conn, study_id)
                if standing is None or not takes_proposals(standing.study):
                    self._studies.pop(study_id, None)
                    return False
                row = standing.study
                if isinstance(row.spec.sampler, BestOfSampler):
                    return await self._take_best(row, row.spec.sampler, study)
                began, outcome = perf_counter(), "failed"
                try:
                    params, proposal = await self._attempt(row, study.levels, len(failures))
                except AttemptFailedError as error:
                    failures.append(str(error))
                else:
                    outcome = "proposed"
                    break
                finally:
                    measures.PROPOSALS.labels(row.spec.sampler.kind, outcome).observe(perf_counter() - began)
            log.warning("proposal %s of study '%s' failed: %s", row.sampled, row.name, failures[-1])
            if len(failures) >= attempts:
                break
            await asyncio.sleep(FIRST_PAUSE_S * 2 ** (len(failures) - 1))
        study.broken = len(failures) >= attempts
        failure = None
        if study.broken:
            number = row.sampled - len(row.spec.enqueued)
            failure = ProposalFailure(number=number, attempts=len(failures), error=failures[-1])
            params = RandomSampler(row.spec).suggest(number)
            proposal = Proposal(sampler="random")
        study.wanted -= 1  # the cycle's own count, which arrives first, may set it again
        proposed = Proposed(index=row.sampled, params=params, proposal=proposal, failure=failure)
        await self._hub.submit(study_id, Submission(input=proposed))
        return True

    async def _take_best(self, row: Study, sampler: BestOfSampler, study: _Study) -> bool:
        """Submit the next of the best configurations of another study, if there is one now."""
        async with transaction(self._hub.engine) as conn:
            found = await next_of_best(conn, row, sampler)
        if found is None:
            return False  # the sweep asks again
        study.wanted -= 1
        await self._hub.submit(row.id, Submission(input=found))
        return True

    async def _attempt(self, row: Study, levels: Levels, attempt: int) -> tuple[Params, Proposal]:
        """The pool's answer, checked against the space. Raises AttemptFailedError."""
        known = self._pool.learnt(row.id, row.uid)
        try:
            async with transaction(self._hub.engine) as conn:
                reading = await read(conn, row, levels, known, attempt)
        except Exception as error:
            if is_strained(error):  # its results take too long to read, for example
                raise AttemptFailedError(cause(error)) from error
            raise
        suggestion = await self._pool.ask(row.id, reading.question, reading.learnt)
        try:
            params = check_assignment(row.spec, suggestion.params, field="proposal")
        except Exception as error:
            raise AttemptFailedError(str(error)) from error
        return params, reading.proposal(suggestion)


def takes_proposals(study: Study) -> bool:
    """Whether the pool computes the study's next configuration."""
    pooled = pooled_from(study.spec)
    if pooled is None or study.state is not StudyState.ACTIVE or study.after is not None or study.closing:
        return False
    if study.spec.baseline is not None and not study.next_number:
        return False
    return len(study.spec.enqueued) + pooled <= study.sampled < study.planned
