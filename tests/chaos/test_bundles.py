"""Bundles on a whole cluster: members join, leave, fail and are killed, and each curve is that of the trial alone."""

import signal

import psutil
import pytest
from cluster_site import PROGRAMS, Cluster, cluster, until

from headrace import Client
from headrace.client.model import TerminationReason, TrialInfo
from headrace.client.sync import Study
from headrace.spec import StudySpec
from headrace.spec.fuse import Fuse

TRIALS, STEPS = 10, 8
RAISES, KILLS = 3, 6


def spec(*, most: int | None, policy: dict[str, object], **env: str) -> StudySpec:
    fields = {
        "objective": {"metric": "score", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": {"kind": "random"},
        "policy": policy,
        "template": {"callable": "fused:train", "working_dir": str(PROGRAMS), "env": env},
        "max_trials": TRIALS,
        "max_steps": STEPS,
        "seed": 11,
        **({} if most is None else {"fuse": {"most": most}}),
    }
    return StudySpec.model_validate(fields)


def curves(study: Study) -> dict[int, dict[int, float]]:
    return {
        one.number: {report.step: report.metrics["score"] for report in study.trial(one.number).reports()}
        for one in study.trials()
    }


def bundle_of(trials: list[TrialInfo]) -> str | None:
    """A bundle with several members that have come further than their first step."""
    found = [one.bundle for one in trials if one.bundle and one.bundle_members > 1 and one.step > 1]
    return found[0] if found else None


def process_of(site: Cluster, grant: str) -> psutil.Process | None:
    for process in site.process.children(recursive=True):
        try:
            if process.environ().get("HEADRACE_BUNDLE") == grant and not process.children():
                return process
        except psutil.Error:
            continue
    return None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory):
    with cluster(tmp_path_factory.mktemp("bundles"), slots=2, lease_ttl_s=6.0) as found:
        yield found


@pytest.fixture(scope="module")
def alone(site: Cluster) -> dict[int, dict[int, float]]:
    """The curves of the same study without bundles, to the full budget."""
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    study = client.create_study("alone", spec(most=None, policy={"kind": "run_all"}))
    study.wait(120)
    found = curves(study)
    assert all(len(curve) == STEPS for curve in found.values())
    return found


def test_members_of_a_killed_bundle_go_on_as_if_alone(
    site: Cluster, alone: dict[int, dict[int, float]]
) -> None:
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    policy = {"kind": "asha", "eta": 2, "rungs": [2, 4, 8]}
    study = client.create_study("killed", spec(most=4, policy=policy))
    grant = until(lambda: bundle_of(study.trials()), "a bundle of several members", 60)
    if (process := process_of(site, grant)) is not None:
        process.send_signal(signal.SIGKILL)
    study.wait(120)
    trials = study.trials()
    assert study.status().state.value == "completed"
    assert sum(one.failures for one in trials) == 0
    for number, curve in curves(study).items():
        assert curve == {step: alone[number][step] for step in curve}, f"trial {number}"
    assert max(len(curve) for curve in curves(study).values()) == STEPS
    messages = [event.message for one in trials for event in study.trial(one.number).explain().events]
    assert any("in bundle" in message and "seat 2 of 4" in message for message in messages)


def test_only_the_member_that_fails_is_charged(site: Cluster, alone: dict[int, dict[int, float]]) -> None:
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    env = {"FUSED_RAISES": str(RAISES), "FUSED_KILLS": str(KILLS)}
    policy = {"kind": "rung_median", "min_results": 100, "interval": 2}
    study = client.create_study("failing", spec(most=4, policy=policy, **env))
    study.wait(150)
    trials = {one.number: one for one in study.trials()}
    assert trials[RAISES].reason is TerminationReason.FAILED
    assert "its data cannot be read" in trials[RAISES].detail
    assert trials[KILLS].reason is TerminationReason.FAILED
    assert "SIGKILL" in trials[KILLS].detail
    sound = {number: one for number, one in trials.items() if number not in (RAISES, KILLS)}
    assert {one.reason for one in sound.values()} == {TerminationReason.COMPLETED}
    assert sum(one.failures for one in sound.values()) == 0
    found = curves(study)
    for number in sound:
        assert found[number] == alone[number], f"trial {number}"


def test_a_bundle_out_of_memory_goes_on_in_smaller_ones_and_charges_nobody(
    site: Cluster, alone: dict[int, dict[int, float]]
) -> None:
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    policy = {"kind": "rung_median", "min_results": 100, "interval": 2}
    limits = {"FUSED_MEMBER_MIB": "32", "FUSED_LIMIT_MIB": "200", "FUSED_STEP_S": "0.05"}
    one_process = spec(most=8, policy=policy, **limits).model_copy(update={"max_parallel": 1})
    study = client.create_study("short", one_process)
    study.wait(150)
    trials = study.trials()
    assert {one.reason for one in trials} == {TerminationReason.COMPLETED}
    assert [one.failures for one in trials] == [0] * TRIALS, "nobody is charged"
    assert curves(study) == alone
    (size,) = study.status().bundle_sizes
    assert (size.trials, "ran out of memory" in size.reason) == (4, True)
    events = [event for update in study.watch() for event in update.events]
    (lesson,) = [one for one in events if "hold up to" in one.message]
    after = [one.message for one in events if one.cursor > lesson.cursor and "in bundle" in one.message]
    assert after, "trials are placed after the lesson"
    assert all(" of 4 in bundle" in message for message in after), "each bundle after it starts right"


def test_auto_finds_out_how_many_share_a_process(site: Cluster, alone: dict[int, dict[int, float]]) -> None:
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    policy = {"kind": "rung_median", "min_results": 100, "interval": 2}
    chosen = spec(most=8, policy=policy, FUSED_STEP_S="0.05").model_copy(
        update={"fuse": Fuse.model_validate("auto"), "max_parallel": 1}
    )
    study = client.create_study("auto", chosen)
    study.wait(150)
    assert curves(study) == alone
    (size,) = study.status().bundle_sizes
    assert size.trials >= 8, "a turn takes the same time, however many members it has"
    assert {2, 4} <= {turn.members for turn in size.turns}
    assert all(turn.turn_s >= 0.05 for turn in size.turns)
    assert all(turn.memory_bytes > 1 << 20 for turn in size.turns if turn.members in (2, 4))
