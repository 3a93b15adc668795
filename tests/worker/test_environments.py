"""When packages are resolved and installed, for whom, and what is reported. The installer is a stand-in."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from environment_site import Worker

from headrace.v1 import spec_pb2, worker_pb2
from headrace_worker import environments
from headrace_worker.build_folder import BuildFolder, StepFailedError
from headrace_worker.code_cache import CodeCache, UnpreparedError
from headrace_worker.environments import Environments
from headrace_worker.installers import Request
from headrace_worker.programs import Programs
from headrace_worker.pythons import Base

PINNED = "numpy==2.0 --hash=sha256:aa\n"


@dataclass
class Index:
    """Resolves every requirements file to the same lock, and installs by recording it."""

    lock: str = PINNED
    lacks: str = ""
    resolved: int = 0
    installed: list[str] = field(default_factory=list)
    sources: list[Path | None] = field(default_factory=list)
    waits: asyncio.Event | None = None
    size_bytes: int = 100
    kind: str = "stand-in"

    async def resolve(self, build: BuildFolder, request: Request) -> str:
        self.resolved += 1
        self.sources.append(request.source)
        build.log.write_text("it is resolved\n")
        return self.lock

    async def install(self, build: BuildFolder, _: Request, lock: str, place: Path) -> None:
        if self.waits is not None:
            await self.waits.wait()
        if self.lacks and self.lacks in lock:
            build.log.write_text(f"no {self.lacks}\n")
            raise StepFailedError(f"the index lacks {self.lacks}")
        self.installed.append(lock)
        (place / "bin").mkdir()  # nothing of an earlier attempt is left
        (place / "bin" / "python").write_bytes(b"x" * self.size_bytes)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    index = Index()
    monkeypatch.setattr(environments, "installer_for", lambda *_: index)
    return index


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    async with asyncio.TaskGroup() as tasks:
        yield Worker(tmp_path, tasks)


def asks(text: str = "numpy\n", **files: str) -> dict[str, str | bytes]:
    return {"requirements.txt": text, **files}


async def test_an_edit_of_the_code_neither_resolves_nor_installs_again(worker: Worker, index: Index) -> None:
    first = await worker.python("a", asks(train="one"))
    assert await worker.python("a", asks(train="two")) == first
    assert (index.resolved, index.installed) == (1, [PINNED])
    assert await worker.python("a", asks("numpy  # a comment\n")) == first, "it has the same lock"
    assert (index.resolved, index.installed) == (2, [PINNED])
    index.lock = "numpy==2.1 --hash=sha256:bb\n"
    assert await worker.python("a", asks(train="three")) == first, (
        "newer packages change nothing of what was asked"
    )
    assert await worker.python("a", asks("numpy>2\n")) != first


async def test_each_project_has_its_own(worker: Worker, index: Index) -> None:
    found = await asyncio.gather(*(worker.python(project, asks()) for project in ("a", "b", "a", "b")))
    assert (found[0] == found[2], found[1] == found[3], len(set(found))) == (True, True, 2)
    assert (index.resolved, len(index.installed)) == (2, 2)


async def test_code_belongs_to_the_question_where_the_requirements_refer_to_it(
    worker: Worker, index: Index
) -> None:
    one, two = asks("-r base.txt\n", base="1"), asks("-r base.txt\n", base="2")
    first = await worker.python("a", one)
    assert await worker.python("a", two) == first, "the lock is the same, and pins all"
    assert index.resolved == 2
    assert [source is not None for source in index.sources] == [True, True]
    index.lock = "mine==1.0 @ ./mine\n"
    found = [await worker.python("a", {**files, "more": "x"}) for files in (one, two, one)]
    assert found[0] == found[2]
    assert len({first, *found}) == 3, "what is built of a folder is of this code alone"
    await worker.python("a", asks())
    assert index.sources[-1] is None, "it refers to none, and is out of reach"


async def test_settings_packages_and_kinds_are_part_of_the_question(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolved(**environ: str) -> int:
        before = index.resolved
        async with asyncio.TaskGroup() as tasks:
            await Worker(tmp_path, tasks, environ).python("a", asks())
        return index.resolved - before

    assert await resolved() == 1
    assert await resolved() == 0, "a later daemon finds the answer"
    assert await resolved(OTHER="x") == 0
    assert await resolved(PIP_INDEX_URL="https://host/simple") == 1
    assert await resolved(UV_INDEX_URL="https://host/simple") == 1
    monkeypatch.setattr(Base, "packages", lambda _: "another numpy")
    assert await resolved() == 1, "what its Python has is not installed: that has changed"
    assert len(index.installed) == 1, "with the same answer"
    index.kind = "another"
    assert await resolved() == 1
    assert len(index.installed) == 2


async def test_what_was_deleted_is_made_again_as_it_was_and_resolved_where_that_is_gone(
    worker: Worker, index: Index
) -> None:
    first = await worker.python("a", asks())
    (first.parents[2] / environments._MARKER).unlink()  # killed before it was complete
    index.lock = "numpy==2.1 --hash=sha256:bb\n"
    assert await worker.python("a", asks()) == first
    assert (index.resolved, index.installed) == (1, [PINNED, PINNED])
    (first.parents[2] / environments._MARKER).unlink()
    index.lacks = "numpy==2.0"
    second = await worker.python("a", asks())
    assert second != first
    assert index.installed[-1] == index.lock
    assert await worker.python("a", asks(train="x")) == second
    assert index.resolved == 2


async def test_what_a_crash_left_goes_and_the_oldest_goes(tmp_path: Path, index: Index) -> None:
    index.size_bytes = 60_000
    left = tmp_path / "environments"
    for name in ("0" * 32, "build-0"):
        (left / name / "venv").mkdir(parents=True)
    (left / "1").mkdir()
    for name in ("1/complete", "0.log"):  # of an earlier version
        (left / name).touch()
    async with asyncio.TaskGroup() as tasks:
        worker = Worker(tmp_path, tasks, limit_bytes=150_000)
        first = await worker.python("a", asks())
        worker.environments._held[first.parents[2].name] += 1
        second = await worker.python("b", asks())
        third = await worker.python("c", asks())
    assert first.exists(), "it is held"
    assert not second.exists(), "used longest ago, and not held"
    assert third.exists()
    kept = {first.parents[2].name, third.parents[2].name, environments._LOCKS}
    assert {path.name for path in left.iterdir()} == kept
    async with asyncio.TaskGroup() as tasks:
        small = Worker(tmp_path, tasks, limit_bytes=1)
        assert (await small.python("b", asks())).exists(), "what was just made stays, however large"


async def test_old_locks_go(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "LOCKS_KEPT", 2)
    async with asyncio.TaskGroup() as tasks:
        worker = Worker(tmp_path, tasks)
        for number in range(4):
            await worker.python("a", asks(f"numpy>{number}\n"))
    assert len(list((worker.folder / environments._LOCKS).iterdir())) == 2


async def test_two_questions_with_one_lock_are_installed_once_at_a_time(worker: Worker, index: Index) -> None:
    index.waits = asyncio.Event()
    both = asyncio.gather(worker.python("a", asks()), worker.python("a", asks("numpy>1\n")))
    while index.resolved < 2:
        await asyncio.sleep(0.01)
    index.waits.set()
    one, two = await both
    assert one == two
    assert index.installed == [PINNED]


async def test_the_log_says_what_is_installed_and_which_packages_a_trial_has(
    worker: Worker, index: Index
) -> None:
    index.lock = "numpy==2.0 --hash=sha256:aa\ntorch==2.9 --hash=sha256:bb\n"
    for _ in range(2):
        python = await worker.python("a", asks())
    key = python.parents[2].name[:12]
    said = f"headrace: requirements.txt, environment {key}: numpy 2.0, torch 2.9\n"
    assert worker.printed[0].startswith("headrace: installs requirements.txt for ")
    assert worker.printed[1:] == ["it is resolved\n", said, said]
    installs = [note for note in worker.notes if note and "code" not in note]
    assert installs[0].startswith("installs requirements.txt (")
    assert worker.notes[-1] == ""
    index.lock = ""
    await worker.python("b", asks())
    assert "all of it is in the worker's own environment" in worker.printed[-1]


async def test_a_failure_is_reported_with_its_last_lines_and_fails_fast(worker: Worker, index: Index) -> None:
    index.lacks = "numpy"
    for _ in range(2):
        with pytest.raises(UnpreparedError) as refused:
            await worker.python("a", asks())
        assert str(refused.value).startswith("requirements.txt cannot be installed for ")
        assert str(refused.value).endswith("the index lacks numpy\nno numpy")
    assert index.resolved == 1, "it was not tried again"
    assert [path.name for path in worker.folder.iterdir()] == []
    index.lacks = ""
    await worker.python("b", asks())
    assert index.resolved == 2, "the failure is that project's"


async def test_a_daemon_that_ends_ends_the_installation(worker: Worker, index: Index) -> None:
    index.waits = asyncio.Event()
    waiting = asyncio.create_task(worker.python("a", asks()))
    while not index.resolved:
        await asyncio.sleep(0.01)
    await worker.environments.close()
    with pytest.raises(OSError, match="the worker was stopped"):
        await waiting
    assert [path.name for path in worker.folder.iterdir()] == []


async def test_a_folder_that_is_not_shipped_is_looked_at(tmp_path: Path, index: Index) -> None:
    folder = tmp_path / "folder"
    (folder / "wheels").mkdir(parents=True)
    (folder / "requirements.txt").write_text("-r base.txt\n-f wheels\n")
    template = spec_pb2.TrialTemplate(working_dir=str(folder), requirements="requirements.txt")
    assign = worker_pb2.Assign(template=template, project="a")
    async with asyncio.TaskGroup() as tasks:
        worker = Worker(tmp_path, tasks)

        async def resolved() -> int:
            before = index.resolved
            worker.programs.release(await worker.programs.prepare(assign, lambda _: None, lambda _: None))
            return index.resolved - before

        assert [await resolved(), await resolved()] == [1, 0]
        assert index.sources == [folder]
        (folder / "base.txt").write_text("-c more/versions.txt\n")
        assert [await resolved(), await resolved()] == [1, 0]
        (folder / "more").mkdir()
        (folder / "more" / "versions.txt").write_text("numpy==2\n")
        assert [await resolved(), await resolved()] == [1, 0]
        (folder / "wheels" / "tinylib-1.0-py3-none-any.whl").write_text("x")
        (folder / "wheels" / "result.csv").write_text("x")
        assert [await resolved(), await resolved()] == [1, 0]
        (folder / "wheels" / "result.csv").write_text("more")
        (folder / "train.py").write_text("x")
        assert await resolved() == 0


async def test_a_file_that_trials_may_not_read_is_not_read(tmp_path: Path, index: Index) -> None:
    (tmp_path / "requirements.txt").write_text("secret\n")
    template = spec_pb2.TrialTemplate(working_dir=str(tmp_path), requirements="requirements.txt")
    async with asyncio.TaskGroup() as tasks:
        made = Environments(tmp_path / "environments", {}, tasks, 1 << 40)
        programs = Programs(cast("CodeCache", None), made, may_read=lambda _: False)
        with pytest.raises(UnpreparedError, match="closed to its trials"):
            await programs.prepare(worker_pb2.Assign(template=template), lambda _: None, lambda _: None)
    assert index.resolved == 0


async def test_what_is_larger_than_any_requirements_is_refused(worker: Worker, index: Index) -> None:
    with pytest.raises(UnpreparedError, match="more than 16 MiB"):
        await worker.python("a", asks("#" * ((16 << 20) + 1)))


async def test_nothing_is_installed_where_trials_have_no_groups_of_their_own(tmp_path: Path) -> None:
    """Under `--run-as` nothing else keeps the user's other trials away from an installation in progress."""
    started = tmp_path / "started"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {started}\n")
    python.chmod(0o755)
    (tmp_path / "requirements.txt").write_text("")
    template = spec_pb2.TrialTemplate(
        working_dir=str(tmp_path), python=str(python), requirements="requirements.txt"
    )
    async with asyncio.TaskGroup() as tasks:
        made = Environments(tmp_path / "environments", {}, tasks, 1 << 40)
        programs = Programs(cast("CodeCache", None), made, installs=False)
        with pytest.raises(UnpreparedError, match="--run-as"):
            await programs.prepare(worker_pb2.Assign(template=template), lambda _: None, lambda _: None)
    assert not started.exists()
