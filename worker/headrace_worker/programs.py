"""What an attempt's program needs before it can start: its code, and an environment with what it requires.

A program that is found in its folder and requires nothing needs nothing from here. All others hold their archive
from `prepare` to `release`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.code.archive import read_member
from headrace.v1 import worker_pb2
from headrace_worker.code_cache import CodeCache, UnpreparedError, unpack
from headrace_worker.environments import Environments, Required
from headrace_worker.named_files import MOST_BYTES, contents, state_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A program that can be started."""

    # Its code; None: it is in the folder that its template names.
    archive: Path | None = None
    # The interpreter of the environment that was made for it; None if none was.
    python: Path | None = None


class Programs:
    """Prepares programs for one daemon."""

    def __init__(
        self,
        cache: CodeCache,
        environments: Environments,
        *,
        may_read: Callable[[int], bool] = lambda _: True,
        installs: bool = True,
    ) -> None:
        """`may_read` says of an open file whether trials may read it; `installs` says whether environments can be
        made."""
        self._cache = cache
        self._environments = environments
        self._may_read = may_read
        self._installs = installs

    async def prepare(
        self, assign: worker_pb2.Assign, note: Callable[[str], None], print_: Callable[[str], None]
    ) -> Prepared:
        """Fetches and installs what is missing. `note` receives what it is waiting for, and an empty text at the
        end; `print_` receives what the trial's log must say. Raises `UnpreparedError`, and `OSError` for problems
        that may pass."""
        template = assign.template
        if template.requirements and not self._installs:
            raise UnpreparedError(
                "this worker runs trials as another user (--run-as) in a user namespace without groups for them, and "
                f"installs nothing: {template.requirements} is not installed here. Install it where that user can "
                "read it, and leave `requirements` out"
            )
        digest = template.code.digest
        archive = await self._cache.hold(digest, note) if digest else None
        try:
            python = None
            if template.requirements:
                required = self._required(assign, archive)
                python = await self._environments.python(required, note, print_)
            return Prepared(archive=archive, python=python)
        except BaseException:
            if digest:
                self._cache.release(digest)
            raise

    def release(self, prepared: Prepared) -> None:
        """The attempt for which it was prepared has ended."""
        if prepared.archive is not None:
            self._cache.release(prepared.archive.stem)
        if prepared.python is not None:
            self._environments.release(prepared.python)

    def _required(self, assign: worker_pb2.Assign, archive: Path | None) -> Required:
        name = assign.template.requirements
        folder = Path(assign.template.working_dir)
        if archive is None:
            content = contents(folder / name, self._may_read)
        else:
            with archive.open("rb") as file:
                content = read_member(file, archive.stem, name)
        if content is None:
            where = (
                "the code of the study"
                if archive
                else f"working_dir {str(folder)!r}, or is closed to its trials"
            )
            raise UnpreparedError(f"trial.requirements: {name!r} is not in {where}")
        if len(content) > MOST_BYTES:
            raise UnpreparedError(f"trial.requirements: {name!r} has more than {MOST_BYTES >> 20} MiB")
        return Required(
            owner=owner_of(assign),
            name=name,
            content=content,
            python=assign.template.python,
            beside=(lambda: archive.stem) if archive else partial(state_of, folder, name, self._may_read),
            source=partial(_unpacked, archive) if archive else lambda _, __: folder,
        )


def owner_of(assign: worker_pb2.Assign) -> str:
    """Identifies the project whose trials share what is here."""
    return f"project {assign.project}"


def _unpacked(archive: Path, place: Path, owner: str) -> Path:
    unpack(archive, place, owner)
    return place
