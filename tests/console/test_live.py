"""Following a study: one watch for each study and token, and what pages are told when something breaks."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from console_site import Console, Scheduler, hidden, make_study, until

from headrace.client.events import Event
from headrace_services.console import live
from headrace_services.console.live import Watches


class Stream:
    """An open stream of a page."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> dict[str, Any]:
        """The next message."""
        async with asyncio.timeout(60):
            async for line in self._lines:
                if line.startswith("data: "):
                    message: dict[str, Any] = json.loads(line[6:])
                    return message
        raise EOFError

    async def over(self) -> bool:
        try:
            await self.next()
        except EOFError:
            return True
        return False


@asynccontextmanager
async def following(console: Console, study: str = "s") -> AsyncIterator[Stream]:
    async with console.http.stream("GET", f"/studies/{study}/live") as answer:
        assert answer.status_code == 200
        yield Stream(answer.aiter_lines())


def watches(console: Console) -> Watches:
    found: Watches = console.state.watches
    return found


async def report(scheduler: Scheduler, value: float = 0.5) -> int:
    async with scheduler.sdk() as client:
        trial = await client.study("s").ask()
        assert trial is not None
        await trial.report(1, {"loss": value})
        return trial.number


async def test_pages_share_a_watch_that_ends_with_the_last(console: Console) -> None:
    await make_study(console.scheduler)
    async with following(console) as first:
        begun = await first.next()
        assert begun["trials"] is None, (
            "what changed before is not known: the page compares the cursor with its own"
        )
        async with console.scheduler.sdk() as client:
            assert begun["cursor"] == (await client.study("s").status()).cursor
        async with following(console) as second, following(console) as third:
            for joined in (second, third):  # what changed between the page and its stream was told to others
                assert await joined.next() == begun
            task = watches(console)._tasks["", "s"]
            assert len(watches(console)._tasks) == 1
            assert watches(console).uses("")
            number = await report(console.scheduler)
            for stream in (first, second, third):
                changed: set[int] = set()
                while number not in changed:
                    changed |= set((await stream.next())["trials"])
        await until(lambda: len(watches(console)._pages["", "s"]) == 1, "two pages are gone")
        assert not task.done()
    await until(lambda: not watches(console)._tasks and not watches(console)._pages, "the watch has ended")
    await until(task.done, "its task too")
    assert console.state.sessions._connections[""].users == 0


async def test_a_watch_that_ends_does_not_take_its_successor_along(console: Console) -> None:
    """A page leaves and another one comes before the old watch has noticed."""
    await make_study(console.scheduler)
    with console.state.sessions.using("") as connection:
        for _ in range(3):
            first = watches(console).messages(connection.client, "", "s")
            await anext(first)
            await anext(first)
            await first.aclose()
            second = watches(console).messages(connection.client, "", "s")
            await anext(second)
            await anext(second)
            await asyncio.sleep(0.05)  # the old watch has ended by now
            assert ("", "s") in watches(console)._tasks
            third = watches(console).messages(connection.client, "", "s")
            await anext(third)
            assert len(watches(console)._tasks) == 1
            await second.aclose()
            await third.aclose()
            assert not watches(console)._tasks


async def test_an_ended_study_says_so_and_closes(console: Console) -> None:
    await make_study(console.scheduler)
    async with console.scheduler.sdk() as client, following(console) as stream:
        await stream.next()
        await client.study("s").stop()
        while not (message := await stream.next())["ended"]:
            pass
        assert message["error"] == ""
        assert await stream.over()
    async with following(console) as stream:
        assert (await stream.next())["ended"]
        assert await stream.over()
    await until(lambda: not watches(console)._tasks, "no watch is left")


async def test_a_logout_ends_open_streams(closed: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "QUIET_S", 0.2)
    token = await closed.scheduler.token()
    await make_study(closed.scheduler, token=token)
    browser, other = await closed.browser(), await closed.browser()
    for one in (browser, other):
        await closed.login(one, token)
    async with (
        browser.stream("GET", "/studies/s/live") as stream,
        other.stream("GET", "/studies/s/live") as stays,
        closed.http.stream("GET", "/studies/s/live", headers={"authorization": f"Bearer {token}"}) as api,
    ):
        mine, theirs, calls = (Stream(one.aiter_lines()) for one in (stream, stays, api))
        for told in (mine, theirs, calls):
            await told.next()
        csrf = hidden((await browser.get("/")).text, "csrf")
        await browser.post("/logout", data={"csrf": csrf})
        assert await mine.over()
        async with closed.scheduler.sdk(token) as client:
            await client.study("s").stop()
        for told in (theirs, calls):
            while not (await told.next())["ended"]:
                pass


async def test_a_study_deleted_while_watched(console: Console) -> None:
    await make_study(console.scheduler)
    async with console.scheduler.sdk() as client, following(console) as stream:
        await stream.next()
        await client.study("s").stop()
        await client.study("s").delete()
        message = await stream.next()
        while not (message["ended"] or message["error"]):
            message = await stream.next()
        assert await stream.over()
    assert (await console.http.get("/studies/s/live")).status_code == 404


@pytest.mark.full
async def test_a_scheduler_that_comes_back(console: Console) -> None:
    """An open page goes through it, and a first request that came too early shows an error that polls."""
    await make_study(console.scheduler)
    async with following(console) as stream:
        await stream.next()
        await console.scheduler.stop()
        paths = ("/studies/s", "/studies/s.json", "/studies/s/live", "/studies/s/curves.bin")
        page, twin, *others = await asyncio.gather(*(console.http.get(path) for path in paths))
        assert {answer.status_code for answer in (page, twin, *others)} == {503}
        assert 'data-poll="5"' in page.text
        assert twin.json()["error"]
        await console.scheduler.start()
        number = await report(console.scheduler)
        changed: set[int] = set()
        while number not in changed:
            changed |= set((await stream.next())["trials"])
    assert (await console.http.get("/studies/s")).status_code == 200


async def test_a_watch_that_fails_tells_its_pages(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_study(console.scheduler)

    def fails(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("headrace.client.AsyncStudy.watch", fails)
    async with following(console) as stream:
        message = await stream.next()
        while not message["error"]:
            message = await stream.next()
        assert "secret" not in message["error"]
        assert await stream.over()
    await until(lambda: not watches(console)._tasks and not watches(console)._pages, "nothing is left")


def test_many_changes_make_one_small_message() -> None:
    page = live._Page()
    page.change = live._Change()  # its first message was sent

    def event(number: int) -> Event:
        return Event.__new__(Event) if number < 0 else _event(number)

    page.add(tuple(map(event, range(live.MOST_TRIALS))), 1, ended=False)
    assert json.loads(page.change.message()[6:])["trials"] == [*range(live.MOST_TRIALS)]
    for number in range(100_000):  # nobody reads meanwhile
        page.add((event(number),), number, ended=False)
    message = page.change.message()
    assert json.loads(message[6:]) == {"cursor": 99_999, "trials": None, "ended": False, "error": ""}
    assert page.change.trials is None


def _event(number: int) -> Any:
    class Changed:
        trial = number

    return Changed()


async def test_quiet_streams_are_kept_open(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "QUIET_S", 0.01)
    await make_study(console.scheduler)
    async with console.http.stream("GET", "/studies/s/live") as answer, asyncio.timeout(60):
        async for line in answer.aiter_lines():
            if line == ": quiet":
                break


async def test_a_console_that_ends_closes_its_watches(console: Console) -> None:
    await make_study(console.scheduler)
    async with following(console) as stream:
        await stream.next()
        await watches(console).close()
    await until(lambda: not watches(console)._tasks, "no watch is left")
