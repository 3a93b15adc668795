"""The hook on unmodified DeepSpeed: the same losses, correct words, and what it leaves alone."""

import os
from pathlib import Path
from typing import Any

import pytest
from primary_site import Primary

from headrace_torch.bubble_shm import AT, StageFile, StageFileError, StageHeader, StepKind, started_ticks
from headrace_torch.bubble_shm.layout import is_control
from headrace_torch.bubbles.attach import attach

WINDOW = 0
STEP = 1


def records(path: Path) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    file = StageFile.open(path)
    found = file.records(WINDOW, AT["windows"], 0), file.records(STEP, AT["steps"], 0)
    file.close()
    return found


@pytest.fixture(scope="module")
def plain(primary: Primary, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Every rank's losses without the hook."""
    folder = tmp_path_factory.mktemp("plain")
    return [one["losses"] for one in primary.start(folder, hook=False, evaluate_at=3).results()]


def test_losses_are_bit_for_bit_those_without_the_hook(
    primary: Primary, plain: list[list[str]], tmp_path: Path
) -> None:
    running = primary.start(tmp_path / "hooked", evaluate_at=3)
    hooked = running.results()
    assert [one["losses"] for one in hooked] == plain
    assert len(set(plain[0])) > 4
    assert all(one["active"] for one in hooked)
    for stage in range(2):
        windows, steps = records(running.file(stage))
        assert [step[0] for step in steps] == [0, 1, 2, 3, 4]
        assert all(step[3] == StepKind.UNUSED for step in steps), "without an agent no step says anything"
        slots = {window[0] & 0xFFFF for window in windows}
        # Four micro-batches: a receive and a send for each in both directions, and the loss. The evaluation has none.
        assert slots == set(range(9))
        assert len(windows) == 5 * 9
        assert all(window[1] <= window[2] for window in windows)


def test_a_failure_of_ours_takes_the_hook_off_and_changes_no_loss(
    primary: Primary, plain: list[list[str]], tmp_path: Path
) -> None:
    running = primary.start(tmp_path / "broken", break_at=2, evaluate_at=3)
    told = running.results()
    assert [one["losses"] for one in told] == plain
    assert not any(one["active"] or one["own"] for one in told)
    assert "ValueError" in told[0]["why"]
    assert running.log().count("the hook is detached from this rank") == 1


def test_other_micro_batches_make_another_generation(primary: Primary, tmp_path: Path) -> None:
    running = primary.start(tmp_path / "run", change_at=2, change_to=6)
    running.results()
    windows, _ = records(running.file(0))
    by_step = {window[0] >> 16: window[3] for window in windows}
    assert by_step[1] < by_step[2] == by_step[4]


class PipelineEngine:
    """Looks like DeepSpeed's engine, as far as `attach` checks."""

    num_stages, stage_id, micro_batches, global_rank = 2, 0, 4, 0

    def __init__(self, schedule: str = "TrainSchedule", **changed: Any) -> None:
        self._schedule = schedule
        self.device = type("device", (), {"type": "cpu"})
        self.grid = type("grid", (), {"data_parallel_id": 0})
        names = ("RecvActivation", "RecvGrad", "SendActivation", "SendGrad")
        self._map = {type(name, (), {}): None for name in names}
        self.__dict__.update(changed)

    @property
    def _INSTRUCTION_MAP(self) -> dict[type, Any]:
        return self._map

    def _train_schedule(self) -> Any:
        return type(self._schedule, (), {"num_micro_batches": 4})()

    def _aggregate_total_loss(self) -> None: ...

    def reset_activation_shape(self) -> None: ...


@pytest.mark.parametrize(
    ("engine", "version", "why"),
    [
        (object(), "0.19.8", "object has no pipeline"),
        (PipelineEngine(), "0.18.2", r"DeepSpeed 0.18.2 is too old: install deepspeed>=0.19.3"),
        (PipelineEngine("DualPipeVSchedule"), "0.19.8", "schedule DualPipeVSchedule is not supported"),
        (PipelineEngine("InterleavedSchedule"), "0.20.0", "schedule InterleavedSchedule is not supported"),
        (PipelineEngine(num_stages=1), "0.19.8", "one stage"),
        (PipelineEngine(_map={}), "0.19.8", "no instruction RecvActivation"),
        (PipelineEngine(device=type("d", (), {"type": "cuda"})), "0.19.8", "order of the stream"),
    ],
)
def test_what_has_no_windows_is_reported_and_left_alone(
    engine: Any,
    version: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(f"{__name__}.__version__", version, raising=False)
    before = dict(getattr(engine, "__dict__", {}))
    told = attach(engine, job="gpt", place=tmp_path)
    assert why in told.why_not
    assert "Training continues without it" in caplog.text
    assert not told.active
    assert dict(getattr(engine, "__dict__", {})) == before
    assert not list(tmp_path.iterdir())


def test_a_folder_of_somebody_else_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.__version__", "0.19.8", raising=False)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert "others may write in it" in attach(PipelineEngine(), job="gpt", place=open_to_all).why_not
    (tmp_path / "file").write_text("")
    assert "cannot hold" in attach(PipelineEngine(), job="gpt", place=tmp_path / "file").why_not
    assert "too long" in attach(PipelineEngine(), job="g" * 500, place=tmp_path / "new").why_not


def header(pid: int, started: int) -> StageHeader:
    return StageHeader(
        job="gpt", replica=0, stage=0, stages=2, rank=0, device="cpu", pid=pid, started=started
    )


def test_a_stage_that_a_living_process_holds_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.__version__", "0.19.8", raising=False)
    parent = os.getppid()
    ticks = started_ticks(parent)
    assert ticks is not None
    StageFile.create(tmp_path, header(parent, ticks)).close()
    engine = PipelineEngine()
    assert "give this job another name" in attach(engine, job="gpt", place=tmp_path).why_not
    StageFile.open(tmp_path / "gpt.0.0.bubble").close()
    (tmp_path / "gpt.0.0.bubble").unlink()
    StageFile.create(tmp_path, header(parent, ticks - 1)).close()  # that process has ended
    attached = attach(engine, job="gpt", place=tmp_path)
    assert attached.active
    assert attach(engine, job="gpt", place=tmp_path) is attached
    attached.detach()
    assert "_INSTRUCTION_MAP" not in engine.__dict__


@pytest.mark.parametrize("damage", [b"", b"x", bytes(8)])
def test_a_file_that_is_not_ours_is_refused(damage: bytes, tmp_path: Path) -> None:
    made = StageFile.create(tmp_path, header(1, 1))
    made.close()
    made.path.write_bytes(damage or made.path.read_bytes().replace(b'"job"', b'"jab"'))
    with pytest.raises(StageFileError, match=r"stage's file|no header"):
        StageFile.open(made.path)


def test_all_ranks_draw_the_same_control_steps_and_more_of_them_contain_fewer() -> None:
    few = {step for step in range(20_000) if is_control(step, 3277)}
    many = {step for step in range(20_000) if is_control(step, 32768)}
    assert few < many
    assert 800 < len(few) < 1200
    assert 9600 < len(many) < 10_400
