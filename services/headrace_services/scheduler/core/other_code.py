"""Which steps behind a trial's state and result were trained by other code than its study started with.

    an attempt runs other code ──► its steps are noted with the trial ──► each checkpoint says which steps behind it
                                                                          were such
                        a trial that copies the checkpoint ◄──────────────┘
                        has these steps too

The mark follows the state: a checkpoint has the marked steps of the one that its attempt resumed from, and those
of the attempt itself. So a trial that copies another one is marked as that one was at the copied step, whatever
the files contain by then. A trial that was marked once stays marked.

A result is marked if its trial was marked when the report that made it arrived. Later edits do not change it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from headrace import steps
from headrace.first_few import first_few
from headrace_services.scheduler.core.records import Checkpoint, Lease, OtherCode, Trial

MOST_SHOWN = 16
"""How many files are named as changed, and how many ranges of steps are kept."""


def ran(trial: Trial) -> bool:
    """Whether an attempt of the trial itself ran other code."""
    return bool(_own_files(trial))


def runs(trial: Trial, lease: Lease, files: Sequence[str]) -> tuple[Trial, bool]:
    """The trial with these files, of which the attempt runs other content from here on, and whether any of them is
    new to the trial's own attempts."""
    others = tuple(one for one in trial.other_code if not _is_of(one, lease))
    own = next((one for one in trial.other_code if _is_of(one, lease)), None)
    if own is None:
        own = OtherCode(
            trial=trial.number, attempt=lease.attempt, first_step=lease.step + 1, last_step=lease.step
        )
    before = _own_files(trial)
    own = replace(own, files=_joined(own.files, files))
    marked = replace(
        trial, code_changed=_joined(trial.code_changed, files), other_code=_as_many(trial, (*others, own))
    )
    return marked, not set(files) <= set(before)


def at_step(trial: Trial, lease: Lease, step: int) -> tuple[OtherCode, ...]:
    """The trial's ranges once its attempt has reached a step."""
    return tuple(
        replace(one, last_step=max(one.last_step, step)) if _is_of(one, lease) else one
        for one in trial.other_code
    )


def saved(trial: Trial, lease: Lease, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """A checkpoint that an attempt has saved, with the ranges behind it."""
    if checkpoint is None:
        return None
    before = lease.resume.other_code if lease.resume is not None else ()
    of_it = (one for one in trial.other_code if _is_of(one, lease) and one.last_step >= one.first_step)
    return replace(checkpoint, other_code=_chained((*before, *of_it)))


def taken_over(trial: Trial, checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields that change when a trial continues from another one's checkpoint."""
    new = tuple(
        one for one in checkpoint.other_code if not any(_covers(known, one) for known in trial.other_code)
    )
    if not new:
        return {}
    files = [file for one in new for file in one.files]
    return {
        "code_changed": _joined(trial.code_changed, files),
        "other_code": _as_many(trial, (*trial.other_code, *new)),
    }


def marks_result(trial: Trial) -> bool:
    """Whether the result that counts was reported after the trial was marked. Without such a result, the trial's
    own mark decides."""
    if trial.counted is not None:
        return bool(trial.counted.code_changed)
    return trial.score_marked or (trial.score is None and bool(trial.code_changed))


def steps_in_words(stretches: Iterable[OtherCode]) -> str:
    """`steps 1 to 3 of trial 3`."""
    shown = [f"{steps.in_words(one.first_step, one.last_step)} of trial {one.trial}" for one in stretches]
    return first_few(shown)


def _is_of(one: OtherCode, lease: Lease) -> bool:
    return (one.trial, one.attempt) == (lease.number, lease.attempt)


def _covers(known: OtherCode, one: OtherCode) -> bool:
    within = known.first_step <= one.first_step and one.last_step <= known.last_step
    return within and (known.trial, known.attempt) == (one.trial, one.attempt)


def _own_files(trial: Trial) -> set[str]:
    return {file for one in trial.other_code if one.trial == trial.number for file in one.files}


def _joined(first: Sequence[str], then: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *then)))[:MOST_SHOWN]


def _as_many(trial: Trial, stretches: Sequence[OtherCode]) -> tuple[OtherCode, ...]:
    """The ranges that are kept: the first ones that the trial copied, and the last of its own, as the last may
    still grow."""
    others = [one for one in stretches if one.trial != trial.number][:MOST_SHOWN]
    own = [one for one in stretches if one.trial == trial.number][-MOST_SHOWN:]
    return (*others, *own)


def _chained(stretches: Iterable[OtherCode]) -> tuple[OtherCode, ...]:
    """The same ranges, with one range where a trial's attempts follow one another."""
    chain: list[OtherCode] = []
    for one in stretches:
        last = chain[-1] if chain else None
        if last is not None and last.trial == one.trial and last.last_step + 1 == one.first_step:
            files = _joined(last.files, one.files)
            chain[-1] = replace(last, attempt=one.attempt, last_step=one.last_step, files=files)
        elif len(chain) < MOST_SHOWN:
            chain.append(one)
    return tuple(chain)
