"""What a trial gets of its worker's environment: what is listed or named, and no secret by accident."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.environment import PASSED, hint, names_to_pass, select
from headrace.errors import InvalidFieldError

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "s3cr3t",
    "AWS_ACCESS_KEY_ID": "id",
    "DATABASE_URL": "postgresql://me:pw@db/x",
    "HEADRACE_DATABASE_URL": "postgresql://me:pw@db/y",
    "PGPASSWORD": "pw",
    "WANDB_API_KEY": "k",
    "GOOGLE_APPLICATION_CREDENTIALS": "/key.json",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "HF_TOKEN": "t",
    "HF_APIKEY": "k",
    "DS_SECRETKEY": "k",
    "SLURM_JWT": "a token of Slurm's",
    "TF_VAR_database": "a variable of Terraform's",
    "HTTPS_PROXY": "http://token@proxy:3128",
    "https_proxy": "http://me:pw@proxy:3128",
}
NEEDED = {
    "PATH": "/bin",
    "HOME": "/h",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "TZ": "UTC",
    "PYTHONPATH": "/p",
    "CUDA_HOME": "/c",
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "1",
    "LD_LIBRARY_PATH": "/l",
    "TORCHINDUCTOR_CACHE_DIR": "/t",
    "HF_HOME": "/hf",
    "TOKENIZERS_PARALLELISM": "false",
    "HTTP_PROXY": "http://proxy:3128",
}


def test_what_is_needed_is_passed_and_no_secret() -> None:
    selection = select({**SECRETS, **NEEDED, "EDITOR": "vi", "PWD": "/x"})
    assert selection.passed == NEEDED
    assert set(selection.withheld) == {*SECRETS, "EDITOR"} - {"HEADRACE_DATABASE_URL"}


def test_what_the_operator_names_is_passed_whatever_it_looks_like() -> None:
    named = names_to_pass("AWS_*, WANDB_API_KEY")
    passed = select({**SECRETS, "AWSX": "no"}, named).passed
    assert set(passed) == {"AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "WANDB_API_KEY"}


@pytest.mark.parametrize("text", ["*", "A-B", "A=1", "HEADRACE_DATABASE_URL", "HEADRACE_*", "A**", "a b*c"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="--pass-env"):
        names_to_pass(text)


def test_no_names_are_none() -> None:
    assert names_to_pass(None) == names_to_pass("") == names_to_pass(" , ") == ()


def test_every_listed_name_is_one_that_can_be_named() -> None:
    for row in PASSED:
        assert names_to_pass(row.names)


def test_an_error_that_names_what_was_withheld_says_so() -> None:
    assert "--pass-env HF_TOKEN" in hint("KeyError: 'HF_TOKEN'", ["HF_TOKEN"])
    assert hint("KeyError: 'HF_TOKENS'", ["HF_TOKEN"]) == ""


STUDY = """
name: s
objective: {metric: loss, goal: minimize}
trial: {callable: train:train, env: {FROM_STUDY: yes}}
space: {x: {type: float, low: 0, high: 1}}
policy: {kind: run_all}
trials: 3
steps: 1
retries: 0
"""
TRAIN = """
import json, os
at_import = dict(os.environ)
def train(t):
    for _ in t.steps():
        with open(f"{t.number}-{os.environ.get('HEADRACE_RANK', '0')}.json", "w") as file:
            json.dump({"import": at_import, "run": dict(os.environ)}, file)
        if FAIL:
            os.environ["WANDB_API_KEY"]
        t.report(loss=1.0)
"""


def run_local(tmp_path: Path, *, fail: bool = False, extra: str = "", **environ: str):
    (tmp_path / "train.py").write_text(f"FAIL = {fail}\n{TRAIN}")
    (tmp_path / "study.yaml").write_text(STUDY + extra)
    slots = "2" if extra else "1"
    command = [sys.executable, "-m", "headrace.cli", "run", "--local", "--home", str(tmp_path / "home")]
    done = subprocess.run(
        [*command, "--slots", slots, str(tmp_path / "study.yaml")],
        env={**os.environ, **SECRETS, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    seen = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    logs = "".join(path.read_text() for path in (tmp_path / "home").rglob("logs/s*/*.log"))
    return done, seen, logs


@pytest.mark.timeout(240)
@pytest.mark.parametrize("extra", ["", "resources: {cpus: 2, processes: per_slot}\n"], ids=["alone", "gang"])
def test_trials_get_no_secret_of_the_worker(tmp_path: Path, extra: str) -> None:
    """Three trials on one slot: the later ones run in processes that stood by."""
    done, seen, logs = run_local(tmp_path, extra=extra, HEADRACE_PASS_ENV="WANDB_*")
    assert done.returncode == 0, done.stderr
    assert len(seen) == (6 if extra else 3)
    for environ in (at for both in seen for at in both.values()):
        assert set(SECRETS) & set(environ) == {"WANDB_API_KEY"}
        assert (environ["FROM_STUDY"], environ["OMP_NUM_THREADS"]) == ("yes", "1")
        assert environ["PATH"] == os.environ["PATH"]
    assert "not passed (--pass-env)" in logs


@pytest.mark.timeout(240)
def test_a_trial_that_misses_a_variable_is_told_how_to_get_it(tmp_path: Path) -> None:
    done, _, _ = run_local(tmp_path, fail=True)
    assert done.returncode == 1
    assert "--pass-env WANDB_API_KEY" in done.stdout + done.stderr
