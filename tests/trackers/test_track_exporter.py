"""The exporter's loop, with a scripted study and a scripted target: silence, refusal, forgetting, stopping."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from copied_study import UID, updates
from exporter_site import Listed, ManySinks, ScriptedStudy, ScriptedTarget, Site, cut, named, whole
from scripted_study import Script

from headrace.client.events import Update
from headrace.client.model import StudyInfo
from headrace.errors import (
    HeadraceError,
    InvalidFieldError,
    PermissionDeniedError,
    StudyNotFoundError,
    UnreachableError,
    Violation,
)
from headrace.track import all_studies
from headrace.track.all_studies import AllStudies
from headrace.track.exporter import LONGEST_PAUSE_S, Stopped
from headrace.track.tracker import AwayError, EventsGoneError, ForgottenError, RefusedError, Start
from headrace.track.trouble import Trouble

MakeSite = Callable[..., tuple[ScriptedStudy, Site]]


@pytest.fixture
def make(script: Script) -> MakeSite:
    def made(
        errors: Iterable[HeadraceError] = (), at_open: Iterable[HeadraceError] = (), **study: Any
    ) -> Any:
        return ScriptedStudy(script, **study), Site(ScriptedTarget(list(errors), list(at_open)))

    return made


def test_a_study_is_copied_once_to_its_end(make: MakeSite, script: Script) -> None:
    study, site = make()
    final = site.exporter().follow(study)  # type: ignore[arg-type]
    assert final is not None
    assert final.state.ended
    assert site.target.written == whole(script)
    assert site.target.closed == [True]
    assert site.said == []


def test_a_tracker_that_is_down_is_said_once_and_the_same_write_is_repeated(
    make: MakeSite, script: Script
) -> None:
    study, site = make(errors=[AwayError("no usable answer.")] * 9)
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.written == whole(script)
    assert site.said == [
        "The tracker: no usable answer. Trying again until it works.",
        "The tracker works again.",
    ]
    assert site.waited == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert max(site.waited) == LONGEST_PAUSE_S


def test_a_tracker_that_forgot_gets_everything_again(make: MakeSite, script: Script) -> None:
    study, site = make()
    site.target.cursor = 200
    site.target.errors = [ForgottenError("the run of trial 3 is gone.")]
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.opened == [Start.RESUME, Start.REREAD]
    assert site.target.closed == [False, True]
    assert site.target.written == whole(script)
    assert site.said == [
        "The tracker: the run of trial 3 is gone. Writing digits again from its first event.",
        "The tracker works again.",
    ]


def test_rejected_credentials_end_the_command_for_one_study_and_not_with_all(
    make: MakeSite, script: Script
) -> None:
    study, site = make(at_open=[RefusedError("rejects the credentials.")])
    with pytest.raises(RefusedError):
        site.exporter(patient=False).follow(study)  # type: ignore[arg-type]
    study, site = make(at_open=[RefusedError("rejects the credentials.", remedy="Set them.")] * 3)
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.written == whole(script)
    assert site.said[0] == "The tracker: rejects the credentials. Set them. Trying again until it works."


def test_a_scheduler_that_is_down_longer_than_a_watch_waits_is_followed_again(
    make: MakeSite, script: Script
) -> None:
    gone = UnreachableError("No scheduler answers.")
    study, site = make(breaks=[(0, gone), (5, gone), (9, gone)], asked=[gone, gone])
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.written == whole(script)
    assert site.said[0].startswith("The scheduler: No scheduler answers.")
    assert site.said[1] == "The scheduler works again."


def test_a_deleted_study_is_over(make: MakeSite) -> None:
    study, site = make(breaks=[(4, StudyNotFoundError("There is no study digits."))])
    assert site.exporter().follow(study) is None  # type: ignore[arg-type]
    assert site.said == ["There is no study digits; the tracker keeps what it has."]
    assert site.target.closed == [False]


def test_a_token_that_is_revoked_ends_it(make: MakeSite) -> None:
    study, site = make(breaks=[(4, PermissionDeniedError("No."))])
    with pytest.raises(PermissionDeniedError):
        site.exporter().follow(study)  # type: ignore[arg-type]


def test_events_that_were_deleted_by_age_are_made_up_for_by_the_tables(
    make: MakeSite, script: Script
) -> None:
    study, site = make(errors=[EventsGoneError("gone")])
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.tables == 28
    assert site.target.closed == [True]
    assert site.said == [
        "Events of digits were deleted by age before they were copied: copying its trials and reports."
    ]


def test_it_stops_while_a_tracker_is_down(make: MakeSite) -> None:
    study, site = make(errors=[AwayError("no usable answer.")] * 99)
    site.stop_after = 3
    with pytest.raises(Stopped):
        site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.closed == [False]


def followed(
    client: Listed, sinks: ManySinks, ends: int, said: list[str] | None = None
) -> list[tuple[str, int]]:
    """Follows all studies until so many ends were copied."""
    done: list[tuple[str, int]] = []
    over = threading.Event()

    def finished(final: StudyInfo) -> None:
        done.append((final.uid, final.cursor))
        if len(done) == ends:
            over.set()

    exporter = Site().exporter(sinks)
    said = [] if said is None else said
    exporter = replace(
        exporter,
        say=said.append,
        trouble=Trouble("The tracker", said.append),
        wait=lambda seconds: over.wait(min(seconds, 0.03)),
    )
    AllStudies(client=client, exporter=exporter, done=finished).run()  # type: ignore[arg-type]
    return done


def test_all_studies_are_followed_and_those_that_come_later(script: Script) -> None:
    later, sinks = named("later", "later"), ManySinks()
    done = followed(Listed([[script], [script, later]]), sinks, 2)
    assert sorted(uid for uid, _ in done) == [UID, "later"]
    assert {uid: sink.written for uid, sink in sinks.sinks.items()} == {
        UID: whole(script),
        "later": whole(later),
    }
    assert sinks.sinks[UID].opened == [Start.RESUME]


def test_a_study_that_is_extended_after_its_end_is_followed_again(script: Script) -> None:
    """Its end is not the end: later events are copied from where the copy stopped."""
    shorter, sinks = cut(40), ManySinks()
    done = followed(Listed([[shorter]] * 5 + [[script]]), sinks, 2)
    assert done == [(UID, len(shorter.events)), (UID, len(script.events))]
    assert sinks.sinks[UID].written == whole(script)
    assert sinks.sinks[UID].opened == [Start.RESUME, Start.RESUME]


def test_a_study_with_a_defect_does_not_end_the_others(script: Script) -> None:
    """Its next turns come after growing pauses, and it is said once."""
    said: list[str] = []
    lists = [[named("bad", "bad"), script]] * 12 + [[named("bad", "bad"), script, named("later", "later")]]
    done = followed(Listed(lists), ManySinks(broken={"bad"}), 2, said)
    assert [uid for uid, _ in done] == [UID, "later"]
    assert said == ["The tracker: unexpected: RuntimeError('a defect'). Trying bad again."]


def test_more_studies_than_turns_at_once_are_all_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies that are idle, and studies that the tracker rejects, keep no place from others."""
    monkeypatch.setattr(all_studies, "AT_ONCE", 2)
    scripts = [named(f"study-{number}", f"uid-{number}") for number in range(7)]
    for script in scripts[:3]:
        del script.events[-1], script.moments[-1]  # they go on, and nothing happens
    sinks = ManySinks()
    for number in (3, 4):
        rejecting = ScriptedTarget(errors=[RefusedError("its experiment was deleted.")] * 10_000)
        sinks.sinks[f"uid-{number}"] = rejecting
    done = followed(Listed([scripts]), sinks, 2)
    assert sorted(uid for uid, _ in done) == ["uid-5", "uid-6"]
    assert {sinks.sinks[f"uid-{number}"].cursor for number in range(3)} == {len(scripts[0].events)}


def test_a_study_that_is_made_again_under_its_name_has_a_copy_of_its_own(script: Script) -> None:
    old, new = cut(3), named("digits", "fedcba9876543210")
    old.moments[-1].study.state = old.moments[0].study.state  # it is deleted while it is active
    sinks = ManySinks()
    assert followed(Listed([[old]] * 4 + [[new]]), sinks, 1) == [("fedcba9876543210", len(new.events))]
    assert sinks.sinks[UID].written == whole(old)
    assert sinks.sinks["fedcba9876543210"].written == whole(new)


@pytest.mark.parametrize("seen", ["by the watch", "by a question"])
def test_a_study_that_is_replaced_while_it_is_followed_is_over(
    make: MakeSite, script: Script, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    study, site = make()
    new = named("digits", "fedcba9876543210")

    def watch(after: int, on_break: Any) -> Iterator[Update]:
        yield from list(updates(script))[:3]
        study.script = new
        if seen == "by the watch":
            yield from list(updates(new, after=21))

    monkeypatch.setattr(study, "watch", watch)
    assert site.exporter().follow(study) is None  # type: ignore[arg-type]
    assert site.target.written == list(range(1, 22))
    assert site.said == [
        "Study digits was deleted, and another one has its name now; the tracker keeps what it has."
    ]


def test_a_tracker_that_is_ahead_of_a_restored_scheduler_begins_again(make: MakeSite, script: Script) -> None:
    study, site = make()
    site.target.cursor = len(script.events) + 1
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.opened == [Start.RESUME, Start.SET_ASIDE]
    assert site.target.written == whole(script)
    (line,) = site.said
    assert line.startswith("the tracker is ahead of the scheduler, whose database was restored")


def test_a_tracker_that_was_ahead_for_a_moment_only_is_not_set_aside(make: MakeSite, script: Script) -> None:
    """Another exporter wrote between the question about the study and the one about the copy."""
    study, site = make(shown=100)
    site.target.cursor = 150
    ask = study.status

    def once() -> StudyInfo:
        found = ask()
        study.shown = None
        return found

    study.status = once  # type: ignore[method-assign]
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.opened == [Start.RESUME, Start.RESUME]
    assert site.target.written == whole(script)[150:]
    assert site.said == []


def test_a_scheduler_that_is_restored_while_it_is_watched_is_noticed(make: MakeSite, script: Script) -> None:
    rejected = InvalidFieldError([Violation(field="after_cursor", message="is beyond the newest event")])
    study, site = make(breaks=[(20, rejected)])
    restored = cut(len(script.events) - 100)
    status = study.status
    answers = [status()]

    def ask() -> StudyInfo:
        if answers:
            return answers.pop()
        study.script = restored
        return status()

    study.status = ask  # type: ignore[method-assign]
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.opened[-1] is Start.SET_ASIDE
    assert site.target.written == whole(restored)


def test_the_present_trouble_is_said_and_its_end() -> None:
    said: list[str] = []
    trouble = Trouble("MLflow", said.append)
    down, rejected = AwayError("it does not answer."), RefusedError("it rejects the credentials.")
    for error, study in ((down, "a"), (down, "b"), (down, "a"), (rejected, "a"), (down, "b")):
        trouble.failed(error, study)
    for study in ("b", "a", "a"):
        trouble.worked(study)
    assert said == [
        "MLflow: it does not answer. Trying again until it works.",
        "MLflow: it rejects the credentials. Trying again until it works.",
        "MLflow works again for b.",
        "MLflow works again.",
    ]
