"""The ranks of a gang agree on a checkpoint before they write it.

They run on one machine and share the folder of the trial's checkpoints, so a word from each is a small file there. A
rank writes its own and waits for the others'; then all have read the same and decide alike: what is equal everywhere is
written by rank 0 alone, and ranks that are not at the same step say so on every rank. Nothing here needs a process
group.

A rank that has nothing to save leaves word that it passes, and waits for nobody. So a script may report on rank 0 alone
where no rank saves. Where another rank saves, that rank reads the word and says which rank tracks nothing.

The others wait for a rank that does not come: for the longest stretch between two reports so far, and then for the
study's `report_timeout_s`, or for a minute without that. A full disk keeps ranks from coming: while there is no room
for a word, nobody is missed.
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
    """The ranks of a gang are not where they should be; the text is for the user, and says which rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a rank says of its part."""

    step: int
    # Whether it has anything to save.
    saves: bool
    # Of each piece of its state; "shared" where the user says that it is the same on all.
    digests: dict[str, str] = field(default_factory=dict)
    # The objects that save themselves, in their order.
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What one rank that saves makes of all words."""

    # The pieces that this rank leaves to rank 0.
    as_rank_0: frozenset[str]
    # The pieces that are the same on all.
    everywhere: frozenset[str]
    # The pieces that another rank has and this one has not.
    lacking: frozenset[str]


SHARED = "shared"


def exchange(
    folder: Path, rank: int, world_size: int, word: Word, *, patience_s: float, patiently: Patiently
) -> list[Word]:
    """The words of all ranks, by rank; each exchange has its own folder. Raises `RanksError` for who is missing.

    `patiently` repeats the write of this rank's own word for as long as the disk is full.
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
        time.sleep(pause_s)  # the ranks share a folder and nothing else; the deadline bounds the wait
        pause_s = min(2 * pause_s, longest_s)
    return [told[other] for other in range(world_size)]


def follow_first(folder: Path, rank: int, says: bool, *, patience_s: float, patiently: Patiently) -> bool:
    """What rank 0 says of a report, yes or no, on every rank that asks. Rank 0 waits for nobody.

    The ranks of a gang may report different values, and must save at the same reports. Raises `RanksError` where rank 0
    does not come to this report.
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
    """Leaves word that this rank has come as far as the exchange in `folder`, and has nothing to save.

    Raises `DiskFullError`, or another `OSError`.
    """
    _write(folder.parent / _PASSED.format(rank), rank, json.dumps(folder.name))


def await_parts(folder: Path, world_size: int, *, patience_s: float) -> None:
    """Returns when the parts of all ranks are in a checkpoint's folder; raises `RanksError` where one stays away."""
    deadline = time.monotonic() + patience_s
    pause_s, longest_s = _POLLS_S
    while len(written := checkpoint.ranks_in(folder)) < world_size:
        if time.monotonic() > deadline:
            missing = sorted(set(range(world_size)) - set(written))
            raise RanksError(f"rank {', '.join(map(str, missing))} has not written its part of {folder.name}")
        time.sleep(pause_s)  # as in `exchange`
        pause_s = min(2 * pause_s, longest_s)


def clear_exchanges(folder: Path, before: Path) -> None:
    """Removes the words of earlier exchanges, which every rank has read when a later one is over.

    Another rank may have begun the next exchange already.
    """
    for old in folder.glob(f"{PREFIX}*"):
        if old.name < before.name:
            shutil.rmtree(old, ignore_errors=True)


def _heard(folder: Path, other: int, step: int) -> Word | None:
    """The word of another rank; of one that has passed by, that it saves nothing."""
    with suppress(FileNotFoundError):
        told = json.loads((folder / f"{other}.json").read_text())
        return Word(**{**told, "files": tuple(told["files"])})
    with suppress(FileNotFoundError):
        # A rank that saves does not pass an exchange before the others come to it.
        if json.loads((folder.parent / _PASSED.format(other)).read_text()) >= folder.name:
            return Word(step=step, saves=False)
    return None


def _has_room(folder: Path, rank: int, word: Word) -> bool:
    """Whether a word can be written now; this rank's own is written again for it."""
    try:
        _say(folder, rank, word)
    except checkpoint.DiskFullError:
        return False
    return True


def _say(folder: Path, rank: int, word: Word) -> None:
    _write(folder / f"{rank}.json", rank, json.dumps(asdict(word)))


def _write(file: Path, rank: int, text: str) -> None:
    """Writes a file that appears whole or not at all; raises `DiskFullError`, or another `OSError`."""
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
"""Of the folders of exchanges; the rest of a name sorts by age."""
_PASSED = ".passed-{}.json"
_FIRST = "first.json"


def agree(rank: int, words: Sequence[Word]) -> Agreed:
    """What `rank` is to write. Raises `RanksError`, alike on every rank that saves, where they do not fit together."""
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
