"""What a study requires is installed once, on top of the worker's environment; what cannot be is told."""

import asyncio
import subprocess
import zipfile
from pathlib import Path
from typing import cast

import pytest

from headrace.v1 import spec_pb2
from headrace_worker import environments
from headrace_worker.code_cache import CodeCache, UnpreparedError
from headrace_worker.environments import Environments, Required
from headrace_worker.process import TrialProcess
from headrace_worker.programs import Programs


def wheel(folder: Path, name: str = "tinylib", version: str = "1.0", word: str = "first") -> None:
    """A wheel with one module, made here."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", f"WORD = {word!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def required(folder: Path, text: str, *, beside: str = "code") -> Required:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requirements.txt").write_text(text)
    return Required(
        name="requirements.txt",
        content=text.encode(),
        python="",
        beside=beside,
        source=lambda _: folder,
    )


def made(tmp_path: Path, tasks: asyncio.TaskGroup, limit_bytes: int = 1 << 40) -> Environments:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "SECRET_TOKEN": "x"}
    return Environments(tmp_path / "environments", environ, tasks, limit_bytes)


def says(python: Path, code: str) -> str:
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.full
async def test_it_is_made_once_and_extends_the_workers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "p" / "wheels")
    wanted = required(tmp_path / "p", "./wheels/tinylib-1.0-py3-none-any.whl\n")
    spawned: list[tuple[str, ...]] = []
    plain = TrialProcess.spawn.__func__

    async def spawn(cls: type[TrialProcess], launch: object, *args: object) -> TrialProcess:
        spawned.append(launch.args)
        assert "SECRET_TOKEN" not in launch.env
        return await plain(cls, launch, *args)

    monkeypatch.setattr(TrialProcess, "spawn", classmethod(spawn))
    notes: list[str] = []
    printed: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        place = made(tmp_path, tasks)
        pythons = await asyncio.gather(
            *(place.python(wanted, notes.append, printed.append) for _ in range(3))
        )
        count = len(spawned)
        again = await place.python(wanted, notes.append, printed.append)
    assert set(pythons) == {again}
    assert len(spawned) == count, "the last one found it"
    assert sum("install" in args for args in spawned) == 1
    assert says(again, "import tinylib, grpc; print(tinylib.WORD)") == "first", "and what the worker has"
    assert any(note.startswith("installs requirements.txt (") for note in notes)
    assert notes[-1] == ""
    assert "installs requirements.txt for" in "".join(printed)
    async with asyncio.TaskGroup() as tasks:
        place = made(tmp_path, tasks)
        assert await place.python(wanted, notes.append, printed.append) == again, "a later daemon finds it"
        base = await place._base("")
    edited = required(tmp_path / "p", "./wheels/tinylib-1.0-py3-none-any.whl\n", beside="edited")
    assert environments._key(edited, base) != environments._key(wanted, base), (
        "what it refers to is another file"
    )
    named, same = (
        required(tmp_path / "p", "numpy==2.0\n"),
        required(tmp_path / "p", "numpy==2.0\n", beside="edited"),
    )
    assert environments._key(named, base) == environments._key(same, base), (
        "other code with the same requirements"
    )


async def test_what_cannot_be_installed_is_told_with_its_last_lines_and_fails_fast(tmp_path: Path) -> None:
    wanted = required(tmp_path / "p", "no-such-package-of-ours==9.9\n")
    printed: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        place = made(tmp_path, tasks)
        with pytest.raises(UnpreparedError) as refused:
            await place.python(wanted, lambda _: None, printed.append)
        text = str(refused.value)
        assert text.startswith("requirements.txt cannot be installed for ")
        assert "No matching distribution found for no-such-package-of-ours==9.9" in text
        assert "No matching distribution" in "".join(printed), "the trial's log has it"
        (log,) = (tmp_path / "environments").iterdir()
        written_at = log.stat().st_mtime_ns
        with pytest.raises(UnpreparedError, match="No matching distribution"):
            await place.python(wanted, lambda _: None, printed.append)
        assert log.stat().st_mtime_ns == written_at, "it was not tried again"


async def test_what_a_crash_left_is_made_anew_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installs: list[Path] = []

    async def install(self: Environments, place: Path, *_: object) -> None:
        assert place not in set(place.parent.iterdir()), "nothing of an earlier attempt"
        installs.append(place)
        (place / "bin").mkdir(parents=True)
        (place / "bin" / "python").write_bytes(b"x" * 60_000)

    monkeypatch.setattr(Environments, "_install", install)
    async with asyncio.TaskGroup() as tasks:
        place = made(tmp_path, tasks, limit_bytes=150_000)
        first = await place.python(required(tmp_path / "p", "one\n"), lambda _: None, lambda _: None)
        place.release(first)
        (first.parent.parent / environments._MARKER).unlink()  # killed before it was complete
        assert await place.python(required(tmp_path / "p", "one\n"), lambda _: None, lambda _: None) == first
        assert len(installs) == 2
        second = await place.python(required(tmp_path / "p", "two\n"), lambda _: None, lambda _: None)
        place.release(second)
        third = await place.python(required(tmp_path / "p", "three\n"), lambda _: None, lambda _: None)
        assert first.exists(), "it is held"
        assert not second.exists(), "used longest ago, and not held"
        assert third.exists()


async def test_a_lock_needs_uv_and_an_editable_install_is_refused(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        place = made(tmp_path, tasks)
        lock = Required(
            name="uv.lock", content=b"version = 1\n", python="", beside="c", source=lambda _: tmp_path
        )
        with pytest.raises(UnpreparedError, match=r"uv.lock needs uv, which this worker lacks"):
            await place.python(lock, lambda _: None, lambda _: None)
        with pytest.raises(UnpreparedError, match="editable install"):
            await place.python(required(tmp_path / "p", "-e .\n"), lambda _: None, lambda _: None)
        nowhere = Required(
            name="requirements.txt",
            content=b"",
            python="/no/such/python",
            beside="c",
            source=lambda _: tmp_path,
        )
        with pytest.raises(UnpreparedError, match="/no/such/python"):
            await place.python(nowhere, lambda _: None, lambda _: None)


async def test_a_daemon_that_ends_ends_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def install(self: Environments, *_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Environments, "_install", install)
    async with asyncio.TaskGroup() as tasks:
        place = made(tmp_path, tasks)
        waiting = asyncio.create_task(
            place.python(required(tmp_path / "p", "one\n"), lambda _: None, lambda _: None)
        )
        while not place._making:
            await asyncio.sleep(0.01)
        await place.close()
        with pytest.raises(OSError, match="the worker was stopped"):
            await waiting


async def test_nothing_is_installed_where_trials_run_as_another_user(tmp_path: Path) -> None:
    """The daemon is root there, and what installs would be the study's own programs."""
    started = tmp_path / "started"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {started}\n")
    python.chmod(0o755)
    (tmp_path / "requirements.txt").write_text("")
    template = spec_pb2.TrialTemplate(
        working_dir=str(tmp_path), python=str(python), requirements="requirements.txt"
    )
    async with asyncio.TaskGroup() as tasks:
        programs = Programs(cast("CodeCache", None), made(tmp_path, tasks), installs=False)
        with pytest.raises(UnpreparedError, match="--run-as"):
            await programs.prepare(template, lambda _: None, lambda _: None)
    assert not started.exists()
