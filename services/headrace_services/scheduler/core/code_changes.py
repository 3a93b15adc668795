"""Which code the trials of a study run, and what happens when it differs from the code that the study started
with.

An attempt reports which source files it runs, each with the digest of its content. The first content of a file
that any attempt of the study runs is the study's own. Until a report is recorded no value depends on it. So once
the attempts that ran it are over, the study may start with other code, such as a fix for a script that failed at
once.

Files are compared one by one, because attempts import different ones, depending on their configurations, and some
of them late. A trial that runs other content is marked for good, and the event log records it. So is a trial that
copies the state of such a trial (`other_code`).

`on_code_change` decides what else happens:

- warn: nothing. The first attempt with new content is shown to everyone who watches the study.
- pause: the attempt is returned before it counts, and the study pauses. Resuming it accepts the changes so far:
  these contents are allowed from then on.
- refuse: the same, but nothing is ever accepted.

An attempt that was returned counts as nobody's failure. The trial keeps its earlier reports and its checkpoint.

A process may not know which version of a file it runs (`headrace.not_known`). Such content is never the study's
own, nor one that was allowed before: each such attempt is treated as one with new content. The next attempt knows
its version.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from headrace import not_known
from headrace.bounds.numbers import SOURCES
from headrace.errors import InvalidFieldError, Violation
from headrace.first_few import first_few
from headrace.spec import OnCodeChange
from headrace_services.scheduler.core import events, other_code
from headrace_services.scheduler.core.inputs import (
    AttemptCode,
    Input,
    ReportArrived,
    RestoredArrived,
    ResumeStudy,
    RetryTrials,
    SourceFile,
)
from headrace_services.scheduler.core.lifecycle import BY_USER, Action, StudyState
from headrace_services.scheduler.core.needs import Candidates, Deciding, ask
from headrace_services.scheduler.core.other_code import MOST_SHOWN
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.core.state import CycleState

MOST_VERSIONS = 16
"""How many contents of a file are remembered: the first one, and the most recent ones. Accepted ones are kept
longer."""

_HELD = "?"
"""The prefix of a digest whose content was not allowed."""
_ACCEPTED = "+"
"""The prefix of a digest whose content is allowed from now on, and which no attempt has run yet."""
_LATER = "~"
"""The prefix of a first digest that came with an attempt which already ran other code."""

Versions = Mapping[str, tuple[str, ...]]
"""For each file, the digests of the contents that attempts ran or were to run; the study's own comes first."""


class Compared(Struct, frozen=True, kw_only=True):
    """Some files, compared with those of a study."""

    versions: Versions
    """The study's versions, with these files added."""
    differing: tuple[str, ...]
    """The files that differ from those that the study started with, or may differ: the latter are marked
    (`not_known`)."""
    new: tuple[str, ...]
    """Those among them with content that no attempt had before."""
    held: bool
    """Whether one of them has content that is not accepted."""


def compared(known: Versions, files: Sequence[SourceFile], *, accepts: bool, marked: bool) -> Compared:
    """Compare an attempt's files with the study's versions, and add them to these.

    Without `accepts`, new content of a known file is not allowed. `marked` says whether the trial ran other code
    before: the files that its attempts are the first to import are the study's own only until an attempt with the
    study's code imports them.
    """
    versions = dict(known)
    marked = marked or any(_differs(known.get(file.path, ()), file.digest) for file in files)
    differing: dict[str, None] = {}
    new: dict[str, None] = {}
    held = False
    for file in sorted(files, key=lambda file: file.path not in known):
        seen = versions.get(file.path, ())
        first = seen[0].removeprefix(_LATER) if seen else ""
        if not_known.is_digest(file.digest):
            listed = not_known.marked(file.path)
            differing[listed] = new[listed] = None
            held = held or not accepts
            if accepts and not _not_known(seen) and (seen or len(versions) < SOURCES):
                versions[file.path] = (*_with_room(seen), file.digest) if seen else (_LATER + file.digest,)
        elif not seen:
            if not held and len(versions) < SOURCES:
                versions[file.path] = ((_LATER if marked else "") + file.digest,)
        elif seen[0] != first and not marked:  # it is the study's own from now on
            others = (one for one in (first, *seen[1:]) if _content(one) != file.digest)
            versions[file.path] = (file.digest, *others)
        elif file.digest != first:
            differing[file.path] = None
            passed = (file.digest, _ACCEPTED + file.digest)
            held = held or not (accepts or any(one in seen for one in passed))
            noted = file.digest if accepts else _HELD + file.digest
            if not any(one in seen for one in (*passed, noted)):
                new[file.path] = None
                versions[file.path] = (*_with_room(seen), noted)
    return Compared(versions=versions, differing=tuple(differing), new=tuple(new), held=held)


def _with_room(seen: tuple[str, ...]) -> tuple[str, ...]:
    """The contents of a file with room for another one. Of a full list, a content that was not allowed is dropped
    first, because accepted ones must stay accepted."""
    if len(seen) < MOST_VERSIONS:
        return seen
    goes = next((at for at, one in enumerate(seen) if one.startswith(_HELD)), 1)
    return (*seen[:goes], *seen[goes + 1 :])


def _differs(seen: tuple[str, ...], digest: str) -> bool:
    """Whether a content is not the study's own, or is unknown."""
    known = bool(seen) and not seen[0].startswith(_LATER)
    return not_known.is_digest(digest) or (known and seen[0] != digest)


def accepted(known: Versions) -> Versions:
    """The same versions, with all contents accepted that were not allowed. No trial may ever run them: the files
    may have been restored."""
    return {
        path: tuple(_ACCEPTED + _content(one) if one.startswith(_HELD) else one for one in seen)
        for path, seen in known.items()
    }


def ran(known: Versions, files: Sequence[SourceFile]) -> Versions:
    """The same versions, once a trial that counts has run these contents."""
    run = {file.path: file.digest for file in files}
    return {
        path: tuple(_content(one) if _content(one) == run.get(path) else one for one in seen)
        for path, seen in known.items()
    }


def _content(noted: str) -> str:
    """The digest of a later content, without its prefix."""
    return noted.removeprefix(_HELD).removeprefix(_ACCEPTED)


def changed_files(known: Versions) -> tuple[str, ...]:
    """The files of which trials ran more than one content, or may have, as far as they are listed."""
    were_run = {
        path: [one for one in seen if not one.startswith((_HELD, _ACCEPTED))] for path, seen in known.items()
    }
    return tuple(path for path, seen in were_run.items() if len(seen) > 1 or _not_known(seen))[:MOST_SHOWN]


def _not_known(seen: Sequence[str]) -> bool:
    return any(not_known.is_digest(one.removeprefix(_LATER)) for one in seen)


def look_ahead(state: CycleState, inputs: Sequence[Input]) -> Deciding[None]:
    """Learn whether other attempts run, if the study may still start with other code."""
    if state.study.reports:
        return
    for one in inputs:
        tells = isinstance(one, ReportArrived | RestoredArrived) and one.code is not None
        if tells or isinstance(one, ResumeStudy | RetryTrials):
            state.live_before((yield from ask(Candidates(now_s=state.study.now_s, limit=0))).live)
            return


def reopened(state: CycleState) -> None:
    """A user lets trials or the study continue: without a report, it may start with other code."""
    if not state.study.reports and not state.live and state.study.code_files:
        state.study = replace(state.study, code_files={})


def _known(state: CycleState) -> Versions:
    """The versions that a live attempt is compared with: none while no report is recorded and no other attempt
    runs."""
    return {} if not state.study.reports and state.live <= 1 else state.study.code_files


def resumed(state: CycleState) -> None:
    """A user resumes the study: with `pause`, that accepts the changes for which it was paused."""
    reopened(state)
    if state.study.spec.on_code_change is OnCodeChange.PAUSE:
        state.study = replace(state.study, code_files=accepted(state.study.code_files))


def require_unchanged(state: CycleState, code: AttemptCode | None) -> None:
    """Raise InvalidFieldError for a report of an ask/tell client that runs other code, if that is refused."""
    if code is None or state.study.spec.on_code_change is not OnCodeChange.REFUSE:
        return
    if differing := compared(_known(state), code.files, accepts=False, marked=False).differing:
        raise InvalidFieldError([_refused(path) for path in differing])


def _refused(path: str) -> Violation:
    refuses = "and the study says `on_code_change: refuse`"
    if not_known.is_marked(path):
        message = f"was changed while the program was starting, so which version runs is not known, {refuses}"
        remedy = "Start the program again."
    else:
        message = f"is not what the study started with, {refuses}"
        remedy = "Put the file back, or create a study for the new code."
    return Violation(field="code", value=not_known.plain(path), message=message, remedy=remedy)


def check(state: CycleState, lease: Lease, code: AttemptCode | None) -> bool:
    """Record what a live attempt runs. Returns False if the attempt was taken off its worker for it: then no part
    of the message counts any more."""
    if code is None:
        return True
    policy = state.study.spec.on_code_change
    marked = other_code.ran(state.trials[lease.number])
    found = compared(_known(state), code.files, accepts=policy is OnCodeChange.WARN, marked=marked)
    # A client's loop is its own, and learns of the pause with its next decision.
    runs = not found.held or lease.worker_id is None
    versions = ran(found.versions, code.files) if runs else found.versions
    if versions != state.study.code_files:
        state.study = replace(state.study, code_files=versions)
    if not found.differing:
        return True
    if found.held:
        _pause(state, lease, found)
    if not runs:
        _give_back(state, lease, code, found)
        return False
    _mark(state, lease, code, found)
    return True


def _mark(state: CycleState, lease: Lease, code: AttemptCode, found: Compared) -> None:
    trial = state.trials[lease.number]
    marked, news = other_code.runs(trial, lease, found.differing)
    new = [one for one in found.new if news or not not_known.is_marked(one)]  # an attempt may report it twice
    if marked == trial and not new:
        return
    # a later attempt changes the row too, and other replicas learn that only from the log
    state.emit(events.code_changed(lease, code.digest, found.differing, new, refused=False))
    state.update(lease.number, code_changed=marked.code_changed, other_code=marked.other_code)


def _give_back(state: CycleState, lease: Lease, code: AttemptCode, found: Compared) -> None:
    changed = [one for one in found.differing if not not_known.is_marked(one)]
    why = f"it was to run other code than the study started with: {first_few(changed)}"
    if not changed:
        why = not_known.in_words(found.differing)
    state.emit(events.code_changed(lease, code.digest, found.differing, found.new, refused=True))
    state.close(lease)
    state.cancel(state.trials[lease.number], why)
    state.move(lease.number, Action.INTERRUPT, detail=why)


def _pause(state: CycleState, lease: Lease, found: Compared) -> None:
    """Pause the study. The reason of one that is already paused is updated, because resuming it accepts these
    changes."""
    before = state.study
    if before.state is not StudyState.PAUSED:
        state.move_study(
            StudyState.PAUSED, f"paused at trial {lease.number}: {_changed(state, found.differing)}"
        )
    elif before.detail == BY_USER or not all(map(not_known.is_marked, found.new)):
        accepts = before.spec.on_code_change is OnCodeChange.PAUSE
        paths = (accepts and _held_files(found.versions)) or found.differing
        by = BY_USER if before.detail.startswith(BY_USER) else "paused"
        state.study = replace(before, detail=f"{by}; at trial {lease.number}: {_changed(state, paths)}")


def _held_files(known: Versions) -> tuple[str, ...]:
    """The files with content that was not allowed."""
    return tuple(path for path, seen in known.items() if any(one.startswith(_HELD) for one in seen))


def _changed(state: CycleState, paths: Sequence[str]) -> str:
    """What changed, and what can be done. Unknown files are listed only if no file is known to have changed."""
    resume = f"`headrace resume {state.study.name}`"
    if all(map(not_known.is_marked, paths)):
        if state.study.spec.template is None:
            return f"{not_known.in_words(paths)}. Start it again, then {resume}"
        return (
            f"{not_known.in_words(paths)}. {resume} starts the trial again. `from headrace import trial` at the top "
            "of a script keeps that time short"
        )
    paths = [one for one in paths if not not_known.is_marked(one)]
    several = len(paths) > 1
    changed = f"{first_few(paths)} {'have' if several else 'has'} changed since the study began"
    put_back = f"Put {'them' if several else 'it'} back"
    if state.study.spec.on_code_change is OnCodeChange.REFUSE:
        remedy = f"{put_back}, then {resume}; new code needs a study of its own"
    else:
        remedy = f"{put_back}, or leave the change in to accept it, then {resume}"
    return f"{changed}. {remedy}"
