"""`headrace run` refuses what cannot work, before anything starts."""

from pathlib import Path

import grpc
import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService

from headrace.v1 import study_pb2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nobjective: {metric: val_loss, goal: minimise}\n", "goal"),
        (": : :", "error"),
    ],
)
def test_a_bad_file_exits_with_2_and_starts_nothing(
    fake: FakeStudyService, invoke: Invoke, tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    result = invoke("run", str(file))
    assert (result.code, result.out) == (2, "")
    assert says in result.err
    assert "Traceback" not in result.err
    assert not fake.requests["CreateStudy"]


def test_a_bad_name_starts_nothing(
    invoke: Invoke, study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "headrace.cli.run.local_service", lambda *_, **__: pytest.fail("a service is started")
    )
    result = invoke("run", str(study_file), "--local", "--name", "../../x")
    assert result.code == 2
    assert result.err.startswith("error: --name: invalid study name '../../x': use lower-case letters")


def test_a_variable_that_is_wrong_is_named(
    invoke: Invoke, study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADRACE_PASS_ENV", "9x")
    result = invoke("run", str(study_file), "--local")
    assert result.code == 2
    assert result.err.startswith("error: HEADRACE_PASS_ENV: is not the name of a variable (got '9x')")


def test_a_file_that_is_not_there(fake: FakeStudyService, invoke: Invoke) -> None:
    result = invoke("run", "/no/such/study.yaml")
    assert result.code == 2
    assert "/no/such/study.yaml" in result.err


def test_the_preflight_comes_first_and_can_be_skipped(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    (study_file.parent / "train.py").write_text("def train(t):\n    t.report(val_los=1)\n")
    result = invoke("run", str(study_file))
    assert result.code == 2
    assert "Did you mean val_los?" in result.err
    assert not fake.requests["CreateStudy"]
    assert invoke("run", str(study_file), "--no-preflight", "--detach").code == 0


def test_a_folder_that_is_not_there_is_reported_before_anything_starts(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    text = study_file.read_text().replace("train:train}", "train:train, working_dir: ./nowhere}")
    study_file.write_text(text)
    result = invoke("run", str(study_file))
    assert (result.code, result.out) == (2, "")
    assert "trial.working_dir" in result.err
    assert not fake.requests["CreateStudy"]


@pytest.mark.parametrize(
    ("lacking", "warning"),
    [
        ([], None),
        (["2 GPUs"], "No connected worker has what some trials need (2 GPUs), so they wait."),
        (
            ["2 GPUs", "4 GPUs"],
            "No connected worker has what a trial needs (2 GPUs or 4 GPUs), so trials wait.",
        ),
    ],
)
def test_needs_that_no_worker_has_are_told(
    fake: FakeStudyService, invoke: Invoke, study_file: Path, lacking: list[str], warning: str | None
) -> None:
    """The scheduler's placement decides which of the two sizes fit."""
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True)
    worker.slots.add(index=0, device="NVIDIA H200", memory_bytes=2**37)
    fake.workers.append(worker)
    fake.lacking = lacking
    result = invoke("run", str(study_file), "--detach")
    assert result.code == 0
    if warning is None:
        assert "wait" not in result.err
    else:
        assert warning in result.err


def test_a_scheduler_that_finds_no_room_hinders_no_run(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True)
    worker.slots.add(index=0, device="cpu")
    fake.workers.append(worker)
    fake.fail_next("FindRoom", grpc.StatusCode.UNIMPLEMENTED)
    assert invoke("run", str(study_file), "--detach").code == 0


def test_a_study_of_this_name_exists(fake: FakeStudyService, invoke: Invoke, study_file: Path) -> None:
    result = invoke("run", str(study_file), "--name", "digits")
    assert result.code == 2
    assert result.err.splitlines()[0] == "error: Study digits exists."
    assert "headrace delete" in result.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--local", "--detach"], "error: --local and --detach cannot be combined: the service ends"),
        (["--slots", "2"], "error: --slots needs --local."),
        (["--local", "--address", "127.0.0.1:1"], "error: --local and --address cannot be combined: --local"),
    ],
)
def test_options_that_exclude_each_other(
    fake: FakeStudyService, invoke: Invoke, study_file: Path, options: list[str], said: str
) -> None:
    result = invoke("run", str(study_file), *options)
    assert result.code == 2
    assert result.err.startswith(said)


def test_a_study_without_a_program_is_not_for_workers(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    study_file.write_text(study_file.read_text().replace("trial: {callable: train:train}\n", ""))
    result = invoke("run", str(study_file))
    assert result.code == 2
    assert "study.ask()" in result.err
