"""Environments for what studies require: one per project, package lock and Python, made once.

    question                     the project, the requirements file, the Python      environments/locks/QUESTION
      → resolved, once → lock    each package with its hash (`package_locks`)
    project, lock, Python        → installed, once → an environment                  environments/KEY/venv

The first attempt that needs an environment → a task makes it, others wait → its marker is written → every attempt
uses it.

A question is everything that decides how packages are resolved: the text of the file, the packages of its Python,
and the worker's settings for pip and uv. If the text refers to files, the code's digest is part of it. Its lock is
kept for as long as it is used. So starting a trial resolves nothing, newer packages in an index change no study,
and a deleted environment is made again as it was. An edit of the code alone reinstalls nothing.

Nothing is shared between projects, so that none can choose what another imports. `build_folder` describes who
installs, and with which rights.

An environment extends that of its Python: packages that are not required are found there, so a trial always has
Headrace itself. The task belongs to the daemon, not to an attempt: an attempt that is told to end meanwhile leaves
it to the next one. One daemon uses a home, so nobody else makes the environment at the same time. What a crash
left behind lacks its marker, and is deleted.

A failed installation is a defect of the study. It is remembered for a while, so that the study's trials fail at
once.

The environments together have a size limit. The one used longest ago is deleted first, but none that an attempt
holds.
"""

import asyncio
import hashlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace_worker import package_locks
from headrace_worker.build_folder import BuildFolder, StepFailedError
from headrace_worker.code_cache import UnpreparedError
from headrace_worker.disk import clear_away, size_bytes
from headrace_worker.installers import UV_LOCK, Installer, Request, installer_for
from headrace_worker.package_locks import EditableError
from headrace_worker.process import CannotStartError
from headrace_worker.pythons import Base, Pythons
from headrace_worker.run_as import OtherUser, pass_through

FAILED_FOR_S = 60.0
LOCKS_KEPT = 1000
_VERSION = "2"
_LOCKS = "locks"
_MARKER = "complete"
_BUILD = "build-"
_LAST_LINES = 12
_LAST_BYTES = 4000
_POLL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Required:
    """What a study's program requires."""

    # Its owner: no other owner gets its environment.
    owner: str
    # The file's path within the folder of the program, and its content.
    name: str
    content: bytes
    # The Python to extend; empty: the worker's own.
    python: str
    # Identifies what the file may refer to: the digest of the code, or what the folder holds.
    beside: Callable[[], str]
    # Says which folder has the program's files, to install from. It may create one at the given path, for the
    # given user.
    source: Callable[[Path, str], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What determines how packages are resolved."""

    key: str
    # The project it is installed for, and the user that trials run as.
    whose: tuple[str, ...]
    required: Required
    base: Base
    installer: Installer
    # Identifies the files that the text refers to; empty if it refers to none.
    beside: str

    def environment(self, lock: str) -> str:
        """The key of the environment that has a lock's packages."""
        beside = "" if package_locks.is_pinned(lock) else self.beside
        return _digest(*self.whose, self.installer.kind, *self.base.named, beside, lock)


@dataclass(slots=True)
class _Making:
    # Returns everything that was printed.
    task: "asyncio.Task[bytes]"
    log: Path
    began: float = field(default_factory=time.monotonic)


class Environments:
    """The environments of one daemon."""

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        tasks: asyncio.TaskGroup,
        limit_bytes: int,
        user: OtherUser | None = None,
    ) -> None:
        """`environ` is the worker's environment; `user` is the user that trials run as, if it is not the worker's."""
        self._folder = folder
        self._environ = environ
        self._tasks = tasks
        self._limit_bytes = limit_bytes
        self._user = user
        self._settings = tuple(
            sorted(item for item in environ.items() if item[0].startswith(("PIP_", "UV_")))
        )
        self._pythons = Pythons(environ, self._output_of)
        self._held: Counter[str] = Counter()
        self._making: dict[str, _Making] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._failed: dict[str, tuple[str, float]] = {}
        self._swept = False

    async def python(
        self, required: Required, note: Callable[[str], None], print_: Callable[[str], None]
    ) -> Path:
        """The interpreter of an environment with what is required, which stays until `release`. `note` receives
        what it is waiting for; `print_` receives what the installer prints, and which packages it has. Raises
        `UnpreparedError`."""
        question = await self._question(required)
        while (found := self._hold(question)) is None:
            await self._wait(question, note, print_)
        key, lock = found
        packages = package_locks.shown(lock) or "all of it is in the worker's own environment"
        print_(f"headrace: {required.name}, environment {key[:12]}: {packages}\n")
        return self._place(key) / "bin" / "python"

    def release(self, python: Path) -> None:
        """One user of this interpreter has released it."""
        key = python.parents[2].name
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]

    async def close(self) -> None:
        """Ends the installations in progress."""
        tasks = [making.task for making in self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _question(self, required: Required) -> _Question:
        base = await self._pythons.base(required.python)
        try:
            installer = installer_for(required.name, self._environ.get("PATH"))
        except StepFailedError as error:
            raise UnpreparedError(
                f"{required.name} cannot be installed for {base.executable}: {error}"
            ) from None
        beside = ""
        if installer.kind == UV_LOCK or package_locks.refers_to_files(required.content):
            beside = await asyncio.to_thread(required.beside)
        packages = await asyncio.to_thread(base.packages)
        whose = (required.owner, "" if self._user is None else str(self._user.uid))
        text = hashlib.sha256(required.content).hexdigest()
        which = required.name if beside else ""
        settings = (f"{name}={value}" for name, value in self._settings)
        key = _digest(*whose, installer.kind, *base.named, packages, beside, which, text, *settings)
        return _Question(
            key=key, whose=whose, required=required, base=base, installer=installer, beside=beside
        )

    def _hold(self, question: _Question) -> tuple[str, str] | None:
        """The key and the lock of a complete environment, which is held from now on; None if there is none yet."""
        path = self._lock_path(question)
        try:
            lock = path.read_text()
            key = question.environment(lock)
            os.utime(self._folder / key / _MARKER)
            os.utime(path)
        except FileNotFoundError:
            return None
        self._held[key] += 1
        return key, lock

    async def _wait(
        self, question: _Question, note: Callable[[str], None], print_: Callable[[str], None]
    ) -> None:
        text, at = self._failed.get(question.key, ("", 0.0))
        if text and time.monotonic() - at < FAILED_FOR_S:
            raise UnpreparedError(text)
        making = self._making.get(question.key)
        if making is None:
            build = self._build_folder()
            task = self._tasks.create_task(self._make(question, build), name=f"make {question.key}")
            making = self._making[question.key] = _Making(task, build.log)
        task, name = making.task, question.required.name
        print_(f"headrace: installs {name} for {question.base.executable}\n")
        offset = 0
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_POLL_S)
                note(f"installs {name} ({time.monotonic() - making.began:.0f} s)")
                over = task.done() and not task.cancelled()
                new = task.result()[offset:] if over else _read_on(making.log, offset)
                offset += len(new)
                if new:
                    print_(new.decode(errors="replace"))
        finally:
            note("")
        if task.cancelled():
            raise OSError("the worker was stopped while it installed the study's requirements")
        if failure := self._failed.get(question.key):
            raise UnpreparedError(failure[0])

    async def _make(self, question: _Question, build: BuildFolder) -> bytes:
        name = question.required.name
        try:
            self._failed.pop(question.key, None)
            await asyncio.to_thread(build.make, question.required.content)
            made = await self._answer(question, build)
            await self._trim(made)
        except EditableError:
            text = f"{name} asks for an editable install; leave it out, the folder is on the path anyway"
            self._failed[question.key] = (text, time.monotonic())
        except (StepFailedError, CannotStartError, ValueError, OSError) as error:
            said = f"{name} cannot be installed for {question.base.executable}: {error}\n{_last(build)}"
            self._failed[question.key] = (said.strip(), time.monotonic())
        finally:
            printed = _read_on(build.log, 0)
            del self._making[question.key]
            await asyncio.to_thread(clear_away, build.folder)
        return printed

    async def _answer(self, question: _Question, build: BuildFolder) -> str:
        """Makes the environment for a question, with the packages of its lock if it has one; returns its key."""
        source = None
        if question.beside:
            source = await asyncio.to_thread(question.required.source, build.folder / "source", build.owner)
        request = Request(name=question.required.name, base=question.base, source=source)
        path = self._lock_path(question)
        if path.exists():
            with suppress(StepFailedError):  # the index lacks a file of the lock
                return await self._install(question, request, build, path.read_text())
            path.unlink()
        lock = await question.installer.resolve(build, request)
        key = await self._install(question, request, build, lock)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(lock)
        part.replace(path)
        return key

    async def _install(self, question: _Question, request: Request, build: BuildFolder, lock: str) -> str:
        """Makes the environment for a lock, unless it exists: another question may have the same lock."""
        key = question.environment(lock)
        folder, place = self._folder / key, self._place(key)
        async with self._turns.setdefault(key, asyncio.Lock()):
            if self._is_complete(key):
                return key
            await self._discard(folder)
            folder.mkdir()
            try:
                build.close(folder)
                build.give_folder(place)
                await question.installer.install(build, request, lock, place)
                await asyncio.to_thread(build.open_to_all, folder, place)
                size = await asyncio.to_thread(size_bytes, folder)
                (folder / _MARKER).write_text(str(size))
            except BaseException:
                await self._discard(folder)
                raise
        return key

    def _build_folder(self) -> BuildFolder:
        """Names a folder to build in, below that of the environments. Deletes what a crash left half done there,
        and what earlier versions made."""
        if not self._swept:
            self._swept = True
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._user is not None:
                pass_through(self._folder)
            for found in list(self._folder.iterdir()):
                if not found.is_dir():
                    found.unlink()
                elif found.name != _LOCKS and not self._is_complete(found.name):
                    gone = self._moved_away(found)
                    self._tasks.create_task(asyncio.to_thread(clear_away, gone), name=f"delete {found.name}")
        return BuildFolder(self._folder / f"{_BUILD}{uuid.uuid4().hex[:12]}", self._environ, self._user)

    async def _discard(self, folder: Path) -> None:
        """Deletes an environment, if it exists. Its name is free at once."""
        await asyncio.to_thread(clear_away, self._moved_away(folder))

    def _moved_away(self, folder: Path) -> Path:
        gone = self._folder / f"{_BUILD}{uuid.uuid4().hex[:12]}"
        with suppress(FileNotFoundError):
            (folder / _MARKER).unlink(missing_ok=True)
            folder.rename(gone)
        return gone

    async def _trim(self, made: str) -> None:
        """Deletes the environments used longest ago, down to the limit, but not the one that was just made."""
        found = []
        for marker in self._folder.glob(f"*/{_MARKER}"):
            with suppress(OSError, ValueError):
                found.append((marker.stat().st_mtime_ns, int(marker.read_text()), marker.parent))
        total = sum(size for _, size, _ in found)
        for _, size, folder in sorted(found):
            if total <= self._limit_bytes:
                break
            if folder.name != made and folder.name not in self._held:
                await self._discard(folder)
                total -= size
        locks = sorted((self._folder / _LOCKS).iterdir(), key=lambda lock: lock.stat().st_mtime_ns)
        for lock in locks[:-LOCKS_KEPT]:
            lock.unlink(missing_ok=True)

    async def _output_of(self, args: tuple[str, ...]) -> bytes:
        """What a program prints when it is run with the rights of an installer."""
        build = self._build_folder()
        try:
            await asyncio.to_thread(build.make, b"")
            return await build.output_of(*args)
        except StepFailedError as error:
            raise OSError(f"{error}\n{_last(build)}") from error
        finally:
            await asyncio.to_thread(clear_away, build.folder)

    def _is_complete(self, key: str) -> bool:
        return (self._folder / key / _MARKER).exists() and self._place(key).exists()

    def _place(self, key: str) -> Path:
        """Where an environment is. The folder above it belongs to the worker."""
        return self._folder / key / "venv"

    def _lock_path(self, question: _Question) -> Path:
        return self._folder / _LOCKS / question.key


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join((_VERSION, *parts)).encode(errors="surrogateescape")).hexdigest()[:32]


def _last(build: BuildFolder) -> str:
    """The last lines that a build printed."""
    lines = _read_on(build.log, 0).decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    return "\n".join(lines)[-_LAST_BYTES:]


def _read_on(log: Path, offset: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""
