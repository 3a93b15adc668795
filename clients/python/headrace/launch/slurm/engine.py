"""Runs Slurm's commands. Each has a time limit: a slurmctld that hangs holds up a turn, not the loop."""

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.launch.engine import EngineError, Member, Stage
from headrace.launch.slurm.queue import FORMAT, job_name, members
from headrace.launch.slurm.script import SIGNAL_S
from headrace.launch.slurm.tokens import TokenFolder

TIMEOUT_S: Final = 60.0
_LONGEST: Final = 500
"""How much of a command's message is shown."""
_SQUEUE: Final = ("squeue", "--noheader", "--array", "--all", "--states=all")
"""Without `--all`, it leaves out jobs in hidden partitions. A job that is not listed is submitted again."""
_DROPPED: Final = ("HEADRACE_", "SQUEUE_", "SCANCEL_", "SLURM_CLUSTERS", "SBATCH_CLUSTERS")
"""Variables that Slurm's commands do not get, by the beginnings of their names. sbatch passes its environment to the
job, and ours may hold an admin's token. The others filter what squeue lists and scancel cancels, or choose another
cluster for some of the commands."""


@dataclass(frozen=True, kw_only=True)
class SlurmEngine:
    """One launch in the Slurm cluster that sbatch and squeue reach from here."""

    name: str
    script: str
    tokens: TokenFolder | None = None
    time_limit_min: int | None = None
    """The time limit of each job; None: that of the template, or else of the partition."""
    timeout_s: float = TIMEOUT_S

    def members(self) -> Sequence[Member]:
        """The launch's jobs, oldest first."""
        text = self._run([*_SQUEUE, f"--user={os.geteuid()}", "-o", FORMAT])
        found = list(members(text, self.name))
        if self.tokens is None:
            return found
        awaiting = self.tokens.awaiting()
        return [
            replace(member, awaits_token=member.stage is Stage.RUNNING and member.worker in awaiting)
            for member in found
        ]

    def submit(self, seats: Collection[int]) -> None:
        """One sbatch for each seat."""
        for seat in sorted(seats):
            self._run(self._sbatch(seat), stdin=self.script)

    def withdraw(self, member: Member) -> None:
        """Holds the job, so that it cannot start any more, and cancels it if it has not and its seat is still
        taken.
        """
        try:
            if not member.held:
                self._run(["scontrol", "uhold", member.id])
            on_seat = [one for one in self.members() if one.seat == member.seat]
            now = next((one for one in on_seat if one.id == member.id), None)
            if now is not None:
                taken = any(one.id != member.id and not one.held for one in on_seat)
                pending = now.stage is Stage.PENDING
                # One that has started is released too: otherwise it would be held if it were requeued.
                self._run([*(["scancel"] if pending and taken else ["scontrol", "release"]), member.id])
        except EngineError:
            if any(one.id == member.id for one in self.members()):
                raise  # otherwise it has ended, or another loop has withdrawn it

    def deliver(self, member: Member, secret: str) -> bool:
        """Writes the token where the job waits for it."""
        if self.tokens is None:
            return False
        self.tokens.sweep()
        return self.tokens.deliver(member.worker, secret)

    def shown(self, seats: Collection[int]) -> str:
        """The commands, and the script that each of them reads."""
        commands = "\n".join(" ".join(self._sbatch(seat)) for seat in sorted(seats))
        return f"{commands}\n\n{self.script}" if commands else self.script

    def _sbatch(self, seat: int) -> list[str]:
        limit = [] if self.time_limit_min is None else [f"--time={self.time_limit_min}"]
        return [
            "sbatch",
            "--parsable",
            f"--job-name={job_name(self.name, seat)}",
            f"--array={seat}",
            "--dependency=singleton",
            f"--signal=B:TERM@{SIGNAL_S}",
            "--requeue",
            "--open-mode=append",
            *limit,
        ]

    def _run(self, command: list[str], *, stdin: str = "") -> str:
        try:
            done = subprocess.run(
                command,
                input=stdin,
                env=environment(os.environ),
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # names of jobs may hold any bytes
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"{command[0]} did not answer within {self.timeout_s:g} s.",
                remedy="The next turn shows whether it was carried out.",
            ) from None
        except OSError as error:
            raise EngineError(
                f"{command[0]} cannot be run: {error.strerror}.",
                remedy="Run this where Slurm's commands work, such as a login node.",
            ) from None
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:_LONGEST]
            raise EngineError(f"{command[0]} refused: {said or f'exit status {done.returncode}'}", remedy="")
        return done.stdout


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of Slurm's commands."""
    return {name: value for name, value in environ.items() if not name.startswith(_DROPPED)}
