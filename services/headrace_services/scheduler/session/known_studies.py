"""The parts of studies that only extensions change, read once for all sessions of a replica."""

import asyncio
from collections import OrderedDict
from weakref import WeakValueDictionary

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler.store import workers
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.workers import StudyInfo

REMEMBERED = 256


class KnownStudies:
    """Studies by uid and by id; the most recently used ones are cached.

    A worker's message identifies its study by the uid in its lease's id. A name would not do: every project may
    have a study with it, and a study that is deleted and created again has the same name.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._studies: OrderedDict[int, StudyInfo] = OrderedDict()
        self._ids: dict[str, int] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def id_of(self, uid: str) -> int | None:
        """A study's id, in the order of the calls: the messages of one lease must not overtake each other.

        If the study was deleted, a cycle finds that out: then `forget` it.
        """
        turn = self._turns.get(uid)
        if uid in self._ids and (turn is None or not turn.locked()):
            return self._ids[uid]
        if turn is None:
            turn = self._turns[uid] = asyncio.Lock()  # gone with the last one that waits for it
        async with turn:
            if uid not in self._ids:
                async with transaction(self._engine) as conn:
                    study = await workers.study_by_uid(conn, uid)
                return self._remember(study).id if study else None
            return self._ids[uid]

    async def by_id(self, study_id: int, *, budget: int = 0) -> StudyInfo | None:
        """A study whose full budget is at least this many steps: if it is not, the study was extended since it was
        cached."""
        known = self._studies.get(study_id)
        if known is not None and not known.waits and known.budget >= budget:
            self._studies.move_to_end(study_id)
            return known
        async with transaction(self._engine) as conn:
            study = await workers.study_by_id(conn, study_id)
        return self._remember(study) if study else None

    def forget(self, study_id: int) -> None:
        """The study no longer exists."""
        gone = self._studies.pop(study_id, None)
        if gone is not None and self._ids.get(gone.uid) == study_id:
            del self._ids[gone.uid]

    def _remember(self, study: StudyInfo) -> StudyInfo:
        self._studies[study.id] = study
        self._ids[study.uid] = study.id
        while len(self._studies) > REMEMBERED:
            self.forget(next(iter(self._studies)))
        return study
