"""Bundles on a whole cluster: members join, leave, fail and are killed, and each curve is that of the trial alone."""

import signal
import sys
from collections.abc import Mapping
from typing import Any

import psutil
import pytest
from cluster_site import PROGRAMS, Cluster, cluster, until

from headrace import Client
from headrace.client.events import TrialCreated
from headrace.client.model import TerminationReason, TrialInfo
from headrace.client.sync import Study
from headrace.spec import StudySpec
from headrace.spec.fuse import Fuse
from headrace_services.scheduler.session.messages import trial_seed

sys.path.insert(0, str(PROGRAMS))

import fused

pytestmark = pytest.mark.full

TRIALS, STEPS, SEED = 10, 8, 11
RAISES, DIVERGES, KILLS = 3, 5, 6


def spec(
    *,
    most: int | None,
    policy: dict[str, object],
    sampler: dict[str, object] | None = None,
    max_parallel: int = 0,
    max_trials: int = TRIALS,
    **env: str,
) -> StudySpec:
    fields = {
        "objective": {"metric": "score", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": sampler or {"kind": "random"},
        "policy": policy,
        "template": {"callable": "fused:train", "working_dir": str(PROGRAMS), "env": env},
        "max_trials": max_trials,
        "max_parallel": max_parallel,
        "max_steps": STEPS,
        "seed": SEED,
        **({} if most is None else {"fuse": {"most": most}}),
    }
    return StudySpec.model_validate(fields)


def curves(study: Study) -> dict[int, dict[int, float]]:
    return {
        one.number: {report.step: report.metrics["score"] for report in study.trial(one.number).reports()}
        for one in study.trials()
    }


def lived(trials: Mapping[int, TrialInfo]) -> dict[int, dict[int, float]]:
    """Each trial's curve, computed here: alone, except for what it copied according to the service."""
    states: dict[tuple[int, int], dict[str, Any]] = {}
    found: dict[int, dict[int, float]] = {number: {} for number in trials}
    for step in range(1, STEPS + 1):
        for number, one in trials.items():
            donor = next((copied.donor for copied in one.lineage if copied.step == step - 1), number)
            later = [copied.previous_params for copied in one.lineage if copied.step >= step]
            x = (later[0] if later else one.last_params)["x"]
            group = fused.Group()
            member = {"seed": trial_seed(SEED, number), "x": x, "number": number}
            group.add([member], None if step == 1 else [states[donor, step - 1]])
            (found[number][step],) = group.step()
            states[number, step] = group.member_state(0)
    return found


def said_of(study: Study, number: int) -> list[str]:
    """A trial's log as text."""
    return [event.message for event in study.trial(number).explain().events]


def bundles_of(study: Study, number: int) -> list[str]:
    """The bundles that a trial was in, in order."""
    placed = [message for message in said_of(study, number) if " in bundle " in message]
    return [message.rpartition(" in bundle ")[2] for message in placed]


def bundle_of(trials: list[TrialInfo]) -> str | None:
    """A bundle with several members that have progressed past their first step."""
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
    """The curves of the same study without bundles, up to the full budget."""
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    study = client.create_study("alone", spec(most=None, policy={"kind": "run_all"}))
    study.wait(120)
    found = curves(study)
    assert all(len(curve) == STEPS for curve in found.values())
    return found


def test_members_of_a_killed_bundle_continue_as_if_alone(
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
    messages = [message for one in trials for message in said_of(study, one.number)]
    assert any("in bundle" in message and "seat 2 of 4" in message for message in messages)


def test_only_the_guilty_of_ten_members_are_charged(
    site: Cluster, alone: dict[int, dict[int, float]]
) -> None:
    """All ten are in one bundle. One raises in its own data path, one diverges, one kills the process."""
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    env = {"FUSED_RAISES": str(RAISES), "FUSED_KILLS": str(KILLS), "FUSED_DIVERGES": str(DIVERGES)}
    policy = {"kind": "rung_median", "min_results": 100, "interval": 2}
    study = client.create_study("failing", spec(most=10, policy=policy, max_parallel=1, **env))
    study.wait(150)
    trials = {one.number: one for one in study.trials()}
    assert trials[RAISES].reason is TerminationReason.FAILED
    assert "its data cannot be read" in trials[RAISES].detail
    assert trials[KILLS].reason is TerminationReason.FAILED
    assert "SIGKILL" in trials[KILLS].detail
    innocent = {number: one for number, one in trials.items() if number not in (RAISES, KILLS)}
    assert {one.reason for one in innocent.values()} == {TerminationReason.COMPLETED}
    assert sum(one.failures for one in innocent.values()) == 0
    found = curves(study)
    diverged = found.pop(DIVERGES)
    assert diverged.keys() == alone[DIVERGES].keys()
    assert {step for step, value in diverged.items() if value != alone[DIVERGES][step]} == {3, 4, 5, 6, 7, 8}
    assert trials[DIVERGES].best_value == min(diverged[1], diverged[2])
    for number in innocent.keys() - {DIVERGES}:
        assert found[number] == alone[number], f"trial {number}"
    shared = [message for message in said_of(study, KILLS) if "its bundle of " in message]
    assert len(shared) <= 3, "ten are halved three times until one is alone"
    assert max(one.interruptions for one in innocent.values()) <= 3
    assert trials[KILLS].interruptions == len(shared) + 3, "alone, its fourth loss without progress ends it"
    first = bundles_of(study, KILLS)[0]
    assert {bundles_of(study, number)[0] for number in trials} == {first}, "all ten began in one bundle"


def test_a_population_copies_states_inside_one_bundle(site: Cluster) -> None:
    """Four members in one process: a trial that copies continues there from the other's state, with parameters of
    its own."""
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    policy = {"kind": "pbt", "interval": 1, "quantile": 0.5}
    study = client.create_study("population", spec(most=4, policy=policy, max_parallel=1, max_trials=4))
    study.wait(120)
    trials = {one.number: one for one in study.trials()}
    assert {one.reason for one in trials.values()} == {TerminationReason.COMPLETED}
    assert sum(len(one.lineage) for one in trials.values()) >= 3
    assert sum(one.interruptions + one.failures for one in trials.values()) == 0
    assert curves(study) == lived(trials)
    assert len({bundle for number in trials for bundle in bundles_of(study, number)}) == 1


def test_a_model_proposes_while_bundles_train(site: Cluster) -> None:
    """TPE learns from the results of members, and from those that still train."""
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    sampler = {"kind": "tpe", "startup_trials": 4}
    slow = {"FUSED_STEP_S": "0.04"}
    study = client.create_study(
        "model", spec(most=4, policy={"kind": "run_all"}, sampler=sampler, max_trials=26, **slow)
    )
    study.wait(120)
    trials = {one.number: one for one in study.trials()}
    assert len(trials) == 26
    assert {one.reason for one in trials.values()} == {TerminationReason.COMPLETED}
    assert curves(study) == lived(trials)
    created = [event.detail for number in trials for event in study.trial(number).explain().events]
    made = [one.proposal for one in created if isinstance(one, TrialCreated) and one.proposal is not None]
    modelled = [one for one in made if one.sampler == "tpe"]
    assert len(modelled) >= 6
    assert all(one.results >= 4 for one in modelled)
    assert max(one.pending for one in modelled) >= 2, "members that train are taken into account"
    assert any("seat 2 of 4" in message for number in trials for message in said_of(study, number))
    assert len({one.params["x"] for one in trials.values()}) == 26


def test_a_bundle_out_of_memory_continues_in_smaller_ones_and_charges_nobody(
    site: Cluster, alone: dict[int, dict[int, float]]
) -> None:
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    policy = {"kind": "rung_median", "min_results": 100, "interval": 2}
    limits = {"FUSED_MEMBER_MIB": "32", "FUSED_LIMIT_MIB": "200", "FUSED_STEP_S": "0.02"}
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
    # A process reports its memory while it grows: once it has held more members, its turns report none.
    for members in (2, 4):
        assert max(turn.memory_bytes for turn in size.turns if turn.members == members) > 1 << 20
