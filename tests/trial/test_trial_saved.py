"""What a trial saves: what it tracks, its state and generators, and the checkpoints that contain them."""

import errno
import logging
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counting import Counter, run
from recording_runtime import RecordingRuntime

from headrace import durable
from headrace.trial import checkpoint


def test_generators_are_restored_after_the_scripts_own_seeding(recording: RecordingRuntime) -> None:
    t = recording.trial()
    t.track(counter=Counter())
    for step in t.steps():
        if step == 3:
            expected = random.random(), np.random.rand(), torch.rand(()).item()
            break
        t.report(loss=1)
    t = recording.trial()
    t.track(counter=Counter())
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    next(t.steps())
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def test_state_keeps_plain_values_and_wins_over_the_scripts_initial_ones(recording: RecordingRuntime) -> None:
    kept = {
        "best": float("-inf"),
        "nan": float("nan"),
        "history": [1, 2.5, None, True, "x"],
        "pair": (1, (2,)),
        "by_number": {0: "a", 1.5: "b", None: "c"},
        "seen": {3, 4},
        "raw": b"\x00\xff",
        "tensor": torch.arange(3, dtype=torch.float64),
        "array": np.array([[1, 2]], dtype=np.int16),
        "scalar": np.float32(0.1),
    }
    t = recording.trial()
    t.state.update(kept)
    t.report(loss=1, save=True)
    again = recording.trial()
    assert again.state.keys() == kept.keys(), "readable before track()"
    again.state["best"] = 0.0
    next(again.steps())
    assert again.state["best"] == float("-inf")
    for name in ("history", "pair", "seen", "raw"):
        assert again.state[name] == kept[name]
        assert type(again.state[name]) is type(kept[name])
    assert torch.equal(again.state["tensor"], torch.arange(3, dtype=torch.float64))
    assert again.state["array"].dtype == np.int16
    assert type(again.state["scalar"]) is np.float32


@pytest.mark.parametrize(
    "generator", [random.Random, np.random.default_rng, np.random.RandomState, torch.Generator]
)
def test_generators_of_every_kind_can_be_tracked(recording: RecordingRuntime, generator: Any) -> None:
    def draw(made: Any) -> float:
        if isinstance(made, torch.Generator):
            return torch.rand((), generator=made).item()
        return made.random() if hasattr(made, "random") else made.random_sample()

    made = generator()
    t = recording.trial()
    t.track(own=made)
    draw(made)
    t.report(loss=1, save=True)
    expected = draw(made)
    made = generator()
    recording.trial().track(own=made)
    assert draw(made) == expected


def test_what_is_tracked_without_a_name_is_called_by_its_type(recording: RecordingRuntime) -> None:
    def build() -> tuple[torch.nn.Linear, torch.optim.SGD, Any]:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)

    model, optimizer, schedule = build()
    t = recording.trial()
    t.track(model, optimizer, schedule, count=Counter())
    assert list(t.tracked_objects()) == ["linear", "sgd", "cosine_annealing_lr", "count"]
    t.report(loss=1, save=True)
    again, other, counter = build()[0], torch.nn.Sequential(), Counter()
    t = recording.trial()
    t.track(again, *build()[1:], count=counter)
    assert torch.equal(again.weight, model.weight)
    with pytest.raises(ValueError, match=re.escape("t.track(sequential=...): the checkpoint holds")):
        t.track(other)


@pytest.mark.parametrize(
    ("objects", "named", "message"),
    [
        (
            (Counter(), Counter()),
            {},
            (
                "t.track(...) got more than one object of the type Counter, or called 'counter'; "
                "give each a name of its own, as in t.track(counter_1=..., counter_2=...)"
            ),
        ),
        ((Counter(),), {"counter": Counter()}, "or called 'counter'"),
        (
            ({"a": Counter()},),
            {},
            "t.track(...) got a dict; give each object a name, as in t.track(**objects)",
        ),
        (([],), {}, "t.track(list=...) got a list, which has no state_dict()"),
    ],
)
def test_objects_that_cannot_be_called_by_their_type(
    recording: RecordingRuntime, objects: Any, named: Any, message: str
) -> None:
    t = recording.trial()
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        t.track(*objects, **named)
    assert t.tracked_objects() == {}


def test_what_cannot_be_saved_is_refused_before_the_first_step(recording: RecordingRuntime) -> None:
    class Unsafe(Counter):
        def state_dict(self) -> dict[str, Any]:
            return {"hooks": [print]}

    t = recording.trial()
    with pytest.raises(TypeError, match=r"unsafe.hooks\[0\] is a builtins.builtin_function_or_method"):
        t.track(unsafe=Unsafe())
    with pytest.raises(TypeError, match=r"t.track\(words=...\) got a list.*t.state\['words'\]"):
        t.track(words=[])
    t.track(counter=Counter())
    with pytest.raises(ValueError, match=r"t.track\(counter=...\) was called before"):
        t.track(counter=Counter())
    next(t.steps())
    with pytest.raises(ValueError, match=r"call t.track\(...\) before the loop"):
        t.track(late=Counter())


def test_another_script_than_the_one_that_saved_is_told_apart(
    recording: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    run(recording.trial(), Counter())
    with pytest.raises(
        ValueError, match=r"t.track\(model=...\): the checkpoint holds counter, but no 'model'"
    ):
        recording.trial().track(model=Counter())
    with caplog.at_level(logging.WARNING):
        next(recording.trial().steps(), None)
        recording.trial().report(loss=1)
    assert "the checkpoint also holds counter, which t.track(...) was not given" in caplog.text


def test_a_model_without_state_dict_is_kept_as_bytes(recording: RecordingRuntime) -> None:
    with pytest.raises(TypeError, match=r"keep pickle.dumps\(model\), .* in t.state\['model'\]"):
        recording.trial().track(model=object())
    with pytest.raises(TypeError, match=r"got a int, .*; keep the value in t.state\['n'\]"):
        recording.trial().track(n=3)


def test_a_half_written_checkpoint_is_never_seen(
    recording: RecordingRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_disk(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", broken_disk)
    with pytest.raises(OSError, match="Input/output error"):
        run(recording.trial(), Counter())
    assert recording.checkpoint_dir is not None
    assert not list(recording.checkpoint_dir.iterdir())
    assert [report.step for report in recording.reports] == [1], (
        "a step without its checkpoint is not reported"
    )


@pytest.mark.parametrize("said_by_torch", [False, True])
def test_on_a_full_disk_the_trial_waits(
    recording: RecordingRuntime,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    said_by_torch: bool,
) -> None:
    save, failures = torch.save, []

    def failing(*arguments: Any) -> None:
        if len(failures) < 2:
            failures.append(1)
            full = OSError(errno.ENOSPC, "No space left on device")
            if not said_by_torch:
                raise full
            raise RuntimeError("unexpected pos 704 vs 598") from full
        save(*arguments)

    monkeypatch.setattr(torch, "save", failing)
    monkeypatch.setattr("headrace.trial.saving.FULL_DISK_WAITS_S", (0.0, 0.0))
    with caplog.at_level(logging.WARNING):
        run(recording.trial(), Counter())
    assert len(failures) == 2
    assert recording.reports[-1].checkpoint_dir is not None
    assert caplog.text.count("No space left on device") == 1


def test_checkpoints_are_loaded_without_running_code(recording: RecordingRuntime) -> None:
    assert recording.checkpoint_dir is not None
    folder = recording.checkpoint_dir / "evil"
    folder.mkdir(parents=True)
    torch.save({"format": 1, "run": print}, folder / "rank-0.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        checkpoint.read(folder)


def test_a_link_that_leads_nowhere_costs_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "weights").write_bytes(b"1")
    (tmp_path / "step" / "latest").symlink_to("nowhere")
    durable.flush_below(tmp_path / "step")
