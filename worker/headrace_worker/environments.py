"""Environments for what studies require: one for each content of a requirements file and each Python, made once.

    the first attempt that needs it → a task makes it, others wait → its marker is written → every attempt uses it

It extends the environment of its Python: what is not required is found there, so a trial always has Headrace itself.
`uv` makes it where the worker has that, else `venv` and `pip`. The task belongs to the daemon, not to an attempt: one
that is told to end meanwhile leaves it to the next. One daemon uses a home, so nobody else makes it at the same time.
After a crash it lacks its marker and is made anew.

What cannot be installed is a defect of the study. It is remembered for a while, so that its trials fail at once.

The environments have a limit together. The one that was used longest ago goes first, and none that an attempt holds.
"""

import asyncio
import hashlib
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.environment import select
from headrace.userfile import parse_json
from headrace_worker.code_cache import UnpreparedError
from headrace_worker.disk import clear_away, size_bytes
from headrace_worker.launch import Launch
from headrace_worker.process import CannotStartError, TrialProcess

FAILED_FOR_S = 60.0
_VERSION = "1"
_LOCK = "uv.lock"
_MARKER = "complete"
_LAST_LINES = 12
_LAST_BYTES = 4000
_POLL_S = 0.25
_LOCAL = re.compile(
    r"^\s*(-[rce]|--(requirement|constraint|editable|find-links)\b|\.|file:|\S*/)", re.MULTILINE
)
"""Lines of a requirements file that name further files."""
_EDITABLE = re.compile(r"^\s*(-e|--editable)\b", re.MULTILINE)
_PROBE = (
    "import json, site, sys;"
    "print(json.dumps([sys.version, sys.prefix, sys.executable, site.getsitepackages()]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Required:
    """What a study's program asks for."""

    # The file's path within the folder of the program, and its content.
    name: str
    content: bytes
    # The Python to extend; empty: the worker's own.
    python: str
    # Names what the file may refer to: the digest of the code, or the folder.
    beside: str
    # Says which folder has the program's files, to install from; it may make one at the path that it is given.
    source: Callable[[Path], Path]


@dataclass(slots=True)
class _Making:
    task: "asyncio.Task[None]"
    log: Path
    began: float


class Environments:
    """The environments of one daemon."""

    def __init__(
        self, folder: Path, environ: Mapping[str, str], tasks: asyncio.TaskGroup, limit_bytes: int
    ) -> None:
        self._folder = folder
        self._tasks = tasks
        self._limit_bytes = limit_bytes
        self._held: Counter[str] = Counter()
        # Installing runs code of packages: it gets what trials get, and the settings of the installers.
        installers = {name: value for name, value in environ.items() if name.startswith(("PIP_", "UV_"))}
        self._environ = {**select(environ).passed, **installers, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self._making: dict[str, _Making] = {}
        self._failed: dict[str, tuple[str, float]] = {}

    async def python(
        self, required: Required, note: Callable[[str], None], print_: Callable[[str], None]
    ) -> Path:
        """The interpreter of an environment with what is required, which stays until `release`. `note` is told what is
        waited for, `print_` what the installer prints. Raises `UnpreparedError`."""
        if _EDITABLE.search(required.content.decode(errors="replace")):
            raise UnpreparedError(
                f"{required.name} asks for an editable install, and the folder is on the path anyway: leave that out"
            )
        base = await self._base(required.python)
        key = _key(required, base)
        place = self._folder / key
        self._held[key] += 1
        python = place / "bin" / "python"
        try:
            if not (place / _MARKER).exists():
                self._require_no_failure(key)
                await self._wait(key, place, required, base, note, print_)
            os.utime(place / _MARKER)
        except BaseException:
            self.release(python)
            raise
        return python

    def _require_no_failure(self, key: str) -> None:
        text, at = self._failed.get(key, ("", 0.0))
        if text and time.monotonic() - at < FAILED_FOR_S:
            raise UnpreparedError(text)

    def release(self, python: Path) -> None:
        """One who was given this interpreter does not use it any more."""
        key = python.parent.parent.name
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]

    async def close(self) -> None:
        """Ends what is being made."""
        tasks = [making.task for making in self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(
        self,
        key: str,
        place: Path,
        required: Required,
        base: "_Base",
        note: Callable[[str], None],
        print_: Callable[[str], None],
    ) -> None:
        making = self._making.get(key)
        if making is None:
            log = place.with_suffix(".log")
            task = self._tasks.create_task(self._make(key, place, required, base, log), name=f"make {key}")
            making = self._making[key] = _Making(task, log, time.monotonic())
        print_(f"headrace: installs {required.name} for {base.executable}\n")
        offset = 0
        try:
            while not making.task.done():
                await asyncio.wait({making.task}, timeout=_POLL_S)
                note(f"installs {required.name} ({time.monotonic() - making.began:.0f} s)")
                text, offset = _read_on(making.log, offset)
                if text:
                    print_(text)
        finally:
            note("")
        if making.task.cancelled():
            raise OSError("the worker was stopped while it installed what the study requires")
        if failure := self._failed.get(key):
            raise UnpreparedError(failure[0])

    async def _make(self, key: str, place: Path, required: Required, base: "_Base", log: Path) -> None:
        source = place.with_suffix(".source")
        try:
            self._failed.pop(key, None)
            for old in (place, source):
                await asyncio.to_thread(clear_away, old)
            await asyncio.to_thread(log.unlink, missing_ok=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            folder = await asyncio.to_thread(required.source, source)
            await self._install(place, folder, required, base, log)
            size = await asyncio.to_thread(size_bytes, place)
            (place / _MARKER).write_text(str(size))
            await asyncio.to_thread(self._trim)
        except (_FailedError, CannotStartError, OSError) as error:
            printed, _ = _read_on(log, 0)
            last = "\n".join(printed.strip().splitlines()[-_LAST_LINES:])
            said = f"{required.name} cannot be installed for {base.executable}: {error}"
            self._failed[key] = (f"{said}\n{last[-_LAST_BYTES:]}".strip(), time.monotonic())
            await asyncio.to_thread(clear_away, place)
        finally:
            del self._making[key]
            await asyncio.to_thread(clear_away, source)

    async def _install(self, place: Path, source: Path, required: Required, base: "_Base", log: Path) -> None:
        uv = shutil.which("uv", path=self._environ.get("PATH"))
        name, python = required.name, str(place / "bin" / "python")
        if uv is None and name.rpartition("/")[2] == _LOCK:
            raise _FailedError(
                f"{_LOCK} needs uv, which this worker lacks: install it there, or write `uv export -o requirements.txt`"
            )
        run = _Runner(source, self._environ, log)
        if uv is not None:
            await run(uv, "venv", "--no-project", "--python", base.executable, str(place))
            if name.rpartition("/")[2] == _LOCK:
                project = str((source / name).parent)
                name = str(place.with_suffix(".requirements"))
                await run(
                    *(uv, "export", "--frozen", "--no-dev", "--no-emit-project", "--quiet"),
                    *("--project", project, "--output-file", name),
                )
            await run(uv, "pip", "install", "--python", python, "--requirement", name)
            _extend(place, base)
            return
        await run(base.executable, "-m", "venv", "--without-pip", str(place))
        _extend(place, base)
        if not await run.succeeds(python, "-c", "import pip"):
            await run(python, "-m", "ensurepip")
        await run(
            python, "-m", "pip", "install", "--no-input", "--progress-bar", "off", "--requirement", name
        )

    def _trim(self) -> None:
        """Deletes what was used longest ago, down to the limit."""
        found = []
        for marker in self._folder.glob(f"*/{_MARKER}"):
            with suppress(OSError, ValueError):
                found.append((marker.stat().st_mtime_ns, int(marker.read_text()), marker.parent))
        total = sum(size for _, size, _ in found)
        for _, size, place in sorted(found):
            if total <= self._limit_bytes:
                break
            if place.name not in self._held:
                (place / _MARKER).unlink(missing_ok=True)  # first: half of it is none
                clear_away(place)
                total -= size

    async def _base(self, python: str) -> "_Base":
        try:
            process = await asyncio.create_subprocess_exec(
                *(python or sys.executable, "-c", _PROBE),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ,
            )
            out, _ = await process.communicate()
            version, prefix, executable, sites = parse_json(out.splitlines()[-1])
        except (OSError, ValueError, IndexError) as error:
            raise UnpreparedError(
                f"python {python or sys.executable!r} cannot be started: {error}"
            ) from error
        return _Base(version, prefix, executable, tuple(sites))


@dataclass(frozen=True, slots=True)
class _Base:
    """A Python that an environment extends."""

    version: str
    prefix: str
    executable: str
    sites: tuple[str, ...]


class _FailedError(Exception):
    """A step of the installation failed."""


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs the steps, one after the other, in the folder of the program; they end with the daemon."""

    folder: Path
    environ: Mapping[str, str]
    log: Path

    async def __call__(self, *args: str) -> None:
        """Raises `_FailedError`."""
        if code := await self._run(args):
            shown = " ".join((Path(args[0]).name, *args[1:4]))
            raise _FailedError(f"`{shown} …` ended with status {code}")

    async def succeeds(self, *args: str) -> bool:
        """Whether a program ends well; what it prints is dropped."""
        return not await self._run(args, quiet=True)

    async def _run(self, args: tuple[str, ...], *, quiet: bool = False) -> int:
        launch = Launch(args=args, env=self.environ, working_dir=str(self.folder), log_path=self.log)
        with (Path("/dev/null") if quiet else self.log).open("ab") as output:
            process = await TrialProcess.spawn(launch, output)
            try:
                return await process.wait()
            finally:
                await process.group_gone()


def _key(required: Required, base: _Base) -> str:
    beside = required.beside if _LOCAL.search(required.content.decode(errors="replace")) else ""
    kind = _LOCK if required.name.endswith(_LOCK) else "pip"
    parts = (_VERSION, base.version, base.prefix, base.executable, kind, beside)
    digest = hashlib.sha256("\0".join(parts).encode() + b"\0" + required.content)
    return digest.hexdigest()[:32]


def _extend(place: Path, base: _Base) -> None:
    """Lets an environment find, behind its own packages, those of its Python."""
    lines = "".join(f"import site; site.addsitedir({site!r})\n" for site in base.sites)
    for folder in place.glob("lib/python*/site-packages"):
        (folder / "headrace_base.pth").write_text(lines)


def _read_on(log: Path, offset: int) -> tuple[str, int]:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return "", offset
    return data.decode(errors="replace"), offset + len(data)
