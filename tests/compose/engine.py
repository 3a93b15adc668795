"""docker-compose.yml with a real engine: a study over TLS with the first token, kills of each container, open ports.

    python tests/compose/engine.py            (root, with Docker's engine and Compose; some ten minutes for the images)

It makes base images by `base_images.sh` where they are not there, builds and starts the cluster under a project of its
own, and takes it down again. DOCKER_HOST and COMPOSE (`docker compose`, else `docker-compose`) say what is used.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "headrace-test"
KILLED = ("scheduler-1", "scheduler-2", "worker", "postgres", "planner")
OPEN = {7440, 7441, 7443}
TRIAL = """
import time

from headrace import trial


def train(t: trial.Trial) -> None:
    for step in t.steps():
        time.sleep(0.2)
        t.report(loss=1.0 / (step + 1) + t.params["x"])


if __name__ == "__main__":
    trial.main(train, defaults={"x": 0.5}, steps=25)
"""


def compose() -> list[str]:
    """The command, by what is installed."""
    if given := os.environ.get("COMPOSE"):
        return given.split()
    has_plugin = (
        subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    )
    return ["docker", "compose"] if has_plugin else ["docker-compose"]


class Cluster:
    """The containers, and a user beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = [*compose(), "-p", PROJECT, "-f", str(ROOT / "docker-compose.yml")]
        self.env = {
            **os.environ,
            "PYTHON_IMAGE": "headrace-base/python",
            "BUILD_IMAGE": "headrace-base/python-build",
            "POSTGRES_IMAGE": "headrace-base/postgres",
        }

    def compose(self, *words: str) -> str:
        """One command of Compose."""
        done = subprocess.run(
            [*self.command, *words], env=self.env, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def container(self, service: str) -> str:
        """The id of a service's container."""
        return self.compose("ps", "-q", service).strip()

    def headrace(self, *words: str, stdin: str = "") -> str:
        """A user's command, on the host."""
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            "HEADRACE_HOME": str(self.folder / "home"),
            "HEADRACE_TLS_CA": str(self.folder / "access/ca.pem"),
        }
        program = str(Path(sys.executable).with_name("headrace"))
        done = subprocess.run(
            [program, *words],
            env=env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            input=stdin,
        )
        if done.returncode:
            sys.exit(f"headrace {' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def open_ports() -> set[int]:
    """The ports of this machine between 7000 and 7999 and the database's that somebody listens on."""
    found = set()
    for port in (*range(7000, 8000), 5432, 9464):
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                found.add(port)
    return found


def main() -> None:
    """Play it."""
    subprocess.run([str(ROOT / "tests/compose/base_images.sh")], check=True)
    before = open_ports()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = Cluster(folder)
        try:
            play(cluster, before)
        except SystemExit:
            print(
                cluster.compose("ps", "-a") if compose() == ["docker", "compose"] else cluster.compose("ps")
            )
            print(cluster.compose("logs", "--tail", "25")[-9000:])
            raise
        finally:
            cluster.compose("down", "--volumes", "--timeout", "5")


def play(cluster: Cluster, before: set[int]) -> None:
    """Start, run a study, kill, look at ports and images."""
    folder = cluster.folder
    cluster.compose("up", "-d")
    say("up")
    (folder / "access").mkdir()
    deadline = time.monotonic() + 120
    while True:
        copied = subprocess.run(
            ["docker", "cp", f"{cluster.container('init-join')}:/run/headrace/access/.", str(folder / "access")],
            capture_output=True, check=False,
        )  # fmt: skip
        if copied.returncode == 0 and (folder / "access/token").exists():
            break
        if time.monotonic() > deadline:
            sys.exit(f"no token came: {copied.stderr.decode()}")
        time.sleep(1)
    token = (folder / "access/token").read_text()
    address = "tls://127.0.0.1:7440,127.0.0.1:7441"
    deadline = time.monotonic() + 60
    said = cluster.headrace("--address", address, "login", "--tls-ca", "access/ca.pem", stdin=token)
    say(said.strip().splitlines()[0])
    while "compose" not in cluster.headrace("workers"):
        if time.monotonic() > deadline:
            sys.exit("the worker did not join")
        time.sleep(1)
    say("the worker has joined with a certificate")
    ports = open_ports() - before
    say(f"open ports: {sorted(ports)}")
    if ports != OPEN:
        sys.exit(f"other ports are open than {sorted(OPEN)}")
    study = folder / "study"
    study.mkdir()
    (study / "train.py").write_text(TRIAL)
    spec = {
        "name": "killed",
        "objective": {"metric": "loss", "goal": "minimize"},
        "trial": {"command": ["python", "train.py"], "code": "ship"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "asha", "rungs": [5, 25]},
        "trials": 16,
        "resources": {"gpus": 0},
    }
    (study / "study.yaml").write_text(json.dumps(spec))
    cluster.headrace("run", "study/study.yaml", "--detach")
    say("a study runs; its folder was shipped")
    for service in KILLED:
        time.sleep(3)
        container = cluster.container(service)
        subprocess.run(["docker", "kill", container], check=True, capture_output=True)
        subprocess.run(["docker", "start", container], check=True, capture_output=True)
        say(f"{service} was killed and started")
    deadline = time.monotonic() + 300
    while True:
        shown = json.loads(cluster.headrace("show", "killed", "--json"))
        if shown["state"] != "active":
            break
        if time.monotonic() > deadline:
            sys.exit(f"the study does not end: {shown}")
        time.sleep(2)
    trials = json.loads(cluster.headrace("trials", "killed", "--json"))
    listed = trials["trials"] if isinstance(trials, dict) else trials
    failed = [one for one in listed if one.get("reason") == "failed" or one.get("failures")]
    say(f"the study is {shown['state']}: {len(listed)} trials, {len(failed)} with failures")
    if shown["state"] != "completed" or len(listed) != 16 or failed:
        sys.exit("something was lost, or charged")
    plan = cluster.headrace("plan", "llama3-8b", "h100-16", "--address", "tls://127.0.0.1:7443", "--json")
    say(f"a plan came over TLS with the token: {len(plan)} characters")
    images = subprocess.run(
        ["docker", "image", "ls", "--format", "{{.Repository}} {{.Size}}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    say("images: " + "; ".join(line for line in images.splitlines() if line.startswith("headrace-")))
    users = {
        service: subprocess.run(
            ["docker", "exec", cluster.container(service), "id", "-u"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
        for service in ("scheduler-1", "worker", "planner")
    }
    say(f"users: {users}")
    if "0" in users.values():
        sys.exit("a service runs as root")
    say("PASSED")


if __name__ == "__main__":
    if shutil.which("docker") is None:
        sys.exit(
            "Docker's engine is not here: apt-get install docker.io docker-compose debootstrap, then start dockerd"
        )
    main()
