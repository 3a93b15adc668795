"""docker-compose.yml with a real engine: a study over TLS with the first token, kills of each container, open ports.

    python tests/compose/engine.py            (root, with Docker's engine and Compose; some ten minutes for the images)

It makes base images with `base_images.sh` if they do not exist, builds and starts the cluster under a project of its
own, and takes it down again. DOCKER_HOST and COMPOSE (`docker compose`, else `docker-compose`) say what is used.
Prometheus watches all of it. Grafana is started if GRAFANA_IMAGE names an existing image.
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "headrace-test"
KILLED = ("scheduler-1", "scheduler-2", "worker", "postgres", "planner")
OPEN = {7440, 7441, 7443, 7450}
GRAFANA = 3000
SCRAPED = {f"{name}:9464" for name in ("scheduler-1", "scheduler-2", "planner")}
WORKERS = {"compose", "compose-2"}
# What a trial tries, and must not get.
CLOSED = {
    "the join tokens": "os.listdir('/run/headrace/joining')",
    "the worker's key": "open('/var/lib/headrace/workers/compose/credential.json').read()",
    "the worker's environment": "open('/proc/1/environ').read()",
    "Postgres": "socket.create_connection(('postgres', 5432), 3)",
    "Prometheus": "socket.create_connection(('prometheus', 9090), 3)",
    "metrics": "urllib.request.urlopen('http://scheduler-1:9464/metrics', timeout=3)",
}
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
    """The command, according to what is installed."""
    if given := os.environ.get("COMPOSE"):
        return given.split()
    has_plugin = (
        subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    )
    return ["docker", "compose"] if has_plugin else ["docker-compose"]


class Cluster:
    """The containers, and a user next to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = [*compose(), "-p", PROJECT, "-f", str(ROOT / "docker-compose.yml")]
        self.env = {
            **os.environ,
            "PYTHON_IMAGE": "headrace-base/python",
            "BUILD_IMAGE": "headrace-base/python-build",
            "WORKER_REQUIREMENTS": "/hashes/worker.txt",
            "POSTGRES_IMAGE": "headrace-base/postgres",
            "PROMETHEUS_IMAGE": "headrace-base/prometheus",
        }
        self.has_plugin = "version 1." not in self.compose("version")
        image = os.environ.get("GRAFANA_IMAGE", "")
        shown = subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False)
        self.has_grafana = bool(image) and shown.returncode == 0

    def compose(self, *words: str) -> str:
        """One command of Compose."""
        done = subprocess.run(
            [*self.command, *words], env=self.env, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def container(self, service: str) -> str:
        """The id of a service's container, even if it has ended; the first one if there are several."""
        return self.compose("ps", "-a", "-q", service).split()[0]

    def inside(self, service: str, *words: str) -> str:
        """The output of a command in a service's container, or nothing if it fails."""
        command = ["docker", "exec", self.container(service), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def asked(self, path: str) -> Any:
        """Prometheus's answer to a scheduler's container: the worker's does not reach it."""
        url = f"http://prometheus:9090/api/v1/{path}"
        program = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=5).read().decode())"
        said = self.inside("scheduler-1", "python3", "-c", program)
        return json.loads(said)["data"] if said else {}

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


def until(what: str, holds: Callable[[], bool], *, deadline_s: float = 120.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"in vain waited for {what}")
        time.sleep(1)


def open_ports(host: str = "127.0.0.1") -> set[int]:
    """The open ports of an address: those between 7000 and 7999, the database's, and those of the monitoring."""
    found = set()
    for port in (*range(7000, 8000), 5432, 9464, 9090, GRAFANA):
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex((host, port)) == 0:
                found.add(port)
    return found


def serves(port: int, name: str, authority: Path) -> bool:
    """Whether a server has a certificate of the authority for this name."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            ssl.create_default_context(cafile=str(authority)).wrap_socket(plain, server_hostname=name).close()
    except OSError:
        return False
    return True


def other_address() -> str:
    """An address by which others reach this machine; it need not lead anywhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def main() -> None:
    """Run everything."""
    subprocess.run([str(ROOT / "tests/compose/base_images.sh")], check=True)
    before = {host: open_ports(host) for host in ("127.0.0.1", other_address())}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = Cluster(folder)
        try:
            play(cluster, before)
        except SystemExit:
            print(cluster.compose("ps", "-a"))
            print(cluster.compose("logs", "--tail", "25")[-9000:])
            raise
        finally:
            cluster.compose("--profile", "monitoring", "down", "--volumes", "--timeout", "5")


def start(cluster: Cluster) -> None:
    """Start it as the head of docker-compose.yml describes, and log in with the token on the volume."""
    watchers = ["prometheus", *(["grafana"] if cluster.has_grafana else [])]
    if cluster.has_plugin:
        cluster.compose("up", "--detach", "--build", "--wait")
        cluster.compose("cp", "init-token:/run/headrace/access/.", str(cluster.folder / "access"))
    else:  # Compose 1 neither waits nor copies
        cluster.compose("up", "--detach", "--build")
        source = f"{cluster.container('init-token')}:/run/headrace/access/."
        subprocess.run(["docker", "cp", source, str(cluster.folder / "access")], check=True)
        until("the schedulers", lambda: open_ports() >= OPEN)
    say("up")
    cluster.compose("--profile", "monitoring", "up", "--detach", *watchers)
    token = (cluster.folder / "access/token").read_text()
    address = "tls://127.0.0.1:7440,127.0.0.1:7441"
    said = cluster.headrace("--address", address, "login", "--tls-ca", "access/ca.pem", stdin=token)
    say(said.strip().splitlines()[0])
    until("the worker to join", lambda: connected(cluster) == {"compose"})
    say("the worker has joined with a certificate")
    cluster.compose("up", "--detach", "--scale", "worker=2", "worker")
    until("a second worker to join", lambda: connected(cluster) == WORKERS)
    cluster.compose("restart", "worker")
    until("both to come back by their certificates", lambda: connected(cluster) == WORKERS)
    say("two workers have names of their own, also after a restart")
    left = cluster.inside("worker", "ls", "/run/headrace/joining").split()
    if WORKERS & set(left):
        sys.exit(f"tokens are left that were used: {left}")


def connected(cluster: Cluster) -> set[str]:
    """The connected workers."""
    listed = json.loads(cluster.headrace("workers", "--json"))
    workers = listed["workers"] if isinstance(listed, dict) else listed
    return {worker["name"] for worker in workers if worker["connected"]}


def look_as_a_trial(cluster: Cluster) -> None:
    """Check what a trial's user can reach from within the worker's container."""
    for what, tries in CLOSED.items():
        program = f"import os, socket, urllib.request; {tries}; print('reached')"
        command = [
            "docker",
            "exec",
            "--user",
            "trials",
            cluster.container("worker"),
            "python3",
            "-c",
            program,
        ]
        if "reached" in subprocess.run(command, capture_output=True, text=True, check=False).stdout:
            sys.exit(f"a trial reaches {what}")
    say(f"a trial reaches none of: {', '.join(CLOSED)}")


def all_scraped(cluster: Cluster) -> bool:
    """Whether Prometheus reaches each process."""
    targets = cluster.asked("targets").get("activeTargets", [])
    return {one["scrapeUrl"].split("/")[2] for one in targets if one["health"] == "up"} == SCRAPED


def look_at_prometheus(cluster: Cluster) -> None:
    """Check that everything is scraped and counted, and that the rules exist."""
    until("all to be scraped", lambda: all_scraped(cluster))
    say(f"scraped: {', '.join(sorted(SCRAPED))}")
    rules = [rule["name"] for group in cluster.asked("rules")["groups"] for rule in group["rules"]]
    say(f"{len(rules)} alert rules, the first {rules[0]}")

    def counted() -> bool:
        found = cluster.asked("query?query=sum(headrace_workers_connected)").get("result", [])
        return bool(found) and found[0]["value"][1] == str(len(WORKERS))

    until("the workers to be counted", counted)


def play(cluster: Cluster, before: dict[str, set[int]]) -> None:
    """Start, run a study, kill, check ports and images."""
    folder = cluster.folder
    start(cluster)
    look_at_prometheus(cluster)
    look_as_a_trial(cluster)
    for host, meant in ((host, OPEN if host == "127.0.0.1" else set()) for host in before):
        ports = open_ports(host) - before[host]
        say(f"open ports of {'this machine' if meant else 'its other address'}: {sorted(ports) or 'none'}")
        if ports != (meant | {GRAFANA} if meant and cluster.has_grafana else meant):
            sys.exit(f"other ports are open than {sorted(meant)}")
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
    until("the study", lambda: state(cluster) != "active", deadline_s=300)
    trials = json.loads(cluster.headrace("trials", "killed", "--json"))
    listed = trials["trials"] if isinstance(trials, dict) else trials
    failed = [one for one in listed if one.get("reason") == "failed" or one.get("failures")]
    say(f"the study is {state(cluster)}: {len(listed)} trials, {len(failed)} with failures")
    if state(cluster) != "completed" or len(listed) != 16 or failed:
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
        service: cluster.inside(service, "id", "-u")
        for service in ("scheduler-1", "worker", "planner", "prometheus")
    }
    say(f"users: {users}")
    if users.pop("worker") != "0" or {"0", ""} & set(users.values()):
        sys.exit("a service runs as another user than it should, or does not run")
    cluster.env["HEADRACE_HOSTS"] = "head.example.org"
    cluster.compose("up", "--detach")
    cluster.compose("restart", "scheduler-1")
    until(
        "a certificate for another name", lambda: serves(7440, "head.example.org", folder / "access/ca.pem")
    )
    say("a name that came later has a certificate")
    until("all to be scraped again", lambda: all_scraped(cluster))
    say("PASSED")


def state(cluster: Cluster) -> str:
    """The study's state."""
    return str(json.loads(cluster.headrace("show", "killed", "--json"))["state"])


if __name__ == "__main__":
    if shutil.which("docker") is None:
        sys.exit(
            "Docker's engine is not here: apt-get install docker.io docker-compose debootstrap, then start dockerd"
        )
    main()
