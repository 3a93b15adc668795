"""What a trial gets of its worker's environment: what is listed or named, and no secret by accident."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from command_line import headrace_command
from ready_home import furnish

from headrace.cli.local import local_service
from headrace.cli.output import Output
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
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMP_NUM_THREADS": "1",
    "LD_LIBRARY_PATH": "/l",
    "TORCHINDUCTOR_CACHE_DIR": "/t",
    "HF_HOME": "/hf",
    "TOKENIZERS_PARALLELISM": "false",
    "HTTP_PROXY": "http://proxy:3128",
}


OF_THE_WORKERS_JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "4",
    "PMIX_RANK": "0",
    "PMI_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
    "I_MPI_RANK": "0",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
}


def test_a_trial_is_no_part_of_the_workers_own_job() -> None:
    assert select(OF_THE_WORKERS_JOB).passed == {}
    assert select(OF_THE_WORKERS_JOB, ["SLURM_*"]).passed.keys() == {
        "SLURM_JOB_ID",
        "SLURM_PROCID",
        "SLURM_NTASKS",
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
import json, os, time
at_import = dict(os.environ)
def train(t):
    for _ in t.steps():
        with open(f"{t.number}-{os.environ.get('HEADRACE_RANK', '0')}.json", "w") as file:
            json.dump({"import": at_import, "run": dict(os.environ)}, file)
        while not all(os.path.exists(f"{t.number}-{rank}.json") for rank in range(t.world_size)):
            time.sleep(0.01)  # the trial ends with the last report of rank 0
        if FAIL:
            os.environ["WANDB_API_KEY"]
        t.report(loss=1.0)
"""


Run = Callable[..., tuple["CompletedProcess[str]", list[dict[str, dict[str, str]]], str]]


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[Path, str]]:
    """A service of two slots with secrets in its environment, some of which are passed on. Yields its home and
    address."""
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # a short path: Unix sockets are created in it
    furnish(folder / "home")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SECRETS, "OMP_NUM_THREADS": "1", "HEADRACE_PASS_ENV": "AWS_*"}.items():
            patch.setenv(name, value)
        with local_service(folder / "home", slots=2, notes=Output()) as address:
            yield folder / "home", address
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run(tmp_path: Path, service: tuple[Path, str]) -> Run:
    """Run a study; returns how the command ended, the environments that trials saw, and what their logs say."""

    def start(name: str, *, fail: bool = False, extra: str = "") -> Any:
        home, address = service
        (tmp_path / "train.py").write_text(f"FAIL = {fail}\n{TRAIN}")
        (tmp_path / "study.yaml").write_text(STUDY + extra)
        done = headrace_command(
            "run",
            "--name",
            name,
            str(tmp_path / "study.yaml"),
            env={**os.environ, "HEADRACE_ADDRESS": address},
        )
        seen = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
        return done, seen, "".join(path.read_text() for path in home.rglob(f"logs/{name}-*/*.log"))

    return start


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.parametrize("extra", ["", "resources: {cpus: 2, processes: per_slot}\n"], ids=["alone", "gang"])
def test_trials_get_no_secret_of_the_worker(run: Run, extra: str) -> None:
    """Three trials in turn, on one slot or on both: the later ones run in standby processes."""
    done, seen, logs = run("gang" if extra else "alone", extra=extra)
    assert done.returncode == 0, done.stderr
    assert len(seen) == (6 if extra else 3)
    for environ in (at for both in seen for at in both.values()):
        assert set(SECRETS) & set(environ) == {"AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"}
        assert (environ["FROM_STUDY"], environ["OMP_NUM_THREADS"]) == ("yes", "1")
        assert environ["PATH"] == os.environ["PATH"]
    assert logs
    assert "--pass-env" not in logs, "told where a trial misses one, and by `headrace doctor`"


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_trial_that_misses_a_variable_is_told_how_to_get_it(run: Run) -> None:
    done, _, _ = run("misses", fail=True)
    assert done.returncode == 1
    assert "--pass-env WANDB_API_KEY" in done.stdout + done.stderr
