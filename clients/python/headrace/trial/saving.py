"""Saving: this process's state becomes its part of the checkpoint.

A single process writes everything. In a gang the ranks first agree (`ranks`), so that state that is equal on all
of them is written once, and each rank writes the rest. An object that saves itself (sharded over the ranks) does
so first, on all ranks together.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from headrace.trial import checkpoint, rng
from headrace.trial.codec import encode
from headrace.trial.digests import digest
from headrace.trial.ranks import (
    PREFIX,
    SHARED,
    Agreed,
    Word,
    agree,
    await_parts,
    clear_exchanges,
    exchange,
    follow_first,
    pass_by,
)
from headrace.trial.runtime import Assignment
from headrace.trial.tracking import Tracked, TrackedFiles

logger = logging.getLogger("headrace.trial")
FULL_DISK_WAITS_S = (1.0, 30.0)
AT_END_S = 20.0
"""How long the ranks of a gang wait for each other when it ends by itself; a rank that does not come is then not
a failure.
"""
RNG = "rng"
_Result = TypeVar("_Result")


def of_object(name: str) -> str:
    """The key of a tracked object among the pieces of a part."""
    return f"tracked/{name}"


def of_value(name: object) -> str:
    """The key of an entry of `t.state`."""
    return f"state/{name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The state to save."""

    step: int
    loop_step: int
    tracked: Mapping[str, Tracked | TrackedFiles]
    state: Mapping[str, Any]
    params: Mapping[str, Any]
    # A bundle group's additional state of its member; for a single trial, its optimizer's steps.
    member: Mapping[str, Any] = field(default_factory=dict)

    @property
    def anything(self) -> bool:
        """Whether the script has anything to save."""
        return bool(self.tracked or self.state)


class Saver:
    """Saves for one process."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._rank, self._world = assignment.rank, assignment.ranks
        self._lacked: frozenset[str] = frozenset()
        self._waits = False
        self._patience_s = assignment.rank_patience_s
        self._at_end = False  # does not wait for a full disk

    def save(self, content: Content, sequence: int, *, longest_s: float) -> Path | None:
        """Writes the checkpoint of a report; None if there is nothing to save.

        `longest_s` is the longest time between two reports so far. Raises `RanksError` if the ranks of a gang do
        not reach the same checkpoint. A rank that has nothing to save does not wait for others.

        If the disk is full, it waits, except in a gang while objects save themselves: they do so on all ranks
        together, and one rank cannot repeat it alone. The full disk is then the error, for which the machine is
        to blame, not the program.
        """
        root = self._assignment.checkpoint_dir
        assert root is not None
        folder = root / f"step-{content.step:08d}-{sequence:06d}"
        tracked = {
            name: entry.get_state() for name, entry in content.tracked.items() if isinstance(entry, Tracked)
        }
        state = dict(content.state)
        files = {name: entry for name, entry in content.tracked.items() if isinstance(entry, TrackedFiles)}
        part: dict[str, Any] = {
            "trial": self._assignment.trial,
            "rank": self._rank,
            "world_size": self._world,
            "step": content.step,
            "loop_step": content.loop_step,
            "params": dict(content.params),
            "files": list(files),
        }
        if content.member:
            part["member"] = dict(content.member)
        place = self._place(sequence)
        if not content.anything:
            if self._world > 1:
                self._patiently(lambda: pass_by(place, self._rank))
            return None
        if self._world == 1:
            whole = {**part, "tracked": tracked, "state": state, "rng": rng.capture(), "as_rank_0": []}
            whole["everywhere"] = [*map(of_object, tracked), *map(of_value, state), RNG]
            return self._patiently(lambda: checkpoint.write(folder, whole, fill=lambda at: _fill(at, files)))
        generators = rng.capture()
        agreed = self._agree(place, content, tracked, state, generators, longest_s)
        self._patiently(lambda: _make(folder))
        with checkpoint.translated(root):
            _fill(folder, files)
            checkpoint.sync_files(folder)
        part |= {
            "tracked": {
                name: one for name, one in tracked.items() if of_object(name) not in agreed.as_rank_0
            },
            "state": {name: one for name, one in state.items() if of_value(name) not in agreed.as_rank_0},
            "as_rank_0": sorted(agreed.as_rank_0),
            "everywhere": sorted(agreed.everywhere),
        }
        if RNG not in agreed.as_rank_0:
            part["rng"] = generators
        self._patiently(lambda: checkpoint.write_part(folder, part, rank=self._rank))
        return folder

    def save_at_end(self, content: Content, sequence: int) -> Path | None:
        """Writes a last checkpoint of a program that is about to end by itself; None if there is nothing to save.

        Hardly waits: raises `DiskFullError` at once, and `RanksError` soon. In a gang, rank 0 returns when the
        parts of all ranks exist.
        """
        self._at_end, self._patience_s = True, min(self._patience_s, AT_END_S)
        folder = self.save(content, sequence, longest_s=0.0)
        if folder is not None and self._rank == 0:
            await_parts(folder, self._world, patience_s=self._patience_s)
        return folder

    def first_says(self, best: bool, sequence: int, *, longest_s: float) -> bool:
        """Whether the report is the best one according to rank 0's values; a trial with one process is its own
        rank 0.
        """
        if self._world == 1:
            return best
        return follow_first(
            self._place(sequence),
            self._rank,
            best,
            patience_s=self._patience_s + longest_s,
            patiently=self._patiently,
        )

    def _place(self, sequence: int) -> Path:
        """The folder for the ranks' messages about a report."""
        assert self._assignment.checkpoint_dir is not None
        return self._assignment.checkpoint_dir / f"{PREFIX}{self._assignment.resume_step:08d}-{sequence:06d}"

    def _agree(
        self,
        place: Path,
        content: Content,
        tracked: Mapping[str, Any],
        state: Mapping[str, Any],
        generators: rng.State,
        longest_s: float,
    ) -> Agreed:
        def told(entry: Tracked | TrackedFiles, name: str) -> str:
            return SHARED if entry.shared else digest_of(tracked[name], name)

        digests = {of_object(name): told(content.tracked[name], name) for name in tracked}
        digests |= {of_value(name): digest_of(value, f"t.state[{name!r}]") for name, value in state.items()}
        files = tuple(name for name in content.tracked if name not in tracked)
        word = Word(
            step=content.step,
            saves=True,
            digests=digests | {RNG: digest_of(generators, RNG)},
            files=files,
        )
        words = exchange(
            place,
            self._rank,
            self._world,
            word,
            patience_s=self._patience_s + longest_s,
            patiently=self._patiently,
        )
        if self._rank == 0:
            clear_exchanges(place.parent, before=place)
        agreed = agree(self._rank, words)
        if new := agreed.lacking - self._lacked:
            self._lacked |= new
            logger.warning(
                "headrace: rank %d does not save %s, which other ranks do",
                self._rank,
                ", ".join(sorted(key.partition("/")[2] for key in new)),
            )
        return agreed

    def _patiently(self, write: Callable[[], _Result]) -> _Result:
        wait_s, longest_s = FULL_DISK_WAITS_S
        while True:
            try:
                return write()
            except checkpoint.DiskFullError as error:  # not this configuration's fault
                if self._at_end:
                    raise
                if not self._waits:
                    logger.warning(
                        "headrace: %s; the trial waits until there is room for its checkpoint", error
                    )
                self._waits = True
                time.sleep(wait_s)  # there is no notification when a disk has space again
                wait_s = min(2 * wait_s, longest_s)


def digest_of(value: Any, name: str) -> str:
    return digest(encode(value, name, for_json=False))


def _make(folder: Path) -> None:
    with checkpoint.translated(folder.parent):
        folder.mkdir(parents=True, exist_ok=True)


def _fill(folder: Path, files: Mapping[str, TrackedFiles]) -> None:
    for name, entry in files.items():
        place = checkpoint.files_of(folder, name)
        place.mkdir(parents=True, exist_ok=True)
        entry.save(place)
