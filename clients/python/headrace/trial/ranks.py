"""The ranks of a gang agree on a checkpoint before they write it.

They run on one machine and share the folder of the trial's checkpoints, so a message from each is a small file
there. A rank writes its own and waits for the others'. Then all have read the same and decide alike: state that
is equal everywhere is written only by rank 0, and if ranks are at different steps, every rank raises an error.
Nothing here needs a process group.

A rank that has nothing to save leaves a message that it passes, and does not wait. So a script may report only
on rank 0 if no rank saves. If another rank saves, it reads that message and says which rank tracks nothing.

If a rank does not come, the others wait for it: for the longest time between two reports so far, and then for
the study's `report_timeout_s`, or for a minute without that. A full disk keeps ranks from coming, so while there
is no space for a message, no rank counts as missing.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.trial import checkpoint

_POLLS_S = (0.002, 0.05)
Patiently = Callable[[Callable[[], None]], None]


class RanksError(RuntimeError):
    """The ranks of a gang are out of step. The text is for the user, and says which rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A rank's message about its part."""

    step: int
    # Whether it has anything to save.
    saves: bool
    # The digest of each piece of its state; "shared" if the user says that it is the same on all ranks.
    digests: dict[str, str] = field(default_factory=dict)
    # The objects that save themselves, in order.
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The conclusions of one saving rank from all messages."""

    # The pieces that rank 0 saves for this rank.
    as_rank_0: frozenset[str]
    # The pieces that are the same on all ranks.
    everywhere: frozenset[str]
    # The pieces that another rank has and this one does not.
    lacking: frozenset[str]


SHARED = "shared"


def exchange(
    folder: Path, rank: int, world_size: int, word: Word, *, patience_s: float, patiently: Patiently
) -> list[Word]:
    """The messages of all ranks, by rank; each exchange has its own folder. Raises `RanksError` if a rank is
    missing.

    `patiently` repeats writing this rank's own message as long as the disk is full.
    """
    patiently(lambda: _say(folder, rank, word))
    deadline = time.monotonic() + patience_s
    pause_s, longest_s = _POLLS_S
    told: dict[int, Word] = {}
    while missing := [other for other in range(world_size) if other not in told]:
        told |= {other: heard for other in missing if (heard := _heard(folder, other, word.step)) is not None}
        if len(told) == world_size:
            break
        if time.monotonic() > deadline:
            if not _has_room(folder, rank, word):
                deadline = time.monotonic() + patience_s
                continue
            raise RanksError(
                f"rank {', '.join(map(str, missing))} of {world_size} has not reached the checkpoint "
                f"of step {word.step} within {patience_s:.0f} s of rank {rank}. It hangs, or it does not report: "
                "every rank calls t.report(...) at the same steps, with the same save=. If it only takes longer, raise "
                "trial.report_timeout_s in the study file"
            )
        time.sleep(pause_s)  # the ranks share only a folder; the deadline limits the wait
        pause_s = min(2 * pause_s, longest_s)
    return [told[other] for other in range(world_size)]


def follow_first(folder: Path, rank: int, says: bool, *, patience_s: float, patiently: Patiently) -> bool:
    """Rank 0's answer about a report, yes or no, on every rank that asks. Rank 0 does not wait.

    The ranks of a gang may report different values, but must save at the same reports. Raises `RanksError` if
    rank 0 does not reach this report.
    """
    file = folder / _FIRST
    if rank == 0:
        patiently(lambda: _write(file, rank, json.dumps(says)))
        return says
    deadline = time.monotonic() + patience_s
    pause_s, longest_s = _POLLS_S
    while True:
        with suppress(FileNotFoundError):
            return bool(json.loads(file.read_text()))
        if time.monotonic() > deadline:
            raise RanksError(
                f"rank 0 has not reached a report of rank {rank} within {patience_s:.0f} s. It hangs, or it does not "
                "report: with `keep: best` every rank calls t.report(...) at the same steps. If it only takes longer, "
                "raise trial.report_timeout_s in the study file"
            )
        time.sleep(pause_s)  # as in `exchange`
        pause_s = min(2 * pause_s, longest_s)


def pass_by(folder: Path, rank: int) -> None:
    """Leaves a message that this rank has reached the exchange in `folder`, and has nothing to save.

    Raises `DiskFullError`, or another `OSError`.
    """
    _write(folder.parent / _PASSED.format(rank), rank, json.dumps(folder.name))


def await_parts(folder: Path, world_size: int, *, patience_s: float) -> None:
    """Waits until the parts of all ranks are in a checkpoint's folder; raises `RanksError` if one is missing."""
    deadline = time.monotonic() + patience_s
    pause_s, longest_s = _POLLS_S
    while len(written := checkpoint.ranks_in(folder)) < world_size:
        if time.monotonic() > deadline:
            missing = sorted(set(range(world_size)) - set(written))
            raise RanksError(f"rank {', '.join(map(str, missing))} has not written its part of {folder.name}")
        time.sleep(pause_s)  # as in `exchange`
        pause_s = min(2 * pause_s, longest_s)


def clear_exchanges(folder: Path, before: Path) -> None:
    """Removes the messages of earlier exchanges, which every rank has read by the end of a later one.

    Another rank may already have started the next exchange.
    """
    for old in folder.glob(f"{PREFIX}*"):
        if old.name < before.name:
            shutil.rmtree(old, ignore_errors=True)


def _heard(folder: Path, other: int, step: int) -> Word | None:
    """The message of another rank; for a rank that has passed, that it saves nothing."""
    with suppress(FileNotFoundError):
        told = json.loads((folder / f"{other}.json").read_text())
        return Word(**{**told, "files": tuple(told["files"])})
    with suppress(FileNotFoundError):
        # A rank that saves does not pass an exchange before the others reach it.
        if json.loads((folder.parent / _PASSED.format(other)).read_text()) >= folder.name:
            return Word(step=step, saves=False)
    return None


def _has_room(folder: Path, rank: int, word: Word) -> bool:
    """Whether a message can be written now, tested by writing this rank's own again."""
    try:
        _say(folder, rank, word)
    except checkpoint.DiskFullError:
        return False
    return True


def _say(folder: Path, rank: int, word: Word) -> None:
    _write(folder / f"{rank}.json", rank, json.dumps(asdict(word)))


def _write(file: Path, rank: int, text: str) -> None:
    """Writes a file that appears complete or not at all; raises `DiskFullError`, or another `OSError`."""
    partial = file.with_name(f".{rank}.{os.getpid()}")
    with checkpoint.translated(file.parent):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text)
            partial.rename(file)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


PREFIX = ".words-"
"""The prefix of the folders of exchanges; the rest of a name sorts by age."""
_PASSED = ".passed-{}.json"
_FIRST = "first.json"


def agree(rank: int, words: Sequence[Word]) -> Agreed:
    """What `rank` has to write. If the messages do not match, raises the same `RanksError` on every rank that
    saves.
    """
    first, mine = words[0], words[rank]
    if idle := [other for other, word in enumerate(words) if not word.saves]:
        busy = next(other for other, word in enumerate(words) if word.saves)
        raise RanksError(
            f"rank {', '.join(map(str, idle))} tracks nothing, and rank {busy} does: every rank calls t.track(...) "
            "with what it trains"
        )
    for other, word in enumerate(words):
        if word.step != first.step:
            raise RanksError(
                f"rank {other} reports step {word.step} where rank 0 reports step {first.step}: every rank calls "
                "t.report(...) at the same steps"
            )
        if word.files != first.files:
            raise RanksError(
                f"rank {other} tracks {', '.join(word.files) or 'nothing'} where rank 0 tracks "
                f"{', '.join(first.files) or 'nothing'}: what saves itself on all ranks together is tracked on all of "
                "them, in the same order"
            )
        declared = {name for name, told in word.digests.items() if told == SHARED}
        if declared != {name for name, told in first.digests.items() if told == SHARED}:
            raise RanksError(
                f"rank {other} has trial.shared(...) for {_names(declared)}, rank 0 for others: "
                "declare it on every rank"
            )
    return Agreed(
        as_rank_0=frozenset(
            name for name, told in mine.digests.items() if rank and first.digests.get(name) == told
        ),
        everywhere=frozenset(
            name
            for name, told in first.digests.items()
            if all(word.digests.get(name) == told for word in words)
        ),
        lacking=frozenset(name for word in words for name in word.digests) - mine.digests.keys(),
    )


def _names(keys: set[str]) -> str:
    return ", ".join(sorted(key.partition("/")[2] for key in keys)) or "nothing"
