"""Deletes folders of studies that were deleted, or whose checkpoints or logs have reached their age limit.

The worker lists the folders in its store and below its logs, and a scheduler says which of them may be deleted. It
does so about once an hour, and when it starts. Nothing is remembered: what could not be deleted is found again.
Several workers with one store may each delete the same folder.

A study that has ended may be reopened while its folder is being deleted. So the names of its checkpoints are read
first, and the scheduler is asked again. What the study has stored since then is not among those names, and stays.
"""

import asyncio
import logging
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from headrace.checkpoints import CheckpointError, CheckpointStore
from headrace.v1 import worker_pb2

log = logging.getLogger(__name__)

EVERY_S = 3600.0
FIRST_S = 20.0
AT_ONCE = 200
"""How many folders are asked about in one call."""

Judge = Callable[[worker_pb2.JudgeFoldersRequest], Awaitable[worker_pb2.JudgeFoldersResponse]]
"""Asks a scheduler."""


class Tidying:
    """Deletes the folders of one worker."""

    def __init__(
        self, store: CheckpointStore, log_dir: Path, judge: Judge, busy: Callable[[], set[str]]
    ) -> None:
        self._store = store
        self._log_dir = log_dir
        self._judge = judge
        self._busy = busy
        """The folders of the studies whose trials run here."""

    async def run(self) -> None:
        """Tidy every hour, with jitter, until cancelled."""
        await asyncio.sleep(FIRST_S * random.uniform(0.5, 1.5))  # noqa: S311  # jitter
        while True:
            try:
                await self.tidy()
            except (OSError, CheckpointError) as error:  # the store or all schedulers are away
                log.warning("folders of studies cannot be tidied now: %s", error)
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311  # jitter

    async def tidy(self) -> None:
        """Delete what may be deleted, once."""
        folders = await asyncio.to_thread(self._folders)
        for place in range(0, len(folders), AT_ONCE):
            asked = worker_pb2.JudgeFoldersRequest(folders=folders[place : place + AT_ONCE])
            for verdict in (await self._judge(asked)).verdicts:
                if verdict.folder not in asked.folders:
                    continue
                try:
                    await self._carry_out(verdict)
                except (OSError, CheckpointError) as error:
                    log.warning("%s is not cleared yet: %s", verdict.folder, error)

    def _folders(self) -> list[str]:
        found = set(self._store.studies())
        with suppress(FileNotFoundError):
            found |= {
                path.name for path in self._log_dir.iterdir() if path.is_dir() and not path.is_symlink()
            }
        return sorted(name for name in found if "-" in name and len(name) <= 200)

    async def _carry_out(self, verdict: worker_pb2.FolderVerdict) -> None:
        folder = verdict.folder
        if folder in self._busy():
            return
        if verdict.deleted:
            await asyncio.to_thread(self._clear, folder)
        elif verdict.checkpoints:
            listed = await asyncio.to_thread(self._checkpoints, folder)
            again = await self._judge(worker_pb2.JudgeFoldersRequest(folders=[folder]))
            for now in again.verdicts:
                if now.checkpoints:
                    await asyncio.to_thread(self._delete, listed, now.kept)
        if (verdict.deleted or verdict.logs) and folder not in self._busy():
            await asyncio.to_thread(shutil.rmtree, self._log_dir / folder, True)

    def _clear(self, folder: str) -> None:
        trials = self._store.sizes(f"studies/{folder}")
        for trial in trials:
            self._store.clear(trial)
        if trials:
            log.info("%s was deleted: its checkpoints are cleared away", folder)

    def _checkpoints(self, folder: str) -> list[str]:
        trials = self._store.sizes(f"studies/{folder}")
        return [self._store.uri(trial, name) for trial in trials for name in self._store.list(trial)]

    def _delete(self, listed: Sequence[str], kept: Sequence[str]) -> None:
        spared = {_within_store(uri) for uri in kept}
        for uri in listed:
            if _within_store(uri) not in spared:
                self._store.delete(uri)


def _within_store(uri: str) -> str:
    """A checkpoint's place: workers may reach one store through several addresses."""
    return unquote(uri).rstrip("/").rpartition("/studies/")[2]
