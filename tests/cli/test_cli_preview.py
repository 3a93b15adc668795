"""`headrace preview` in a pipe: what a study will cost, and how it may end."""

import json
from pathlib import Path

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService

from headrace.v1 import study_pb2


def test_preview(fake: FakeStudyService, invoke: Invoke, study_file) -> None:  # type: ignore[no-untyped-def]
    text = invoke("preview", str(study_file), "--seconds-per-step", "42", "--slots", "8").out
    assert "143 of the 756" in text
    assert "81 % saved" in text
    assert "12 min 31 s on 8 slots" in text
    assert "(the baseline)" in text.partition("The first configurations:\n")[2].splitlines()[0]
    plan = json.loads(invoke("preview", str(study_file), "--json").out)
    assert set(plan) == {
        "trials",
        "rungs",
        "baseline_steps",
        "steps",
        "steps_run_all",
        "slots",
        "wall_time_s",
        "slot_time_s",
        "samples",
        "sizes",
        "bundle_groups",
        "companions",
        "all_steps",
        "all_wall_time_s",
        "all_slot_time_s",
        "warnings",
    }
    assert plan["wall_time_s"] is None
    assert (plan["companions"], plan["all_steps"], plan["warnings"]) == ([], 143, [])


def test_a_preview_counts_the_pilot_and_the_targets_and_their_sum(
    fake: FakeStudyService, invoke: Invoke, tmp_path: Path
) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(
        "name: small\nobjective: {metric: val_loss, goal: minimize}\ntrial: {callable: 'train:train'}\n"
        "space: {lr: {type: float, low: 0, high: 1}}\ntrials: 9\nsteps: 9\ntransfer: {callable: 'train:target'}\n"
    )
    for role, trials, steps, wall_s, slot_s in (("pilot", 48, 48, 60, 240), ("target", 3, 27, 270, 810)):
        one = study_pb2.PreviewCompanion(role=role, trials=trials, steps=steps)
        one.wall_time.FromSeconds(wall_s)
        one.slot_time.FromSeconds(slot_s)
        fake.companions.append(one)
    options = ("--seconds-per-step", "1", "--slots", "4")
    result = invoke("preview", str(file), *options)
    text = " ".join(result.out.split())
    assert (
        "Pilot small-scale, before this study: 48 trials, 48 steps, about 1 min 00 s (4 min 00 s of slot time)."
        in text
    )
    assert "Targets in small-target, after this study: 3 trials, 27 steps, about 4 min 30 s" in text
    assert "In all: about 218 steps, about 6 min 06 s (19 min 53 s of slot time)." in text
    assert (
        "Give --target-seconds-per-step if a step on the large model takes longer." in result.out + result.err
    )
    plan = json.loads(invoke("preview", str(file), *options, "--target-seconds-per-step", "9", "--json").out)
    assert plan["companions"][1] == {
        "role": "target",
        "trials": 3,
        "steps": 27,
        "wall_time_s": 270.0,
        "slot_time_s": 810.0,
    }
    assert (plan["all_steps"], plan["all_wall_time_s"], plan["all_slot_time_s"]) == (218, 365.75, 1193.0)
    assert fake.requests["PreviewStudy"][-1].target_seconds_per_step == 9.0


def test_a_preview_says_what_may_end_the_study_before_its_trials_have(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    study_file.write_text(f"{study_file.read_text()}until: {{value: 0.1, hours: 0.1}}\n")
    text = " ".join(
        invoke("preview", str(study_file), "--seconds-per-step", "42", "--slots", "8").out.split()
    )
    assert (
        "It may end before that: val_loss ≤ 0.1 or 0.1 hours. The time limit ends the study before all trials "
        "have ended" in text
    )
    assert "about 48 % of the time above" in text
    assert "The time limit ends" not in invoke("preview", str(study_file)).out


@pytest.mark.parametrize(
    ("fuse", "said"),
    [
        ("{most: 16}", "Bundles: up to 16 trials share a process, on one slot."),
        (
            "auto",
            "Bundles: 2 trials share a process at first, on one slot. The number doubles while that makes more",
        ),
        ("{auto: true, most: 64}", "up to 64; headrace show says where it stands."),
    ],
)
def test_a_preview_says_how_many_trials_share_a_process_and_why(
    fake: FakeStudyService, invoke: Invoke, tmp_path: Path, fuse: str, said: str
) -> None:
    file = tmp_path / "fused.yaml"
    file.write_text(
        "name: fused\nobjective: {metric: val_loss, goal: minimize}\ntrial: {callable: 'train:train'}\n"
        f"space: {{lr: {{type: float, low: 0, high: 1}}}}\ntrials: 9\nsteps: 9\nresources: {{gpus: 0}}\nfuse: {fuse}\n"
    )
    assert said in " ".join(invoke("preview", str(file)).out.split())


def test_a_preview_says_how_many_trials_repeat_a_point(
    fake: FakeStudyService, invoke: Invoke, tmp_path: Path
) -> None:
    file = tmp_path / "few.yaml"
    file.write_text(
        "name: few\nobjective: {metric: val_loss, goal: minimize}\ntrial: {callable: 'train:train'}\n"
        "space: {n: {type: int, low: 1, high: 6}}\ntrials: 20\nsteps: 9\n"
    )
    said = "The space has 6 points and the study 20 trials: once every point has been tried, 14 trials will repeat one"
    assert said in " ".join(invoke("preview", str(file)).err.split())
    (warning,) = json.loads(invoke("preview", str(file), "--json").out)["warnings"]
    assert warning.startswith(said)
    file.write_text(file.read_text().replace("trials: 20", "trials: 6"))
    assert json.loads(invoke("preview", str(file), "--json").out)["warnings"] == []
