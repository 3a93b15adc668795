"""`headrace launch slurm` against a real Slurm with two nodes, and a scheduler that requires certificates."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from shutil import which

import pytest
from cluster import SlurmCluster
from slurm_site import SlurmSite

from headrace.client.model import StudyState
from headrace.launch.engine import Stage
from headrace.launch.slurm.engine import SlurmEngine

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
PROGRAMS = Path(__file__).parent / "programs"
NOBODY = 65534


def says(log: Path, text: str) -> bool:
    return text in log.read_text()


def test_two_workers_come_up_for_a_study_and_leave_when_idle(site: SlurmSite) -> None:
    study = site.study("comes", max_trials=6)
    loop = site.loop()
    site.until(lambda: len(site.headrace.connected()) == 2, "two workers connect")
    assert {name.rsplit("-", 1)[1] for name in site.headrace.connected()} == {"0", "1"}
    with site.headrace.client as client:
        info = client.study(study.name).wait(timeout_s=120)
    assert (info.state, info.counts.completed, info.counts.failed) == (StudyState.COMPLETED, 6, 0)
    site.until_empty()
    assert loop.poll() is None
    left = [file.name for file in site.tokens.iterdir() if file.suffix in (".token", ".ask")]
    assert left == [], "tokens are deleted once they are used"
    with site.headrace.client as client:
        workers = client.workers()
    assert not [worker.name for worker in workers if worker.connected]


@pytest.mark.parametrize("how", ["scancel", "requeue", "wall time"])
def test_a_job_that_slurm_ends_costs_its_trial_at_most_a_step_and_nobody_is_charged(
    site: SlurmSite, how: str
) -> None:
    study = site.study("ends", step_s=0.3, max_steps=150)
    site.loop()
    site.until(lambda: len(site.steps("ends")) == 2, "both trials train")
    site.until(lambda: min(map(len, site.steps("ends").values())) >= 5, "five steps of each")
    with site.headrace.client as client:
        victim = min(trial.worker or "" for trial in client.study(study.name).trials())
        (trial,) = [one for one in client.study(study.name).trials() if one.worker == victim]
    job = victim.removeprefix("slurm-").replace("-", "_")
    match how:
        case "scancel":
            site.slurm.run("scancel", job)
        case "requeue":
            site.slurm.run("scontrol", "requeue", job)
        case _:
            site.slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    site.until(lambda: any(attempt == 2 for attempt, _ in site.steps("ends")[trial.number]), "it resumes")
    with site.headrace.client as client:
        client.study(study.name).stop()
        after = client.study(study.name).trial(trial.number).info()
    by_attempt = {
        n: {step for attempt, step in site.steps("ends")[trial.number] if attempt == n} for n in (1, 2)
    }
    lost = by_attempt[1] & by_attempt[2]
    assert len(lost) <= 1, site.said()
    assert min(by_attempt[2]) in (max(by_attempt[1]), max(by_attempt[1]) + 1), site.said()
    assert (after.failures, after.interruptions) == (0, 0), site.said()


def test_a_loop_that_is_killed_twenty_times_submits_each_pending_job_once(site: SlurmSite) -> None:
    study = site.study("killed", max_trials=4, max_steps=5)
    site.slurm.run("scontrol", "update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test")
    chance = random.Random(5)
    seen: set[str] = set()
    try:
        for _ in range(20):
            loop = site.loop()
            log = site.headrace.logs[f"loop-{len(site.loops) - 1}"]
            site.until(partial(says, log, "Launches at most"), "its first turn begins")
            # Kills come anywhere in its first turns: one takes some tenths of a second.
            time.sleep(chance.uniform(0.0, 1.5))
            loop.send_signal(signal.SIGKILL)
            loop.wait()
            seen |= {member.id for member in site.members()}
        time.sleep(2)  # for an sbatch that outlived its loop
        members = site.members()
        assert len(seen | {member.id for member in members}) == len(members) == 2, site.said()
        assert {member.stage for member in members} == {Stage.PENDING}
    finally:
        site.slurm.run("scontrol", "update", "NodeName=n[1-2]", "State=RESUME")
    site.loop()
    with site.headrace.client as client:
        assert client.study(study.name).wait(timeout_s=180).counts.completed == 4
    site.until_empty()


def test_jobs_in_a_hidden_partition_hold_their_seats(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.folder.chmod(0o711)
    for name in ("sbatch", "squeue", "scancel"):  # root sees hidden partitions, other users do not
        (tmp_path / name).write_text(
            f'#!/bin/sh\nexec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {which(name)} "$@"\n'
        )
        (tmp_path / name).chmod(0o755)
    for name, value in {**slurm.environ, "SQUEUE_STATES": "completed"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    script = "#!/bin/bash\n#SBATCH --partition=hidden --output=/dev/null --begin=now+1hour\nexec true\n"
    engine = SlurmEngine(name="unseen", script=script)
    engine.submit([0])
    try:
        shown = subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout
        assert "hidden" not in shown
        assert [member.seat for member in engine.members()] == [0]
    finally:
        subprocess.run(["scancel", f"--user={NOBODY}"], check=True)


def test_a_double_is_cancelled_and_one_that_was_left_held_alone_is_released(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    engine = SlurmEngine(
        name="held", script="#!/bin/bash\n#SBATCH -o /dev/null --begin=now+1hour\nexec true\n"
    )
    try:
        for _ in range(3):
            engine.submit([0])
        first, second, third = engine.members()
        engine.withdraw(third)
        assert [one.id for one in engine.members()] == [first.id, second.id]
        engine.withdraw(third)  # as a second loop does
        slurm.run("scontrol", "uhold", second.id)  # and the loop is killed
        slurm.run("scancel", first.id)
        (left,) = engine.members()
        assert (left.id, left.held) == (second.id, True)
        engine.withdraw(left)
        assert not engine.members()[0].held
    finally:
        slurm.run("scancel", "--name=headrace-held-0")


def test_two_loops_at_once_stay_within_the_bound_and_withdraw_what_both_requested(site: SlurmSite) -> None:
    study = site.study("both", max_trials=12, max_steps=20)
    loops = [site.loop(most=3) for _ in range(2)]
    most = 0
    with site.headrace.client as client:
        handle = client.study(study.name)
        while handle.status().state is StudyState.ACTIVE:
            running = Counter(member.seat for member in site.running())
            most = max(most, running.total())
            assert set(running.values()) <= {1}, "never two on one seat"
            assert max(running, default=0) < 3
            time.sleep(0.3)  # a sample; Slurm sends no notifications
        assert handle.status().counts.completed == 12
    assert 0 < most <= 3
    site.until(
        lambda: max(Counter(one.seat for one in site.members()).values(), default=0) <= 1,
        "doubles are withdrawn",
    )
    site.until_empty()
    assert [loop.poll() for loop in loops] == [None, None]


def test_workers_that_come_after_the_study_has_ended_leave(site: SlurmSite) -> None:
    study = site.study("ended")
    site.slurm.run("scontrol", "update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test")
    try:
        site.loop()
        site.until(lambda: len(site.members()) == 2, "two jobs are pending")
        with site.headrace.client as client:
            client.study(study.name).stop()
    finally:
        site.slurm.run("scontrol", "update", "NodeName=n[1-2]", "State=RESUME")
    site.until(site.headrace.connected, "a worker comes")
    site.until_empty()


def test_a_job_whose_token_has_expired_leaves_with_a_message_and_another_one_comes(site: SlurmSite) -> None:
    study = site.study("expired", max_trials=1, max_steps=5)
    once = site.loop("--once", most=1)
    assert once.wait(60) == 0
    (ask,) = site.until(lambda: list(site.tokens.glob("*.ask")), "the job asks for a token")
    secret = site.headrace.token(worker=ask.stem, lifetime=timedelta(seconds=1))
    time.sleep(2)  # until it has expired
    ask.with_suffix(".token").write_text(secret)
    site.until_empty()
    (log,) = (site.root / "jobs").iterdir()
    assert "expired" in log.read_text()
    site.loop(most=1)
    with site.headrace.client as client:
        assert client.study(study.name).wait(timeout_s=120).counts.completed == 1
    site.until_empty()


LIGHTNING = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"x": {"type": "float", "low": 0.01, "high": 0.1}},
}


def test_lightning_trains_and_does_not_believe_that_it_is_the_slurm_job(site: SlurmSite) -> None:
    pytest.importorskip("pytorch_lightning")
    template = {"callable": "lit:train", "working_dir": str(PROGRAMS)}
    study = site.study("lightning", template=template, max_steps=3, **LIGHTNING)
    site.loop()
    with site.headrace.client as client:
        info = client.study(study.name).wait(timeout_s=400)
        details = [trial.detail for trial in client.study(study.name).trials()]
    assert info.counts.completed == 2, f"{details}\n{site.said()}"


def test_lightning_outlives_scancel_and_resumes_from_the_epoch_that_it_had_reached(site: SlurmSite) -> None:
    pytest.importorskip("pytorch_lightning")
    env = {"LIT_BATCH_S": "0.1"}  # four batches make an epoch
    template = {"callable": "lit:train", "working_dir": str(PROGRAMS), "env": env}
    study = site.study("cancelled", template=template, max_trials=1, max_steps=300, **LIGHTNING)
    site.loop(most=1)
    with site.headrace.client as client:
        trial = client.study(study.name).trial(0)
        site.until(lambda: client.study(study.name).trials() and trial.info().step >= 5, "five epochs", 300)
        site.slurm.run("scancel", (trial.info().worker or "").removeprefix("slurm-").replace("-", "_"))
        site.until(lambda: trial.info().attempt == 2 and trial.info().step >= 10, "it resumes", 300)
        info = trial.info()
        steps = [report.step for report in client.study(study.name).reports()]
        client.study(study.name).stop()
    assert (info.failures, info.interruptions) == (0, 0), site.said()
    assert info.steps_spent - info.step <= 1, f"at most one epoch is trained twice: {steps}"
