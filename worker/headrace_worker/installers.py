"""Resolves what a requirements file asks for, and installs it: with pip, or with uv if the worker has it.

Both read the file twice: once to resolve it to a lock (`package_locks`), once to install what the lock names. What
was installed is compared with the lock: by uv itself, through hashes; for pip, through its report.
"""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from headrace_worker import package_locks
from headrace_worker.build_folder import BuildFolder, StepFailedError
from headrace_worker.pythons import Base

UV_LOCK: Final = "uv.lock"
_PIP: Final = "import pip; raise SystemExit(tuple(map(int, pip.__version__.split('.')[:2])) < (22, 2))"
"""Whether there is a pip that reports what it would install."""
_EXTEND: Final = """
import pathlib, sys
place, *sites = sys.argv[1:]
lines = "".join(f"import site; site.addsitedir({site!r})\\n" for site in sites)
for folder in pathlib.Path(place).glob("lib/python*/site-packages"):
    (folder / "headrace_base.pth").write_text(lines)
"""
"""Lets an environment find the packages of its Python, after its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to install."""

    # The requirements file's path within its folder.
    name: str
    base: Base
    # The folder, if the file refers to other files; None if it does not, and the folder is inaccessible.
    source: Path | None


class Installer(Protocol):
    """A way to install."""

    # Part of an environment's key.
    kind: str

    async def resolve(self, build: BuildFolder, request: Request) -> str:
        """Return the lock. Raises `StepFailedError`, `CannotStartError` and `EditableError`."""
        ...

    async def install(self, build: BuildFolder, request: Request, lock: str, place: Path) -> None:
        """Makes an environment at `place`, an empty folder. Raises as `resolve` does."""
        ...


def installer_for(name: str, path: str | None) -> Installer:
    """The way to install a requirements file, with the programs on the `path`. Raises `StepFailedError`."""
    uv = shutil.which("uv", path=path)
    if name.rpartition("/")[2] == UV_LOCK:
        if uv is None:
            raise StepFailedError(
                f"{UV_LOCK} needs uv, which this worker lacks: install it there, "
                "or write `uv export -o requirements.txt`"
            )
        return UvSync(uv)
    return Pip() if uv is None else Uv(uv)


class Pip:
    """`venv` and `pip`."""

    kind = "pip"

    async def resolve(self, build: BuildFolder, request: Request) -> str:
        """See `Installer`."""
        tool = build.folder / "tool"
        build.give_folder(tool)
        await self._venv(build, request.base, tool)
        return await self._pip(build, request, tool, "--dry-run")

    async def install(self, build: BuildFolder, request: Request, lock: str, place: Path) -> None:
        """See `Installer`."""
        await self._venv(build, request.base, place)
        pins = _constraints(build, lock, hashes=False)
        if await self._pip(build, request, place, "--constraint", pins) != lock:
            raise StepFailedError("the files in the index have just changed")

    async def _venv(self, build: BuildFolder, base: Base, place: Path) -> None:
        await build.run(base.executable, "-I", "-m", "venv", "--without-pip", str(place))
        await _extend(build, base, place)
        python = _python(place)
        if not await build.succeeds(python, "-I", "-c", _PIP):
            await build.run(python, "-I", "-m", "ensurepip", "--upgrade")

    async def _pip(self, build: BuildFolder, request: Request, place: Path, *options: str) -> str:
        """Runs pip, which also sees the packages of the environment's Python; returns what it installed."""
        await build.run(
            *(_python(place), "-I", "-m", "pip", "install", "--no-input", "--progress-bar", "off"),
            *(*options, "--report", str(build.output), "--requirement", _file(build, request)),
            cwd=request.source,
        )
        try:
            report = build.read_output()
            return await asyncio.to_thread(package_locks.from_report, report, request.source or build.folder)
        except ValueError as error:
            raise StepFailedError(f"pip reports no packages: {error}") from error


@dataclass(frozen=True, slots=True)
class Uv:
    """`uv pip`."""

    uv: str
    kind = "uv"

    async def resolve(self, build: BuildFolder, request: Request) -> str:
        """See `Installer`."""
        compiled = await build.output_of(
            *(self.uv, "pip", "compile", "--quiet", "--generate-hashes"),
            *("--python", request.base.executable, _file(build, request)),
            cwd=request.source,
        )
        return package_locks.from_requirements(compiled.decode())

    async def install(self, build: BuildFolder, request: Request, lock: str, place: Path) -> None:
        """See `Installer`."""
        await build.run(*_uv_venv(self.uv, request.base, place))
        pins = _constraints(build, lock, hashes=True)
        await build.run(
            *(self.uv, "pip", "install", "--python", _python(place), "--compile-bytecode"),
            *("--requirement", _file(build, request), "--constraint", pins),
            cwd=request.source,
        )
        await _extend(build, request.base, place)


@dataclass(frozen=True, slots=True)
class UvSync:
    """`uv sync`, for a `uv.lock` and the `pyproject.toml` beside it."""

    uv: str
    kind = "uv.lock"

    async def resolve(self, build: BuildFolder, request: Request) -> str:
        """See `Installer`."""
        exported = await build.output_of(self.uv, "export", "--quiet", "--no-emit-project", *_synced(request))
        return package_locks.from_requirements(exported.decode())

    async def install(self, build: BuildFolder, request: Request, lock: str, place: Path) -> None:  # noqa: ARG002 - an installer's
        """See `Installer`."""
        await build.run(*_uv_venv(self.uv, request.base, place))
        await build.run(
            *(self.uv, "sync", "--inexact", "--no-install-project", "--compile-bytecode"),
            *("--python", _python(place), *_synced(request)),
            UV_PROJECT_ENVIRONMENT=str(place),
        )
        await _extend(build, request.base, place)


def _synced(request: Request) -> tuple[str, ...]:
    assert request.source is not None
    return ("--frozen", "--no-dev", "--no-editable", "--project", str((request.source / request.name).parent))


def _uv_venv(uv: str, base: Base, place: Path) -> tuple[str, ...]:
    return (uv, "venv", "--no-project", "--python", base.executable, str(place))


async def _extend(build: BuildFolder, base: Base, place: Path) -> None:
    # In a process of its own: the file is the installer's, which might have put a link in its place.
    await build.run(_python(place), "-I", "-S", "-c", _EXTEND, str(place), *base.sites)


def _constraints(build: BuildFolder, lock: str, *, hashes: bool) -> str:
    path = build.folder / "constraints.txt"
    build.give(path, package_locks.constraints(lock, hashes=hashes).encode())
    return str(path)


def _file(build: BuildFolder, request: Request) -> str:
    """The requirements file: in its folder if it refers to others, else alone."""
    return str(build.requirements if request.source is None else request.source / request.name)


def _python(place: Path) -> str:
    return str(place / "bin" / "python")
