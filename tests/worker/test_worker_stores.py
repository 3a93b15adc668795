"""A worker and its store: how it is set up, and what happens while it is away."""

import errno
from pathlib import Path
from typing import Any

import pytest
from scripted_scheduler import ScriptedScheduler, Stream, until
from worker_site import Site

from headrace.checkpoints import store_from_url
from headrace.checkpoints.directory import DirectoryStore
from headrace.checkpoints.marker import MARKER
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker import store_watch

PAUSE = event_pb2.DECISION_ACTION_PAUSE
AWAY = worker_pb2.EXIT_OUTCOME_STORE_AWAY
IDENTITY = "0123456789abcdef"
SAVES = "leave_if_told(report(3, save=True))"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_watch, "LOOK_S", 0.05)


async def greeted(site: Site, scheduler: ScriptedScheduler, **order: Any) -> Stream:
    """A session whose Welcome has these fields about the store."""
    scheduler.store = worker_pb2.StoreOrder(**order)
    site.start()
    return await scheduler.stream()


def marker(site: Site) -> Path:
    return site.root / "store" / MARKER


async def test_the_first_worker_at_an_address_makes_the_marker(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    stream = await greeted(site, scheduler, id=IDENTITY, set_up=True)
    assert stream.hello.store == worker_pb2.Store(url=(site.root / "store").as_uri())
    stream.send(assign=site.assign(site.program(SAVES), milestone=3))
    report = await stream.get("report")
    assert report.HasField("checkpoint")
    assert marker(site).read_text() == IDENTITY + "\n"
    await until(lambda: stream.all("heartbeat")[-1].store_id == IDENTITY, "the scheduler hears of it")


async def test_a_worker_says_which_store_it_finds(site: Site, scheduler: ScriptedScheduler) -> None:
    store_from_url(site.settings.store_url).set_up(IDENTITY, used=False)
    stream = await greeted(site, scheduler, id=IDENTITY)
    assert stream.hello.store.id == IDENTITY
    assert not stream.hello.store.unseen


@pytest.mark.parametrize("found", ["", "another-store-1"])
async def test_a_place_without_the_expected_marker_is_not_set_up_and_runs_nothing(
    site: Site, scheduler: ScriptedScheduler, found: str
) -> None:
    marker(site).parent.mkdir()
    if found:
        marker(site).write_text(found)
    stream = await greeted(site, scheduler, id=IDENTITY)
    stream.send(assign=site.assign(site.program('mark("ran")')))
    exited = await stream.get("exited")
    assert exited.outcome == AWAY
    what = "not this cluster's" if found else "away"
    assert exited.error.startswith(f"store {site.settings.store_url} is {what}: its marker")
    assert f"write {IDENTITY} into {MARKER}" in exited.error
    assert not (site.marks / "ran").exists()
    assert [path.name for path in marker(site).parent.iterdir()] == ([MARKER] if found else [])
    await until(lambda: exited.error[:80] in stream.all("heartbeat")[-1].trouble, "its heartbeats say so")
    marker(site).write_text(IDENTITY)
    await until(lambda: not stream.all("heartbeat")[-1].trouble, "it goes on by itself")
    stream.send(assign=site.assign(site.program(SAVES), milestone=3, attempt=2))
    await stream.get("report")


async def test_a_store_that_goes_away_keeps_reports_waiting_and_is_not_made_again(
    site: Site,
    scheduler: ScriptedScheduler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("headrace_worker.store_watch.LOOK_S", 0.5)
    stream = await greeted(site, scheduler, id=IDENTITY, set_up=True)
    body = """
        mark("up")
        while not Path(os.environ["MARKS"], "go").exists():
            time.sleep(0.01)
        leave_if_told(report(3, save=True))
        """
    stream.send(assign=site.assign(site.program(body), milestone=3))
    await until(lambda: (site.marks / "up").exists())
    store = marker(site).parent
    store.rename(site.root / "away")
    store.mkdir()  # the mount point
    (site.marks / "go").touch()
    await until(lambda: "cannot be stored" in caplog.text, "the trial waits")
    assert list(store.iterdir()) == []
    assert stream.all("report") == []
    waits = f"store {site.settings.store_url} is away: "
    await until(lambda: stream.all("heartbeat")[-1].trouble.startswith(waits), "the worker sees it too")
    assert stream.all("heartbeat")[-1].trouble.count("is away") == 1
    assert "cannot be stored" not in stream.all("heartbeat")[-1].trouble, "it would say the same again"
    store.rmdir()
    (site.root / "away").rename(store)
    report = await stream.get("report")
    assert report.checkpoint.uri.startswith(store.as_uri())


async def test_a_store_of_before_markers_is_taken_over_only_where_its_studies_are(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    marker(site).parent.mkdir()
    stream = await greeted(site, scheduler, id=IDENTITY, set_up=True, used=True)
    await until(
        lambda: stream.all("heartbeat") and "nothing lies there" in stream.all("heartbeat")[-1].trouble
    )
    assert not marker(site).exists()
    (marker(site).parent / "studies" / "s-1").mkdir(parents=True)
    await until(lambda: marker(site).exists())


async def test_a_store_that_does_not_answer_at_the_start_is_named_when_it_does(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that could not check must not be told to create a marker."""
    hangs, read = [1], DirectoryStore._read_marker

    def hanging(self: DirectoryStore) -> bytes | None:
        if hangs:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(self)

    monkeypatch.setattr(DirectoryStore, "_read_marker", hanging)
    monkeypatch.setattr("headrace_worker.daemon._FIRST_LOOK_S", 0.1)
    stream = await greeted(site, scheduler)
    assert stream.hello.store.unseen
    await until(
        lambda: stream.all("heartbeat") and "Stale file handle" in stream.all("heartbeat")[-1].trouble
    )
    scheduler.store = worker_pb2.StoreOrder(id=IDENTITY, set_up=True)
    hangs.clear()
    second = await scheduler.stream(2)
    assert not second.hello.store.unseen
    second.send(assign=site.assign(site.program(SAVES), milestone=3))
    await second.get("report")
    assert marker(site).read_text() == IDENTITY + "\n"


async def test_a_checkpoint_in_another_store_than_the_workers_waits_for_another_worker(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    elsewhere = {"uri": "file:///elsewhere/studies/s/trials/0/1/", "step": 3, "manifest_sha256": "0" * 64}
    stream.send(assign=site.assign(["true"], attempt=2, checkpoint=elsewhere))
    exited = await stream.get("exited")
    assert exited.outcome == AWAY
    assert "is not in the store" in exited.error
