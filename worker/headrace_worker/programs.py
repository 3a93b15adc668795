"""What an attempt's program needs before it can start: its code, and an environment with what it requires.

A program that finds its folder by itself and requires nothing needs nothing here. All others hold their archive from
`prepare` to `release`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.code.archive import read_member
from headrace.v1 import spec_pb2
from headrace_worker.code_cache import CodeCache, UnpreparedError, unpack
from headrace_worker.environments import Environments, Required


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A program that can start."""

    # Its code; None: it is in the folder that its template names.
    archive: Path | None = None
    # The interpreter of the environment that was made for it; None: none was.
    python: Path | None = None


class Programs:
    """Prepares programs for one daemon."""

    def __init__(self, cache: CodeCache, environments: Environments, *, installs: bool = True) -> None:
        """`installs`: whether environments are made. Making one runs the study's Python and what its packages bring, as
        the daemon's user: not where trials run as another one (`run_as`)."""
        self._cache = cache
        self._environments = environments
        self._installs = installs

    async def prepare(
        self, template: spec_pb2.TrialTemplate, note: Callable[[str], None], print_: Callable[[str], None]
    ) -> Prepared:
        """Fetches and installs what is not there. `note` is told what is waited for, and of its end by an empty text;
        `print_` what the trial's log is to say of it. Raises `UnpreparedError`, and `OSError` for what may pass."""
        if template.requirements and not self._installs:
            raise UnpreparedError(
                f"this worker runs trials as another user (--run-as), and installs nothing: {template.requirements} is "
                "not installed here. Install it where that user can read it, and leave `requirements` out"
            )
        digest = template.code.digest
        archive = await self._cache.hold(digest, note) if digest else None
        try:
            python = None
            if template.requirements:
                required = _required(template, archive)
                python = await self._environments.python(required, note, print_)
            return Prepared(archive=archive, python=python)
        except BaseException:
            if digest:
                self._cache.release(digest)
            raise

    def release(self, prepared: Prepared) -> None:
        """The attempt that it was prepared for is over."""
        if prepared.archive is not None:
            self._cache.release(prepared.archive.stem)
        if prepared.python is not None:
            self._environments.release(prepared.python)


def _required(template: spec_pb2.TrialTemplate, archive: Path | None) -> Required:
    name = template.requirements
    folder = Path(template.working_dir)
    if archive is None:
        try:
            content: bytes | None = (folder / name).read_bytes()
        except FileNotFoundError:
            content = None
    else:
        with archive.open("rb") as file:
            content = read_member(file, archive.stem, name)
    if content is None:
        where = "the code of the study" if archive else f"working_dir {str(folder)!r}"
        raise UnpreparedError(f"trial.requirements: {name!r} is not in {where}")
    return Required(
        name=name,
        content=content,
        python=template.python,
        beside=archive.stem if archive else str(folder),
        source=partial(_unpacked, archive) if archive else lambda _: folder,
    )


def _unpacked(archive: Path, place: Path) -> Path:
    unpack(archive, place)
    return place
