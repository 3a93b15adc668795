"""`headrace gc`: deletes what ended studies left, and nothing else."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script, race

from headrace.checkpoints import store_from_url
from headrace.errors import PermissionDeniedError
from headrace.v1 import spec_pb2, study_pb2, trial_pb2

COMPLETED = trial_pb2.TERMINATION_REASON_COMPLETED
UID, MANIFEST = "0a1b2c", "manifest.json"


class Left:
    """A study's files, as workers leave them."""

    def __init__(self, fake: FakeStudyService, root: Path, name: str, uid: str, *, shown: int | None = None):
        self.script: Script = fake.add(race(name), shown=shown)
        self.name, self.uid, self.root = name, uid, root
        self.folder = f"{name}-{uid}"
        self.logs = root / "w1/logs" / self.folder
        self.logs.mkdir(parents=True)
        store_from_url((root / "store").as_uri()).set_up("0123456789abcdef", used=False)
        (self.logs / "bundle-g1.log").write_bytes(b"x" * 10)
        for moment in self.script.moments:
            moment.study.uid = uid
        for moment in self.script.moments[-1:] if shown is None else self.script.moments[shown - 1 : shown]:
            for trial in moment.trials:
                checkpoint = self.checkpoint(trial.number)
                trial.checkpoint.uri, trial.checkpoint.manifest_sha256 = f"file://{checkpoint}/", "ab"
                trial.log_path = str(self.logs / f"{trial.number}.log")
                Path(trial.log_path).write_bytes(b"y" * 5)

    def checkpoint(self, number: int) -> Path:
        folder = self.root / "store/studies" / self.folder / "trials" / str(number) / "000001-1-step1-ab"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank-0.pt").write_bytes(b"z" * 100)
        (folder / MANIFEST).write_bytes(b"{}")
        return folder

    @property
    def files(self) -> int:
        places = (self.root / "store/studies" / self.folder, self.logs)
        return sum(path.is_file() for place in places for path in place.rglob("*"))


@pytest.fixture
def ended(fake: FakeStudyService, tmp_path: Path) -> Left:
    return Left(fake, tmp_path, "digits", UID)


def test_a_dry_run_lists_sizes_and_deletes_nothing(ended: Left, invoke: Invoke) -> None:
    before = ended.files
    reports = ended.root / "home/reports"
    reports.mkdir(parents=True)
    (reports / f"{ended.folder}.html").write_bytes(b"r" * 7)
    (reports / "digits-other.html").write_bytes(b"r" * 7)
    done = invoke("gc", "--dry-run", "--json")
    told = json.loads(done.out)
    trials = len(ended.script.final.trials)
    by_what = {one["what"]: one["size_bytes"] for one in told["leftovers"]}
    assert by_what == {"checkpoints": 102 * (trials - 1), "logs": 5 * trials + 10, "report": 7}
    assert (told["kept_bytes"], told["size_bytes"]) == (102, sum(by_what.values()))
    assert (told["deleted"], told["elsewhere"]) == (False, [])
    table = invoke("gc", "digits", "--dry-run")
    assert [line.split()[:2] for line in table.out.splitlines()[:4]] == [
        ["STUDY", "WHAT"],
        ["digits", "checkpoints"],
        ["digits", "logs"],
        ["digits", "report"],
    ]
    assert "nothing was" in table.out
    assert ended.files == before
    assert (reports / f"{ended.folder}.html").exists()


def test_it_deletes_all_but_the_best_ones_checkpoints(ended: Left, invoke: Invoke) -> None:
    best = ended.script.final.study.status.best.number
    assert invoke("gc", "--yes").code == 0
    store = ended.root / "store/studies" / ended.folder
    assert [path.name for path in (store / "trials").iterdir()] == [str(best)]
    assert not ended.logs.exists()
    assert json.loads(invoke("gc", "--dry-run", "--json").out)["leftovers"] == []
    assert invoke("gc", "--best-too", "--yes").code == 0
    assert not store.exists()
    assert "There is nothing to delete" in invoke("gc", "--best-too").out


def test_what_it_deletes_is_shown_as_deleted(ended: Left, fake: FakeStudyService, invoke: Invoke) -> None:
    final = ended.script.final
    best = final.study.status.best.number
    for trial in final.trials:
        trial.checkpoint.step = 1
        ended.script.reports.append(
            study_pb2.TrialReport(trial_number=trial.number, step=1, checkpoint=trial.checkpoint)
        )
    assert invoke("gc", "--yes").code == 0
    asked = [uri for request in fake.requests["ForgetCheckpoints"] for uri in request.uris]
    assert len(asked) == len(final.trials) - 1
    assert not any(f"/trials/{best}/" in uri for uri in asked)
    shown = json.loads(invoke("trials", "digits", "--json").out)
    assert [one["trial"] for one in shown if one["checkpoint"]] == [best]
    assert invoke("export", "digits").out.count(f"file://{ended.root}") == 2, "the best one's, in two columns"
    other = next(trial.number for trial in final.trials if trial.number != best)
    assert "  deleted (it was of step 1)" in invoke("show", "digits", str(other)).out
    refused = invoke("checkpoint", "get", "digits", str(other))
    assert refused.code == 1
    assert f"The checkpoint of trial {other} of study digits was deleted" in refused.err
    final.study.status.best.ClearField("checkpoint")  # as after `gc --best-too`
    assert "# checkpoint: deleted (it was of step 1)" in invoke("best", "digits").out
    assert "deleted (it was of step 1)" in invoke("show", "digits").out


def test_an_extension_says_beforehand_that_trials_start_over(
    ended: Left, fake: FakeStudyService, invoke: Invoke
) -> None:
    final = ended.script.final
    completed = [one for one in final.trials if one.termination_reason == COMPLETED]
    for trial in completed:
        trial.checkpoint.step = 1
    assert "start over" not in invoke("extend", "digits", "--steps", "81").err
    lost = completed[1:]
    for trial in lost:
        trial.ClearField("checkpoint")
    assert len(lost) > 1
    assert "start over" not in invoke("extend", "digits", "--steps", "81").err, "it never saved any"
    for trial in lost:
        saved = trial_pb2.CheckpointRef(uri="file:///a", step=1)
        report = study_pb2.TrialReport(trial_number=trial.number, step=1, checkpoint=saved)
        ended.script.reports.append(report)
    assert len(fake.requests["ExtendStudy"]) == 2
    refused = invoke("extend", "digits", "--steps", "81")
    assert (refused.code, len(fake.requests["ExtendStudy"])) == (2, 2)
    numbers = ", ".join(str(trial.number) for trial in lost)
    said = " ".join(refused.err.split())
    assert f"The checkpoints of trials {numbers} were deleted, by `headrace gc` or by age" in said
    assert "those that continue start over from step 1" in said
    assert invoke("extend", "digits", "--steps", "81", "--yes").code == 0
    assert "start over" not in invoke("extend", "digits", "--trials", "3").err


def test_nothing_is_deleted_that_the_scheduler_does_not_forget(
    ended: Left, fake: FakeStudyService, invoke: Invoke
) -> None:
    fake.fail_next("ForgetCheckpoints", PermissionDeniedError("a viewer may not change a study"))
    store = ended.root / "store/studies" / ended.folder / "trials"
    before = sorted(store.iterdir())
    done = invoke("gc", "--yes")
    assert done.code == 1
    assert "are not deleted, or not all: a viewer may not change a study" in done.err
    assert sorted(store.iterdir()) == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("goes on", "study 'digits' has been reopened"),
        ("moved", "study 'digits' has changed since this was listed"),
        ("namesake", "study 'digits' has changed since this was listed"),
        ("deleted", "study 'digits' has been deleted meanwhile"),
    ],
)
def test_a_study_that_changed_after_it_was_listed_is_left_alone(
    ended: Left,
    fake: FakeStudyService,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    says: str,
) -> None:
    study = ended.script.final.study

    def meanwhile(*_: object, **__: object) -> None:
        match change:
            case "goes on":
                study.state = study_pb2.STUDY_STATE_ACTIVE
            case "moved":
                study.status.cursor += 1
            case "namesake":
                study.uid = "ffffff"
            case _:
                del fake.scripts["studies/digits"]

    monkeypatch.setattr("headrace.cli.gc.confirm", meanwhile)
    before = ended.files
    done = invoke("gc", "--yes")
    assert done.code == 1
    assert says in done.err
    assert done.out.splitlines()[-1] == "0 B deleted."
    assert ended.files == before


def test_a_best_checkpoint_that_lies_in_another_trials_place_stays(ended: Left, invoke: Invoke) -> None:
    """For example that of a member of a population that has copied another one."""
    best = ended.script.final.study.status.best.number
    (trial,) = (one for one in ended.script.final.trials if one.number == best)
    donor, lender = [one.number for one in ended.script.final.trials if one.number != best][:2]
    trial.checkpoint.uri = f"file://{ended.checkpoint(donor)}/"
    trial.best_checkpoint.uri = f"file://{ended.checkpoint(lender)}/"
    assert invoke("gc", "--yes").code == 0
    kept = ended.root / "store/studies" / ended.folder / "trials"
    assert {int(path.name) for path in kept.iterdir()} == {best, donor, lender}


def test_without_a_terminal_it_needs_yes(ended: Left, invoke: Invoke) -> None:
    before = ended.files
    refused = invoke("gc")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert ended.files == before


def test_a_live_study_and_other_folders_are_never_touched(
    ended: Left, fake: FakeStudyService, invoke: Invoke, tmp_path: Path
) -> None:
    live = Left(fake, tmp_path, "live", "ffff", shown=60)
    namesake = tmp_path / "store/studies/digits-999999/trials/1/000001-1-step1-ab"
    namesake.mkdir(parents=True)
    (namesake / MANIFEST).touch()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "1.log").touch()
    trials = ended.script.final.trials
    trials[1].log_path = str(mine / "1.log")  # a folder with another name
    trials[2].checkpoint.uri = f"file://{namesake}/"
    trials[3].checkpoint.uri, trials[3].checkpoint.manifest_sha256 = str(mine), ""
    trials[4].checkpoint.uri = f"file://{live.checkpoint(1)}/"
    before = live.files
    assert invoke("gc", "--yes", "--best-too").code == 0
    assert live.files == before > 0
    assert (namesake / MANIFEST).exists()
    assert (mine / "1.log").exists()
    named = invoke("gc", "digits", "live", "--yes")
    assert (named.code, "study 'live' is active" in named.err) == (1, True)
    assert live.files == before


def test_a_link_in_place_of_a_studys_folder_is_not_followed(
    ended: Left, invoke: Invoke, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "trials/1").mkdir(parents=True)
    (outside / "trials/1/precious").touch()
    (outside / "precious.log").touch()
    for place in (ended.logs, tmp_path / "store/studies" / ended.folder):
        place.rename(place.with_name(f"moved-{place.name}"))
        place.symlink_to(outside)
    invoke("gc", "--yes", "--best-too")
    assert (outside / "precious.log").exists()
    assert (outside / "trials/1/precious").exists()


def test_what_is_on_another_machine_is_reported(ended: Left, invoke: Invoke) -> None:
    (ended.root / "store").rename(ended.root / "away")
    done = invoke("gc", "--dry-run")
    assert f"{(ended.root / 'store').as_uri()} cannot be read from here" in done.err


def test_it_shows_the_scheduler_s_side_and_has_it_delete_what_is_due(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    fake.upkeep.deleted_studies = 1
    shown = invoke("gc", "--dry-run")
    assert [line.split()[:3] for line in shown.out.splitlines() if "events" in line] == [
        ["events", "90d", "2"]
    ]
    assert "3.0 MiB" in shown.out + shown.err
    assert "1 deleted study" in shown.out + shown.err
    assert not fake.requests["CleanUp"]
    assert invoke("gc", "--yes").code == 0
    assert len(fake.requests["CleanUp"]) == 1
    del fake.upkeep.kinds[:]
    fake.upkeep.deleted_studies = 0
    told = json.loads(invoke("gc", "--yes", "--json").out)
    assert told["scheduler"]["tables"] == [{"table": "event", "size_bytes": 3 << 20, "rows": 1000}]
    assert len(fake.requests["CleanUp"]) == 1


def test_a_member_of_a_project_may_clean_up_the_own_disks(fake: FakeStudyService, invoke: Invoke) -> None:
    del fake.upkeep.tables[:]
    fake.fail_next("CleanUp", PermissionDeniedError("a member of project 'vision' may not clean up"))
    done = invoke("gc", "--yes")
    assert done.code == 0, done.err
    assert "The database takes" not in done.out + done.err
    assert "deletes what is due within minutes" in done.err


def test_a_scheduler_of_before_says_nothing_of_what_is_due(
    ended: Left, fake: FakeStudyService, invoke: Invoke
) -> None:
    fake.fail_next("GetUpkeep", grpc.StatusCode.UNIMPLEMENTED)
    done = invoke("gc", "--dry-run", "--json")
    assert done.code == 0, done.err
    assert "it is older than this client" in done.err
    told = json.loads(done.out)
    assert told["scheduler"] is None
    assert told["leftovers"], "the files here are listed all the same"


def test_files_of_one_study_are_no_matter_of_the_scheduler(
    ended: Left, fake: FakeStudyService, invoke: Invoke
) -> None:
    assert json.loads(invoke("gc", "digits", "--yes", "--json").out)["scheduler"] is None
    assert not fake.requests["GetUpkeep"]
    assert not fake.requests["CleanUp"]


def test_a_deleted_checkpoint_of_an_earlier_result_is_told_from_a_later_one(
    ended: Left, fake: FakeStudyService, invoke: Invoke
) -> None:
    """A trial counts with an earlier result whose checkpoint was deleted, and has saved another since."""
    trial = next(one for one in ended.script.final.trials if one.termination_reason == COMPLETED)
    now = datetime(2026, 12, 1, tzinfo=UTC)
    for step, hours in ((18, -2), (9, -1), (54, 0)):
        report = study_pb2.TrialReport(trial_number=trial.number, step=step)
        report.checkpoint.MergeFrom(trial_pb2.CheckpointRef(uri=f"file:///{step}", step=step))
        report.time.FromDatetime(now + timedelta(hours=hours))
        ended.script.reports.append(report)
    trial.checkpoint.MergeFrom(trial_pb2.CheckpointRef(uri="file:///54", step=54))
    end = trial.earlier_ends.add(reason=COMPLETED, step=18, budget=18, score=0.1, score_step=18)
    end.end_time.FromDatetime(now - timedelta(hours=1.5))
    trial.counted_end = 0
    said = invoke("checkpoint", "get", "digits", str(trial.number)).err
    assert "was deleted; it was of step 18" in said
    assert "Its last one, of step 54, is there" in " ".join(said.split())
    lines = invoke("show", "digits", str(trial.number)).out.splitlines()
    assert [" ".join(line.split()) for line in lines if "(step 54)" in line or " deleted (" in line] == [
        "checkpoint file:///54 (step 54)",
        "of its result deleted (it was of step 18)",
    ]
    trial.ClearField("termination_reason")
    trial.state = trial_pb2.TRIAL_STATE_RUNNING
    assert "it was of step 18" in invoke("checkpoint", "get", "digits", str(trial.number)).err


STOPPED = trial_pb2.TERMINATION_REASON_STOPPED_EARLY


@pytest.mark.parametrize(
    ("reason", "ends", "best", "said"),
    [
        (
            COMPLETED,
            13,
            None,
            "was deleted. ",
        ),  # by itself, so it may have saved once more, after its last report
        (COMPLETED, 12, None, "was deleted; it was of step 12. "),
        (STOPPED, 13, None, "was deleted; it was of step 12. "),
        (STOPPED, 13, 11, "was deleted; it was of step 9. "),
        (COMPLETED, 12, 11, "was deleted. "),
        (COMPLETED, 12, 9, "was deleted; it was of step 9. "),
    ],
)
def test_the_step_of_a_deleted_checkpoint_is_named_if_it_is_known(
    ended: Left, fake: FakeStudyService, invoke: Invoke, reason: Any, ends: int, best: int | None, said: str
) -> None:
    trial = next(one for one in ended.script.final.trials if one.termination_reason == COMPLETED)
    trial.termination_reason = reason
    trial.ClearField("checkpoint")
    trial.step = ends
    if best is not None:
        objective = ended.script.final.study.spec.objective
        objective.scope, objective.keep = spec_pb2.SCOPE_BEST, spec_pb2.KEEP_BEST
        trial.best_step = best
    kept = [one for one in ended.script.reports if one.trial_number != trial.number]
    ended.script.reports[:] = kept
    for step in range(9, ends + 1):
        report = study_pb2.TrialReport(trial_number=trial.number, step=step)
        if step in (9, 12):
            report.checkpoint.MergeFrom(trial_pb2.CheckpointRef(uri=f"file:///{step}", step=step))
        ended.script.reports.append(report)
    told = " ".join(invoke("checkpoint", "get", "digits", str(trial.number)).err.split())
    assert said in told + " "
    shown = invoke("show", "digits", str(trial.number)).out
    assert f"deleted{' (' if 'step' in said else ''}" in shown
    assert ("it was of step" in shown) == ("step" in said)
    last = " ".join(invoke("checkpoint", "get", "digits", str(trial.number), "--last").err.split())
    assert ("it was of step 12. " in last + " ") == (ends == 12 or reason == STOPPED)


def test_an_extension_names_every_kind_of_trial_that_may_start_over(
    ended: Left, fake: FakeStudyService, invoke: Invoke
) -> None:
    final = ended.script.final
    kinds = {trial_pb2.TERMINATION_REASON_STOPPED_EARLY, COMPLETED, trial_pb2.TERMINATION_REASON_FAILED}
    chosen = {one.termination_reason: one for one in final.trials if one.termination_reason in kinds}
    assert set(chosen) == kinds
    for trial in final.trials:
        trial.checkpoint.step = 1
    for trial in chosen.values():
        trial.step = max(trial.step, 1)
        trial.ClearField("checkpoint")
        saved = trial_pb2.CheckpointRef(uri="file:///a", step=1)
        ended.script.reports.append(
            study_pb2.TrialReport(trial_number=trial.number, step=1, checkpoint=saved)
        )
    failed = chosen[trial_pb2.TERMINATION_REASON_FAILED]
    stopped = chosen[trial_pb2.TERMINATION_REASON_STOPPED_EARLY]
    said = " ".join(invoke("extend", "digits", "--steps", "81").err.split())
    numbers = sorted(one.number for one in (chosen[COMPLETED], stopped))
    assert f"trials {numbers[0]}, {numbers[1]} were deleted" in said
    assert f"trial {stopped.number} was deleted" in " ".join(
        invoke("extend", "digits", "--trials", "2").err.split()
    )
    failed.earlier_ends.add(reason=COMPLETED, step=9, budget=9, score=0.1, score_step=9)
    said = " ".join(invoke("extend", "digits", "--steps", "81").err.split())
    numbers = sorted(one.number for one in chosen.values())
    assert f"trials {', '.join(map(str, numbers))} were deleted" in said
