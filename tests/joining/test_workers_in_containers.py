"""The workers of docker-compose.yml without an engine: its scripts, its options, and the rights that it gives.

    a scheduler with what `compose_init` has made → two workers by `compose_worker`, each with its container's rights
    → both are killed and started again → a trial tries what it must not reach

What an engine adds is missing: networks and images. `make test-compose` has them.
"""

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from joined_site import JoinedSite, until

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from other_user_site import IMPORTS, as_root, interpreter, of_a_container

from headrace.client.model import TrialState
from headrace_services.identity import join_tokens

pytestmark = [pytest.mark.full, as_root, pytest.mark.timeout(600)]
JOINS_S = 240.0
ROOT = Path(__file__).resolve().parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
    "services"
]
FOLDERS = [volume.partition(":")[0] for volume in SERVICES["init-secrets"]["volumes"]]
PATHS = os.pathsep.join((str(ROOT / "services"), IMPORTS))
TRIALS = pwd.getpwnam("nobody")
LOOKS = """
import json, os
def outcome(act):
    try:
        return repr(act())
    except OSError as error:
        return type(error).__name__
def opened(path):
    return lambda: open(path, "rb").read()
def train(t):
    places = json.loads(os.environ["PLACES"])
    files = [os.path.join(at, name) for place in places for at, _, names in os.walk(place) for name in names]
    worker = os.getppid()
    found = {path: outcome(opened(path)) for path in (*files, f"/proc/{worker}/environ")}
    found |= {place: outcome(lambda: os.listdir(place)) for place in places}
    found["told"] = {path: outcome(opened(path)) for path in json.loads(os.environ["TOLD"])}
    found["uids"] = sorted(set(os.getresuid()))
    found["environment"] = sorted(os.environ.values())
    for step in t.steps():
        print("LOOKED", json.dumps(found), flush=True)
        t.report(loss=1.0)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    path = Path(tempfile.mkdtemp(prefix="hr-composed-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Composed(JoinedSite):
    """The cluster, in a folder that replaces the volumes."""

    @property
    def run_folder(self) -> Path:
        return self.root / "run"

    @property
    def volume(self) -> Path:
        """The volume of the workers' homes."""
        return self.root / "volume"

    def environment(self, **variables: str) -> dict[str, str]:
        """The containers' environment."""
        return {
            "HEADRACE_HOME": str(self.volume),
            "HEADRACE_RUN": str(self.run_folder),
            "HEADRACE_DATABASE_URL": self.database_url,
            "HEADRACE_WORKERS": "2",
            "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": PATHS,
            **variables,
        }

    def init(self, step: str) -> None:
        """A step of `compose_init`."""
        command = ["sh", ROOT / "services/compose_init.sh", step]
        subprocess.run(command, env=self.environment(), check=True, capture_output=True)

    def start_container(self, name: str) -> "subprocess.Popen[bytes]":
        """A container of the service `worker`: its command line, its rights, and its user `trials`."""
        options = list(SERVICES["worker"]["command"])
        options[options.index("--scheduler") + 1] = f"tls://{self.users}"
        options[options.index("--tls-ca") + 1] = str(self.run_folder / "joining/ca.pem")
        command = [
            "sh",
            str(ROOT / "services/compose_worker.sh"),
            *options,
            "--cpu-slots",
            "1",
            "--stop-grace",
            "1",
        ]
        users = f'mount --bind {self.root / "passwd"} /etc/passwd && exec "$@"'
        inside = ["unshare", "--mount", "sh", "-c", users, "sh", *of_a_container(), *command]
        log = self.logs[name] = self.root / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(inside, stdout=out, stderr=out, env=self.environment())
        self.stack.callback(_end, process)
        return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


@pytest.fixture
def site(folder: Path, database_url: str) -> Iterator[Composed]:
    (folder / "bin").mkdir()
    for name, program in (("headrace", "-m headrace.cli"), ("python3", "")):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {interpreter()} {program} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    entry = f"trials:x:{TRIALS.pw_uid}:{TRIALS.pw_gid}::/:/bin/sh\n"
    (folder / "passwd").write_text(Path("/etc/passwd").read_text() + entry)
    with ExitStack() as stack:
        made = Composed(folder, folder / "run/authority/ca", database_url, stack)
        for name in FOLDERS:
            (made.run_folder / name).mkdir(parents=True, mode=0o700)
        made.run_folder.chmod(0o700)  # as in the worker's image
        made.volume.mkdir()
        made.init("secrets")
        made.init("token")
        made.start_scheduler()
        yield made
        for name in made.logs:
            print(name, made.log(name)[-3000:])


def tokens(site: Composed) -> dict[str, str]:
    """The remaining join tokens."""
    found = (site.run_folder / "joining").iterdir()
    return {path.name: path.read_text().strip() for path in found if path.name != "ca.pem"}


def test_workers_join_once_come_back_and_keep_their_secrets_from_trials(site: Composed) -> None:
    made = tokens(site)
    assert set(made) == {"compose", "compose-2"}
    started = [site.start_container(f"container-{number}") for number in (1, 2)]
    until(lambda: set(site.connected()) == {"compose", "compose-2"}, "both workers join", JOINS_S)
    assert tokens(site) == {}, "each token was used, and removed"
    site.init("token")
    assert tokens(site) == {}, "whoever has a certificate needs none"

    held = {path: path.read_bytes() for path in site.volume.glob("workers/*/credential.json")}
    assert len(held) == 2
    for process in started:
        process.kill()
        process.wait()
    started = [site.start_container(f"again-{number}") for number in (1, 2)]
    until(lambda: "session open" in site.log("again-1") + site.log("again-2"), "they come back", JOINS_S)
    until(
        lambda: set(site.connected()) == {"compose", "compose-2"},
        "both are there again, without tokens",
        JOINS_S,
    )
    assert {path: path.read_bytes() for path in held} == held

    found = looked(site)
    assert found.pop("uids") == [TRIALS.pw_uid]
    secrets = [*made.values(), *(json.loads(content)["key"] for content in held.values())]
    assert not [value for value in found.pop("environment") if any(secret in value for secret in secrets)]
    told = found.pop("told")
    assert len(told) > 15
    assert set(told.values()) == {"PermissionError"}
    assert {path for path, said in found.items() if said != "PermissionError"} <= own_of_a_trial(found)


def looked(site: Composed) -> dict[str, Any]:
    """What a trial can reach of everything that exists."""
    code = site.root / "code"
    code.mkdir()
    (code / "looks.py").write_text(LOOKS)
    files = [path for place in (site.run_folder, site.volume) for path in place.rglob("*") if path.is_file()]
    closed = [str(path) for path in files if "scratch" not in path.parts]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o022 for path in files} == {0}
    spec = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "template": {
            "callable": "looks:train",
            "working_dir": str(code),
            "python": interpreter(),
            "env": {
                "PLACES": json.dumps([str(site.run_folder), str(site.volume)]),
                "TOLD": json.dumps(closed),
                "PYTHONPATH": f"{code}{os.pathsep}{IMPORTS}",
            },
        },
        "max_trials": 1,
        "max_steps": 1,
    }
    with site.client as client:
        study = client.create_study("looks", spec)
        study.wait(timeout_s=120)
        (trial,) = study.trials()
        assert trial.state is TrialState.TERMINATED
        text = "".join(path.read_text() for path in site.volume.rglob("0.log"))
    return dict(json.loads(text.partition("LOOKED ")[2].splitlines()[0]))


def own_of_a_trial(found: dict[str, Any]) -> set[str]:
    """What a trial may read: its own folders in `scratch`."""
    return {path for path in found if "/scratch/" in path}


def test_an_init_that_runs_late_gives_a_worker_that_was_shut_out_another_token(site: Composed) -> None:
    first = site.start_container("first")
    until(lambda: "compose" in site.connected(), "the worker joins", JOINS_S)
    with site.client as client:
        from headrace.client import joining

        client.transport.run(joining.revoke_worker("compose"))
    until(lambda: "compose" not in site.connected(), "it is shut out")
    site.init("token")
    assert join_tokens.read(tokens(site)["compose"]) is not None
    first.kill()
    first.wait()
    site.start_container("second")
    until(lambda: "compose" in site.connected(), "it joins again", JOINS_S)
    assert "compose" not in tokens(site)
