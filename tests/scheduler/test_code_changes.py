"""Trials that run other code than their study started with: marked, or released before they count."""

from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace import not_known
from headrace.client.events import CodeChanged, ReportRecorded
from headrace.errors import InvalidFieldError
from headrace_services.scheduler.core.code_changes import (
    MOST_VERSIONS,
    accepted,
    changed_files,
    compared,
    ran,
)
from headrace_services.scheduler.core.inputs import (
    Accepted,
    AttemptCode,
    Cancellation,
    PauseStudy,
    ReportArrived,
    RestoredArrived,
    ResumeStudy,
    RetryTrials,
    SourceFile,
    Stale,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.replay.replaying import replay

RUN_ALL = {"kind": "run_all"}


def files(**contents: str) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(f"{name}.py", digest) for name, digest in contents.items())


def code(**contents: str) -> AttemptCode:
    return AttemptCode(digest="".join(contents.values()), files=files(**contents))


class CodeSite(StudySite):
    """A study whose attempts report the code that they run."""

    def running(
        self, lease: Lease, step: int, value: float, ran: AttemptCode, **fields: Any
    ) -> ReportArrived:
        return replace(self.report(lease, step, value, **fields), code=ran)

    def loaded(self, lease: Lease, ran: AttemptCode) -> RestoredArrived:
        self.sequences[lease.id] += 1
        return RestoredArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=lease.attempt,
            sequence=self.sequences[lease.id],
            code=ran,
        )

    async def changes(self) -> list[tuple[int | None, CodeChanged]]:
        return [(one.trial, one.detail) for one in await self.log() if isinstance(one.detail, CodeChanged)]

    async def marks(self) -> list[list[str]]:
        return [row.code_changed for row in await self.trials()]


async def started(engine: AsyncEngine, slots: int = 3, **changes: Any) -> tuple[CodeSite, list[Lease]]:
    spec = make_spec(policy=RUN_ALL, max_trials=slots, **changes)
    site = CodeSite(engine, spec)
    await site.create()
    await site.connect(slots=slots)
    return site, await site.kick()


async def test_a_trial_with_edited_code_is_marked_and_the_edit_is_reported_once(engine: AsyncEngine) -> None:
    site, (first, second, third) = await started(engine)
    await site.step(site.running(first, 1, 0.5, code(train="A", model="A")))
    await site.step(site.running(second, 1, 0.5, code(train="B", model="A")))
    await site.step(site.running(third, 1, 0.5, code(train="B", model="A")))
    assert await site.marks() == [[], ["train.py"], ["train.py"]]
    assert [row.code for row in await site.trials()] == ["AA", "BA", "BA"]
    told = [(trial, found.files, found.first_seen, found.refused) for trial, found in await site.changes()]
    assert told == [(1, ("train.py",), ("train.py",), False), (2, ("train.py",), (), False)]
    recorded = [one.detail.code for one in await site.log() if isinstance(one.detail, ReportRecorded)]
    assert recorded == ["AA", "BA", "BA"]
    assert (await site.study()).state == "ACTIVE"
    assert changed_files({path: tuple(seen) for path, seen in (await site.study()).code_files.items()}) == (
        "train.py",
    )
    await site.step(site.running(second, 2, 0.4, code(model="C")))
    assert await site.marks() == [[], ["train.py", "model.py"], ["train.py"]]


async def test_attempts_that_import_other_files_run_the_same_code(engine: AsyncEngine) -> None:
    site, (first, second, third) = await started(engine)
    await site.step(site.running(first, 1, 0.5, code(train="A", small="A")))
    await site.step(site.running(second, 1, 0.5, code(train="A", large="A")))
    await site.step(site.running(first, 2, 0.5, code(late="A")))
    await site.step(site.running(third, 1, 0.5, code(train="A", large="A", late="A")))
    assert await site.marks() == [[], [], []]
    assert await site.changes() == []


async def test_messages_that_come_twice_late_or_from_nobody_mark_nothing(engine: AsyncEngine) -> None:
    site, (first, second, _) = await started(engine)
    await site.step(site.running(first, 1, 0.5, code(train="A")))
    early, report = site.loaded(second, code(train="B")), site.running(second, 1, 0.5, code(train="B"))
    await site.step(early)
    cursor = (await site.study()).cursor
    assert [trial for trial, _ in await site.changes()] == [1]
    await site.step(early)
    assert (await site.study()).cursor == cursor
    await site.step(report)
    (again,) = await site.step(report)
    assert isinstance(again, Accepted)
    assert len(await site.changes()) == 1
    stranger = replace(report, attempt=7, sequence=99, code=code(train="C"))
    late = replace(site.loaded(first, code(train="C")), attempt=7)
    assert [type(one) for one in await site.step(stranger, late)] == [Stale, Stale]
    assert await site.marks() == [[], ["train.py"], []]
    assert len(await site.changes()) == 1


async def test_code_that_is_reported_before_the_first_report_is_the_studys_first(engine: AsyncEngine) -> None:
    site, (first, second, _) = await started(engine)
    await site.step(site.loaded(first, code(train="A")))
    await site.step(site.running(second, 1, 0.5, code(train="B")))
    assert await site.marks() == [[], ["train.py"], []]


@pytest.mark.parametrize("policy", ["warn", "pause", "refuse"])
async def test_the_fix_of_a_script_that_failed_before_any_report_is_the_studys_own(
    engine: AsyncEngine, policy: str
) -> None:
    site, (lease,) = await started(engine, 1, on_code_change=policy)
    await site.step(site.loaded(lease, code(train="A", model="A")))
    await site.step(gone(lease, "FAILED", error="ValueError: no"))
    again = list(site.leases.values())[-1]
    assert again.attempt == 2
    await site.step(site.loaded(again, code(train="B", model="A")))
    await site.step(site.running(again, 1, 0.5, code(train="B", model="A")))
    assert ((await site.study()).state, await site.marks(), await site.changes()) == ("ACTIVE", [[]], [])
    assert (await site.study()).code_files["train.py"] == ["B"]
    await site.step(site.running(again, 2, 0.5, code(model="C")))
    assert [found.files for _, found in await site.changes()] == [("model.py",)]


async def test_retry_and_resume_let_a_study_without_a_report_begin_with_other_code(
    engine: AsyncEngine,
) -> None:
    site, leases = await started(engine, on_code_change="refuse")
    for lease in leases:
        await site.step(site.loaded(lease, code(train="A")))
    while (await site.study()).state == "ACTIVE":
        live = [
            lease
            for lease in site.leases.values()
            if lease.attempt == max(one.attempt for one in site.leases.values() if one.number == lease.number)
        ]
        await site.step(*(gone(lease, "FAILED", error="ValueError: no") for lease in live))
    assert (await site.study()).state == "FAILED"
    before = set(site.leases)
    await site.step(RetryTrials(numbers=None))
    again = [lease for key, lease in site.leases.items() if key not in before]
    assert len(again) > 1
    for lease in again:
        await site.step(site.loaded(lease, code(train="B")))
    assert ((await site.study()).state, await site.changes()) == ("ACTIVE", [])
    # While another attempt runs the first code, other code is an edit. When all have ended, the study may be resumed.
    edits, *others = again
    await site.step(site.loaded(edits, code(train="C")))
    assert (await site.study()).state == "PAUSED"
    await site.step(*(gone(lease, "RELEASED") for lease in others))
    before = set(site.leases)
    await site.step(ResumeStudy())
    for lease in [lease for key, lease in site.leases.items() if key not in before]:
        await site.step(site.loaded(lease, code(train="C")))
    assert (await site.study()).state == "ACTIVE"


@pytest.mark.parametrize("policy", ["pause", "refuse"])
@pytest.mark.parametrize("early", [True, False])
async def test_an_attempt_with_edited_code_is_given_back_and_its_study_pauses(
    engine: AsyncEngine, policy: str, early: bool
) -> None:
    site, (first, second, third) = await started(engine, on_code_change=policy)
    await site.step(site.running(first, 1, 0.5, code(train="A")))
    await site.step(site.running(second, 1, 0.7, code(train="A")))
    before = await site.trial(1)
    site.orders.clear()
    message = site.loaded(second, code(train="B")) if early else site.running(second, 2, 0.1, code(train="B"))
    (outcome,) = await site.step(message)
    assert isinstance(outcome, Stale)
    assert [(type(order), order.lease.id) for order in site.orders] == [(Cancellation, second.id)]
    trial, study = await site.trial(1), await site.study()
    kept = ("best_value", "step", "checkpoint", "failures", "interruptions", "losses_in_row", "code_changed")
    assert [getattr(trial, name) for name in kept] == [getattr(before, name) for name in kept]
    assert (trial.state, study.state) == ("PAUSED", "PAUSED")
    assert "train.py has changed since the study began" in study.detail
    assert f"`headrace resume {site.name}`" in study.detail
    # Another attempt with the same edit, which started beside it.
    (outcome,) = await site.step(site.loaded(third, code(train="B")))
    assert isinstance(outcome, Stale)
    assert (await site.trial(2)).state == "PENDING"
    assert [(found.first_seen, found.refused) for _, found in await site.changes()] == [
        (("train.py",), True),
        ((), True),
    ]
    # A trial with the study's own code continues, and stops at its next rung.
    assert (await site.tell(first, 2, 0.4)).action == "CONTINUE"
    # The file is restored and the study resumed: nothing is lost.
    await site.step(ResumeStudy())
    again = [lease for lease in site.leases.values() if lease.number == 1][-1]
    assert (again.attempt, again.resume.step if again.resume else None) == (2, 1)
    await site.step(site.loaded(again, code(train="A")))
    await site.step(site.running(again, 2, 0.6, code(train="A")))
    assert await site.marks() == [[], [], []]
    assert (await site.study()).state == "ACTIVE"


@pytest.mark.parametrize("policy", ["pause", "refuse"])
async def test_a_study_that_a_user_has_paused_says_what_to_resume_it_would_accept(
    engine: AsyncEngine, policy: str
) -> None:
    site, (first, second, third) = await started(engine, on_code_change=policy)
    await site.step(site.running(first, 1, 0.5, code(train="A", model="A")))
    await site.step(PauseStudy())
    await site.step(site.loaded(second, code(train="B", model="A")))
    detail = (await site.study()).detail
    assert detail.startswith("paused by a user; at trial 1: train.py has changed since the study began. Put")
    assert f"`headrace resume {site.name}`" in detail
    await site.step(site.loaded(third, code(train="A", model="C")))
    detail = (await site.study()).detail
    told = "train.py, model.py have" if policy == "pause" else "model.py has"
    assert detail.startswith(f"paused by a user; at trial 2: {told} changed since the study began. Put")


async def test_to_resume_a_study_is_to_accept_the_edit_with_pause_alone(engine: AsyncEngine) -> None:
    for policy, state, marks in (("pause", "ACTIVE", ["train.py"]), ("refuse", "PAUSED", [])):
        site, (first, second, third) = await started(engine, on_code_change=policy)
        await site.step(site.running(first, 1, 0.5, code(train="A")))
        await site.step(site.loaded(second, code(train="B")))
        await site.step(ResumeStudy())
        again = [lease for lease in site.leases.values() if lease.number == 1][-1]
        await site.step(site.loaded(again, code(train="B")))
        await site.step(site.running(again, 1, 0.6, code(train="B")))
        assert ((await site.study()).state, (await site.trial(1)).code_changed) == (state, marks)
        if policy == "pause":  # the next edit is a new one
            await site.step(site.running(third, 1, 0.5, code(train="C")))
            assert (await site.study()).state == "PAUSED"


async def test_a_study_names_only_files_of_which_a_trial_ran_another_content(engine: AsyncEngine) -> None:
    site, (first, second, _) = await started(engine, on_code_change="pause")
    await site.step(site.running(first, 1, 0.5, code(train="A", helper="A")))
    await site.step(site.loaded(second, code(train="A", helper="B")))
    await site.step(ResumeStudy())  # the file has been restored
    again = [lease for lease in site.leases.values() if lease.number == 1][-1]
    await site.step(site.running(again, 1, 0.6, code(train="A", helper="A")))
    study = await site.study()
    assert (study.state, await site.marks()) == ("ACTIVE", [[], [], []])
    assert changed_files(study.code_files) == ()
    # An accepted content still passes, and counts from the first trial that runs it.
    await site.step(site.running(again, 2, 0.6, code(helper="B")))
    study = await site.study()
    assert (study.state, await site.marks()) == ("ACTIVE", [[], ["helper.py"], []])
    assert changed_files(study.code_files) == ("helper.py",)


async def test_a_trial_that_leaves_with_its_paused_study_says_so_and_replays(engine: AsyncEngine) -> None:
    policy = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}
    site = CodeSite(engine, make_spec(policy=policy, on_code_change="pause"))
    await site.create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.step(site.loaded(first, code(train="A")))
    await site.step(site.loaded(second, code(train="B")))
    assert (await site.tell(first, 1, 0.5)).action == "PAUSE"
    assert "paused with its study" in (await site.trial(0)).detail
    assert replay(site.spec, await site.log()).identical


@pytest.mark.parametrize("policy", ["pause", "refuse"])
async def test_a_version_that_is_not_known_never_counts_as_the_studys_own(
    engine: AsyncEngine, policy: str
) -> None:
    site, (first, second, third) = await started(engine, on_code_change=policy)
    (outcome,) = await site.step(site.loaded(first, code(train="A", model=not_known.new_digest())))
    assert isinstance(outcome, Stale)
    study = await site.study()
    assert (study.state, (await site.trial(0)).failures) == ("PAUSED", 0)
    assert "model.py was changed while the program was starting, so which version runs is" in study.detail
    assert f"`headrace resume {site.name}` starts the trial again" in study.detail
    # The next attempts' known contents are the study's own, and an unknown content equals no other.
    await site.step(site.running(second, 1, 0.5, code(train="A", model="B")))
    (outcome,) = await site.step(site.loaded(third, code(train="A", model=not_known.new_digest())))
    assert isinstance(outcome, Stale)
    await site.step(ResumeStudy())
    again = [lease for lease in site.leases.values() if lease.number == 0][-1]
    await site.step(site.running(again, 1, 0.5, code(train="A", model="B")))
    assert await site.marks() == [[], [], []]
    assert ((await site.study()).state, changed_files((await site.study()).code_files)) == ("ACTIVE", ())


async def test_a_trial_whose_version_is_not_known_is_marked_and_told_once(engine: AsyncEngine) -> None:
    site, (first, second, third) = await started(engine)
    unknown = code(train="A", model=not_known.new_digest())
    await site.step(site.loaded(first, unknown))
    await site.step(site.running(first, 1, 0.5, unknown))
    await site.step(site.running(second, 1, 0.5, code(train="A", model="B")))
    await site.step(site.running(third, 1, 0.5, code(train="A", model="C")))
    assert await site.marks() == [["model.py?"], [], ["model.py"]]
    assert [(trial, found.first_seen) for trial, found in await site.changes()] == [
        (0, ("model.py?",)),
        (2, ("model.py",)),
    ]
    told = [one.message for one in await site.log() if isinstance(one.detail, CodeChanged)]
    assert told[0].startswith(
        "trial 0: model.py was changed while the program was starting, so which version"
    )
    assert changed_files((await site.study()).code_files) == ("model.py",)
    assert replay(site.spec, await site.log()).identical


async def test_a_study_says_that_a_version_is_not_known_before_another_is(engine: AsyncEngine) -> None:
    site, (first, *_) = await started(engine)
    await site.step(site.running(first, 1, 0.5, code(model=not_known.new_digest())))
    assert changed_files((await site.study()).code_files) == ("model.py",)


async def test_a_client_that_does_not_know_what_it_runs_is_refused_until_it_starts_again(
    engine: AsyncEngine,
) -> None:
    site = CodeSite(engine, make_spec(template=None, policy=RUN_ALL, on_code_change="refuse"))
    await site.create()
    (asked,) = await site.step(Suggest(client_id="a", ttl_s=600.0))
    assert isinstance(asked, Suggested)
    assert asked.lease
    report = site.running(asked.lease, 1, 0.5, code(run=not_known.new_digest()), saved=False)
    (outcome,) = await site.step(replace(report, sequence=None))
    assert isinstance(outcome, InvalidFieldError)
    assert "which version runs is not known" in str(outcome)
    assert "Start the program again" in str(outcome)
    (outcome,) = await site.step(replace(report, sequence=None, code=code(run="A")))
    assert isinstance(outcome, Accepted)


async def test_a_client_that_does_not_know_what_it_runs_is_marked_and_its_study_pauses(
    engine: AsyncEngine,
) -> None:
    site = CodeSite(engine, make_spec(template=None, policy=RUN_ALL, on_code_change="pause"))
    await site.create()
    (asked,) = await site.step(Suggest(client_id="a", ttl_s=600.0))
    assert isinstance(asked, Suggested)
    assert asked.lease
    report = site.running(asked.lease, 1, 0.5, code(run=not_known.new_digest()), saved=False)
    (outcome,) = await site.step(replace(report, sequence=None))
    assert isinstance(outcome, Accepted)
    study = await site.study()
    assert (study.state, (await site.marks())[0]) == ("PAUSED", ["run.py?"])
    assert f"not known. Start it again, then `headrace resume {site.name}`" in study.detail


async def test_a_client_that_runs_edited_code_is_told(engine: AsyncEngine) -> None:
    for policy in ("refuse", "pause"):
        site = CodeSite(engine, make_spec(template=None, policy=RUN_ALL, on_code_change=policy))
        await site.create()
        first, second = await site.step(
            Suggest(client_id="a", ttl_s=600.0), Suggest(client_id="b", ttl_s=600.0)
        )
        assert isinstance(first, Suggested)
        assert isinstance(second, Suggested)
        assert first.lease
        assert second.lease
        own = site.running(first.lease, 1, 0.5, code(run="A"), saved=False)
        await site.step(replace(own, sequence=None))
        other = site.running(second.lease, 1, 0.5, code(run="B"), saved=False)
        cursor = (await site.study()).cursor
        (outcome,) = await site.step(replace(other, sequence=None))
        if policy == "refuse":
            assert isinstance(outcome, InvalidFieldError)
            assert "run.py" in str(outcome)
            assert (await site.study()).cursor == cursor
        else:
            assert isinstance(outcome, Accepted)
            assert (await site.study()).state == "PAUSED"
            assert (await site.marks())[:2] == [[], ["run.py"]]
            assert changed_files((await site.study()).code_files) == ("run.py",)


def test_an_accepted_content_is_not_forgotten_for_those_that_were_not_let_pass() -> None:
    known = compared({}, files(train="A"), accepts=False, marked=False).versions
    known = accepted(compared(known, files(train="B"), accepts=False, marked=False).versions)
    for edit in range(2 * MOST_VERSIONS):
        known = compared(known, files(train=str(edit)), accepts=False, marked=False).versions
    assert len(known["train.py"]) == MOST_VERSIONS
    assert not compared(known, files(train="B"), accepts=False, marked=False).held
    assert compared(known, files(train="C"), accepts=False, marked=False).held


def test_a_file_that_only_edited_code_imported_is_not_the_studys_own() -> None:
    known = compared({}, files(train="A"), accepts=True, marked=False).versions
    edited = compared(known, files(train="B", extra="B"), accepts=True, marked=False)
    assert edited.differing == ("train.py",)
    undone = compared(edited.versions, files(train="A", extra="A"), accepts=True, marked=False)
    assert undone.differing == ()
    assert compared(undone.versions, files(extra="B"), accepts=True, marked=False).differing == ("extra.py",)
    # But an edit of it is detected while all trials run the edited code.
    again = compared(edited.versions, files(train="B", extra="C"), accepts=True, marked=False)
    assert again.new == ("extra.py",)
    # A refused content leaves no trace.
    refused = compared(known, files(train="B", extra="B"), accepts=False, marked=False)
    assert (refused.held, "extra.py" in refused.versions, changed_files(refused.versions)) == (
        True,
        False,
        (),
    )
    # An accepted content may never run: the file may have been restored.
    let_pass = accepted(refused.versions)
    restored = compared(let_pass, files(train="A"), accepts=False, marked=False)
    assert changed_files(ran(restored.versions, files(train="A"))) == ()
    edited = compared(let_pass, files(train="B"), accepts=False, marked=False)
    assert (edited.held, edited.new) == (False, ())
    assert changed_files(ran(edited.versions, files(train="B"))) == ("train.py",)


@pytest.mark.parametrize("policy", ["warn", "pause"])
async def test_a_marked_trial_that_is_restored_again_continues(engine: AsyncEngine, policy: str) -> None:
    site, (first, second, _) = await started(engine, on_code_change=policy)
    await site.step(site.running(first, 1, 0.5, code(train="A")))
    await site.step(site.running(second, 1, 0.7, code(train="A")))
    await site.step(site.loaded(second, code(train="B")))
    if policy == "pause":
        await site.step(ResumeStudy())
    for attempt in (1, 2, 3):
        lease = [lease for lease in site.leases.values() if lease.number == 1][-1]
        await site.step(site.loaded(lease, code(train="B")))
        await site.step(site.running(lease, attempt + 1, 0.6, code(train="B")))
        await site.step(gone(lease, "LOST"))
    trial = await site.trial(1)
    assert (trial.step, trial.code_changed) == (4, ["train.py"])
    assert replay(site.spec, await site.log()).identical
