"""Following studies for open pages: one watch for each study and token, however many pages show it.

A page gets the numbers of the trials that changed, and then asks for what it shows. It is told at most once a
second; while nothing happens, a comment keeps proxies from closing the stream.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from headrace.client import AsyncClient
from headrace.client.events import Event
from headrace.errors import HeadraceError

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
QUIET_S: Final = 20.0
MOST_TRIALS: Final = 64
"""How many trials a message names; with more, the page reads everything again."""


@dataclass(slots=True)
class _Change:
    """What happened since a page was told last."""

    cursor: int = 0
    trials: set[int] | None = field(default_factory=set)
    """None if there are too many to be named, or if it is not known. A page that reads slowly costs no memory."""
    ended: bool = False
    error: str = ""

    def message(self) -> str:
        """It as a server-sent event."""
        trials = None if self.trials is None else sorted(self.trials)
        data = {"cursor": self.cursor, "trials": trials, "ended": self.ended, "error": self.error}
        return f"data: {json.dumps(data)}\n\n"


class _Page:
    """An open page."""

    def __init__(self) -> None:
        self.change = _Change(trials=None)  # what changed before its stream began is not known
        self.told = asyncio.Event()

    def add(self, events: tuple[Event, ...], cursor: int, *, ended: bool) -> None:
        self.change.cursor = cursor
        if self.change.trials is not None:
            self.change.trials |= {event.trial for event in events if event.trial is not None}
            if len(self.change.trials) > MOST_TRIALS:
                self.change.trials = None
        self.change.ended |= ended
        self.told.set()

    def fail(self, why: str) -> None:
        self.change.error = why
        self.told.set()


class Watches:
    """The watches of a console."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, str], set[_Page]] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._cursors: dict[tuple[str, str], int] = {}
        """How far each watch is."""

    def uses(self, token: str) -> bool:
        """Whether a page is followed with a token."""
        return any(token == one for one, _ in self._pages)

    async def messages(self, client: AsyncClient, token: str, study: str) -> AsyncGenerator[str]:
        """The messages for one page: server-sent events, until the study has ended or cannot be followed."""
        key, page = (token, study), _Page()
        self._pages.setdefault(key, set()).add(page)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._follow(client, key))
        elif key in self._cursors:  # else the watch's first message is still to come
            page.add((), self._cursors[key], ended=False)
        try:
            yield "retry: 2000\n\n"
            while True:
                try:
                    await asyncio.wait_for(page.told.wait(), QUIET_S)
                except TimeoutError:
                    yield ": quiet\n\n"
                    continue
                page.told.clear()
                change, page.change = page.change, _Change()
                yield change.message()
                if change.ended or change.error:
                    return
                await asyncio.sleep(EVERY_S)  # the rate of messages, not a wait for anything
        finally:
            pages = self._pages[key]
            pages.discard(page)
            if not pages:
                del self._pages[key]
                self._cursors.pop(key, None)
                task = self._tasks.pop(key, None)
                if task is not None:
                    task.cancel()

    async def _follow(self, client: AsyncClient, key: tuple[str, str]) -> None:
        try:
            study = client.study(key[1])
            now = await study.status()
            self._tell(key, (), now.cursor, ended=now.state.ended)
            if not now.state.ended:
                async for update in study.watch(now.cursor):
                    self._tell(key, update.events, update.study.cursor, ended=update.study.state.ended)
        except HeadraceError as error:
            for page in self._pages.get(key, ()):
                page.fail(error.message)
        except Exception:
            log.exception("the watch of study %s failed", key[1])
            for page in self._pages.get(key, ()):
                page.fail("the console failed to follow this study; its log has the details")
        finally:
            if (
                self._tasks.get(key) is asyncio.current_task()
            ):  # a later watch of the same study may have its place
                del self._tasks[key]

    def _tell(self, key: tuple[str, str], events: tuple[Event, ...], cursor: int, *, ended: bool) -> None:
        self._cursors[key] = cursor
        for page in self._pages.get(key, ()):
            page.add(events, cursor, ended=ended)

    async def close(self) -> None:
        """End all watches."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
