"""Secrets of a worker and a scheduler, planted everywhere they may come from, and searched for from within trials.

Real processes: a scheduler with a password in its database URL on the command line, and a worker with a join token
on its command line and credentials of a store in its environment. Trials check their environment, the command
lines of every process, and everything that the cluster has logged. Some of them run in standby processes.
"""

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from joined_site import JoinedSite, joined_site, until
from sqlalchemy import make_url

from headrace import hidden
from headrace.hidden import hide_from_command_line

pytestmark = pytest.mark.timeout(180)
PLANTED = {
    "AWS_ACCESS_KEY_ID": "planted-access-key",
    "AWS_SECRET_ACCESS_KEY": "planted-secret-key",
    "AWS_SESSION_TOKEN": "planted-session",
    "HEADRACE_DATABASE_URL": "postgresql://planted-user:planted-password@db/headrace",
    "DATABASE_URL": "postgresql://planted-user:planted-password@db/other",
    "PGPASSWORD": "planted-password",
    "HEADRACE_TOKEN": "planted-users-token",
    "HEADRACE_JOIN_TOKEN": "planted-join-token",
    "AZURE_STORAGE_KEY": "planted-azure",
    "GOOGLE_APPLICATION_CREDENTIALS": "/planted/google.json",
    "WANDB_API_KEY": "planted-wandb",
    "HTTPS_PROXY": "http://planted-user:planted-password@proxy:1",
    "LC_PLANTED": "not a secret",
}
LOOKS = """
import json, os, time
def everywhere():
    found = {"environment": dict(os.environ)}
    with open("/proc/self/environ", "rb") as file:
        found["started with"] = file.read().decode(errors="replace")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found[f"command line of {pid}"] = file.read().decode(errors="replace")
        except OSError:
            pass
    return found
AT_IMPORT = everywhere()
def train(t):
    for step in t.steps():
        found = {"at import": AT_IMPORT, "in the trial": everywhere()}
        with open(f"{t.number}.new", "w") as file:
            json.dump(found, file)
        os.rename(f"{t.number}.new", f"{t.number}.json")
        print("looked", flush=True)
        t.report(loss=1.0)
        time.sleep(0.1)
"""


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[JoinedSite]:
    """The database accepts any password, because it requires none."""
    url = make_url(database_url).set(password="planted-password").render_as_string(hide_password=False)
    with joined_site(tmp_path, database_url, "--database-url", url) as started:
        yield started


@pytest.mark.full
def test_a_trial_finds_no_secret(site: JoinedSite) -> None:
    folder = site.root / "study"
    folder.mkdir()
    (folder / "looks.py").write_text(LOOKS)
    token = site.token()
    worker = site.start_worker("w", "--join", token, **PLANTED)
    until(lambda: "w" in site.connected(), "the worker connects")
    trials = 3
    spec = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "template": {"callable": "looks:train", "working_dir": str(folder), "env": {"GIVEN": "by the study"}},
        "max_trials": trials,
        "max_steps": 2,
    }
    with site.client as client:
        study = client.create_study("looks", spec)
        study.wait(timeout_s=120)
        assert study.status().counts.completed == trials
    seen = [(folder / f"{number}.json").read_text() for number in range(trials)]
    for text in seen:
        assert "planted-" not in text
        assert "/planted/" not in text
        assert token not in text
        assert token.split("_", 2)[2] not in text
        environment = json.loads(text)["in the trial"]["environment"]
        assert (environment["GIVEN"], environment["LC_PLANTED"]) == ("by the study", "not a secret")
        lines = json.loads(text)["in the trial"]
        assert f"command line of {worker.pid}" in lines, "the process list was there to be searched"
        assert "--join" in lines[f"command line of {worker.pid}"]
    logs = [path for path in site.root.rglob("*.log") if path.is_file()]
    assert any("looked" in path.read_text(errors="replace") for path in logs)
    for path in logs:
        said = path.read_text(errors="replace")
        assert "planted-" not in said, path
        assert token.split("_", 2)[2] not in said, path


def test_what_is_hidden_leaves_the_rest_of_the_command_line() -> None:
    program = (
        "import sys\nfrom headrace.hidden import hide_from_command_line as hide\n"
        "hide('s3cr3t', None, '')\nprint(open('/proc/self/cmdline').read().split(chr(0)))"
    )
    given = ["--url=x:s3cr3t@y", "s3cr3t", "--other", "s3cr3", "ü"]
    done = subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True, check=True)
    assert "'--url=x:xxxxxx@y', 'xxxxxx', '--other', 's3cr3', 'ü', '']" in done.stdout
    hide_from_command_line("nowhere on this command line")


def test_processes_of_one_user_cannot_read_a_closed_ones_environment() -> None:
    """Except for root, so the test uses two processes of another user."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        become = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    else:
        become = {}
    python = next(filter(partial(_runs, become), (sys.executable, "/usr/bin/python3")), "")
    if not python:
        pytest.skip("another user can run no Python here")
    source = Path(hidden.__file__).read_text()  # it needs only the standard library
    for close, reads in ((False, True), (True, False)):
        program = f"{source}\n{close} and close_to_others(); print('ready', flush=True); input()"
        process = subprocess.Popen(  # type: ignore[call-overload]
            [python, "-c", program], env={"S3CR3T": "planted"}, cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, **become,
        )  # fmt: skip
        try:
            assert process.stdout.readline() == b"ready\n"
            look = ["cat", f"/proc/{process.pid}/environ"]
            seen = subprocess.run(look, capture_output=True, check=False, **become)  # type: ignore[call-overload]
            assert (b"planted" in seen.stdout) is reads
        finally:
            process.kill()
            process.communicate()


def _runs(become: dict[str, object], python: str) -> bool:
    try:
        return not subprocess.run([python, "-c", ""], cwd="/", check=False, **become).returncode  # type: ignore[call-overload]
    except OSError:
        return False
