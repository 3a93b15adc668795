"""A scheduler that requires certificates, a Slurm cluster, and `headrace launch slurm` between them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import SlurmCluster
from cluster_site import PROGRAMS
from joined_site import JoinedSite, joined_site, until

from headrace.client import Study
from headrace.launch.engine import Member, Stage
from headrace.launch.slurm import queue
from headrace.spec import StudySpec


@dataclass
class SlurmSite:
    """One launch."""

    root: Path
    headrace: JoinedSite
    slurm: SlurmCluster
    name: str = "workers"
    loops: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def template(self) -> Path:
        """A site's batch script: its jobs write what they say to one folder."""
        path = self.root / "site.sh"
        path.write_text(
            "#!/bin/bash\n"
            f"#SBATCH --output={self.root}/jobs/%A_%a.log\n"
            "#SBATCH --cpus-per-task=1\n"
            f"export TMPDIR={self.root}/tmp\n"
            "{{worker}}\n"
        )
        for folder in ("jobs", "tmp"):
            (self.root / folder).mkdir(exist_ok=True)
        return path

    @property
    def tokens(self) -> Path:
        """Where jobs ask for join tokens."""
        return self.root / "launch" / f"headrace-{self.name}"

    def loop(self, *options: str, most: int = 2) -> "subprocess.Popen[bytes]":
        """Starts a loop that takes a turn every second."""
        where = ("--address", f"tls://{self.headrace.users}", "launch", "slurm", "--max", str(most))
        process = self.headrace.run(
            f"loop-{len(self.loops)}",
            ("-m", "headrace.cli"),
            *(*where, "--name", self.name, "--cpu-slots", "1", "--interval", "1s"),
            *("--template", str(self.template), "--folder", str(self.root / "launch")),
            *("--store", (self.root / "store").as_uri(), "--idle-exit", "5s", *options),
            env={
                "HEADRACE_TLS_CA": str(self.headrace.ca / "ca.pem"),
                "HEADRACE_HOME": str(self.root / "home"),
                **self.slurm.environ,
            },
        )
        self.loops.append(process)
        return process

    def members(self) -> list[Member]:
        """The launch's jobs."""
        text = self.slurm.run("squeue", "--noheader", "--array", "-o", queue.FORMAT)
        return list(queue.members(text, self.name))

    def running(self) -> list[Member]:
        """Those that have started."""
        return [member for member in self.members() if member.stage is Stage.RUNNING]

    def study(self, name: str, *, step_s: float = 0.05, **changes: Any) -> Study:
        """A study of the chain program, which keeps a journal of every step."""
        journal = self.journal(name)
        journal.mkdir(parents=True)
        env = {"CHAIN_JOURNAL": str(journal), "CHAIN_STEP_S": str(step_s)}
        fields: dict[str, Any] = {
            "objective": {"metric": "score", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "sampler": {"kind": "random"},
            "policy": {"kind": "run_all"},
            "template": {"callable": "chain:train", "working_dir": str(PROGRAMS), "env": env},
            "max_trials": 2,
            "max_steps": 20,
            "max_retries": 0,
            **changes,
        }
        with self.headrace.client as client:
            return client.create_study(name, StudySpec.model_validate(fields))

    def journal(self, study: str) -> Path:
        """Where a study's trials record their steps."""
        return self.root / "journals" / study

    def said(self) -> str:
        """The loops' and the jobs' logs, for a failure."""
        files = [
            *self.root.glob("loop-*.log"),
            *self.root.glob("jobs/*.log"),
            *self.root.glob("joined/loop-*.log"),
        ]
        return "\n".join(f"--- {file.name}\n{file.read_text()[-3000:]}" for file in sorted(files))

    def until(self, condition: Any, what: str, within_s: float = 120.0) -> Any:
        """Polls until the condition holds."""
        try:
            return until(condition, what, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.slurm.run('squeue')}\n{self.said()}") from None

    def until_empty(self) -> None:
        """Waits until no job is left, and its worker's row is gone."""
        self.until(lambda: not self.members(), "all jobs end")

    def steps(self, study: str) -> dict[int, list[tuple[int, int]]]:
        """What the trials journaled: by trial, (attempt, step) in order of attempts."""
        found: dict[int, list[tuple[int, int]]] = {}
        for path in self.journal(study).glob("*.jsonl"):
            _, trial, attempt = path.stem.rsplit(".", 2)
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            found.setdefault(int(trial), []).extend((int(attempt), line["step"]) for line in lines)
        return {trial: sorted(steps) for trial, steps in found.items()}


@contextmanager
def slurm_site(root: Path, database_url: str, slurm: SlurmCluster) -> Iterator[SlurmSite]:
    """Everything that a test starts is ended afterwards, jobs included."""
    (root / "joined").mkdir()
    with joined_site(root / "joined", database_url) as headrace:
        site = SlurmSite(root, headrace, slurm)
        try:
            yield site
        finally:
            for process in site.loops:
                process.kill()
            slurm.run("scancel", "--user=root", "--signal=KILL", "--full", check=False)
            slurm.run("scancel", "--user=root", check=False)
            until(lambda: not slurm.run("squeue", "--noheader"), "the jobs are gone")
