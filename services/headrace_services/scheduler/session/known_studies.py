"""What of studies changes by extensions alone, read once for all sessions of a replica."""

import asyncio
from collections import OrderedDict
from weakref import WeakValueDictionary

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler.store import workers
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.workers import StudyInfo

REMEMBERED = 256


class KnownStudies:
    """Studies by uid and by id; those that were asked for last are remembered.

    A worker's message names its study by the uid in its lease's id. A name would not do: every project may have a study
    of it, and one that is deleted and made again has the name of the old one.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._studies: OrderedDict[int, StudyInfo] = OrderedDict()
        self._ids: dict[str, int] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def id_of(self, uid: str) -> int | None:
        """A study's id, in the order of the calls: of one lease's messages none may overtake another.

        Where the study was deleted a cycle says so: then `forget` it.
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
        """A study with a full budget of so many steps at least: it was extended since it was remembered otherwise."""
        known = self._studies.get(study_id)
        if known is not None and not known.waits and known.budget >= budget:
            self._studies.move_to_end(study_id)
            return known
        async with transaction(self._engine) as conn:
            study = await workers.study_by_id(conn, study_id)
        return self._remember(study) if study else None

    def forget(self, study_id: int) -> None:
        """The study is no more."""
        gone = self._studies.pop(study_id, None)
        if gone is not None and self._ids.get(gone.uid) == study_id:
            del self._ids[gone.uid]

    def _remember(self, study: StudyInfo) -> StudyInfo:
        self._studies[study.id] = study
        self._ids[study.uid] = study.id
        while len(self._studies) > REMEMBERED:
            self.forget(next(iter(self._studies)))
        return study
