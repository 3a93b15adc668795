"""Healthy HDET jobs of two ranks for minutes each, on a machine that is too busy: none may freeze or raise an alarm.

Run it:  make hdet-jobs ARGS="--jobs 20 --minutes 10 --at-once 8 --spinners 4"   (any Python that has torch will do)

A job makes many runs, each with a schedule and a watch of its own, while its threads collect garbage all the time:
in such a job, reading other threads' frames once froze a rank for good (python/cpython#106883). Each job ends with a
rank that really freezes (SIGSTOP), which the other one must name.
"""

import argparse
import faulthandler
import gc
import itertools
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from time import monotonic

RANKS, RUN_STEPS, FREEZES_AT = 2, 400, 50
STILL_S = 120.0
"""A job that takes no step for this long has frozen; the watch's own bound is far lower."""
START_S = 600.0
"""The time allowed for imports and the first steps, with forty processes on two cores."""
FOUND_S = 180.0


def train(rank: int, port: int, folder: Path, minutes: float, timeout_s: float) -> None:
    """A rank: runs until its time is over, then once more, in which rank 1 freezes."""
    import torch
    import torch.distributed as dist
    from ranks_tasks import loss_on, network, samples
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import SGD

    from headrace_torch.hdet import OneCycleAutoLR

    faulthandler.register(signal.SIGUSR2, all_threads=True)
    gc.set_threshold(20, 2, 2)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(minutes=30),
    )
    until, steps = monotonic() + 60 * minutes, 0
    for run in itertools.count():
        last = torch.tensor([float(monotonic() > until)])
        dist.broadcast(last, 0)
        freezes = bool(last.item())
        model = DistributedDataParallel(network(run))
        optimizer = SGD(model.parameters(), lr=0.1)
        schedule = OneCycleAutoLR(
            optimizer,
            0.1,
            RUN_STEPS,
            cycle_momentum=False,
            ensemble_lr_spread_ratio=0.1,
            model_sync_interval=5,
            timeout_s=timeout_s,
        )
        for number in range(1, RUN_STEPS + 1):
            if freezes and number == FREEZES_AT:
                (folder / f"{rank}.froze").touch()
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGSTOP)
            loss = loss_on(model, samples(number, rank))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step(loss)
            steps += 1
            for _ in range(10):
                cycle: list[object] = []
                cycle.append(cycle)
            if number % 20 == 0:
                (folder / f"{rank}.steps").write_text(f"{steps} {run}")


class Job:
    """Two processes and their outcome."""

    def __init__(self, number: int, minutes: float, timeout_s: float) -> None:
        from headrace.ports import any_port

        self.number = number
        self._folder = tempfile.TemporaryDirectory(prefix="hdet-job-")
        self.folder = Path(self._folder.name)
        self._moved_at, self._seen, self._froze_at = monotonic(), "", 0.0
        port = any_port()
        self.ranks = [self._start(rank, port, minutes, timeout_s) for rank in range(RANKS)]
        self.outcome: str | None = None

    def _start(self, rank: int, port: int, minutes: float, timeout_s: float) -> subprocess.Popen[bytes]:
        words = ["--rank", str(rank), "--port", str(port), "--folder", str(self.folder)]
        words += ["--minutes", str(minutes), "--timeout-s", str(timeout_s)]
        with (self.folder / f"{rank}.log").open("wb") as said:
            return subprocess.Popen([sys.executable, __file__, *words], stderr=said)

    def look(self) -> None:
        """Check the job; sets `outcome` when it has ended."""
        now = monotonic()
        if all((self.folder / f"{rank}.froze").exists() for rank in range(RANKS)):
            self._froze_at = self._froze_at or now
            if self.ranks[0].poll() is not None:
                named = "Rank 1 does not answer" in self._said(0)
                self._end("fine" if named else f"the frozen rank was not named: {self._said(0)[-600:]}")
            elif now > self._froze_at + FOUND_S:
                self._end(f"the frozen rank was not found in {FOUND_S:g} s")
            return
        ended = [rank for rank in range(RANKS) if self.ranks[rank].poll() is not None]
        if ended:
            status = self.ranks[ended[0]].returncode
            self._end(f"FALSE ALARM: rank {ended[0]} ended with {status}: {self._said(ended[0])[-2000:]}")
            return
        steps = self.steps()
        if steps != self._seen:
            self._seen, self._moved_at = steps, now
        elif now > self._moved_at + (STILL_S if steps else START_S):
            for rank in self.ranks:
                rank.send_signal(signal.SIGUSR2)
            time.sleep(2)  # for the ranks to write their stacks
            self._end(f"FROZE after {steps}: {self._said(0)[-2000:]} {self._said(1)[-2000:]}")

    def steps(self) -> str:
        """How far its ranks have come."""
        paths = [self.folder / f"{rank}.steps" for rank in range(RANKS)]
        return ", ".join(path.read_text() for path in paths if path.exists())

    def _said(self, rank: int) -> str:
        return (self.folder / f"{rank}.log").read_text()

    def _end(self, outcome: str) -> None:
        steps = self.steps().split(",")[0].split()
        self.outcome = outcome
        took, runs = (steps[0], int(steps[1]) + 1) if len(steps) > 1 else ("0", 0)
        found = f", found after {monotonic() - self._froze_at:.0f} s" if outcome == "fine" else ""
        load = os.getloadavg()[0]
        print(
            f"job {self.number}: {outcome}; {took} steps in {runs} runs{found}; load {load:.0f}", flush=True
        )
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self._folder.cleanup()


def main() -> int:
    """Run the jobs, and count the unhealthy ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long a job trains")
    parser.add_argument("--at-once", type=int, default=8, help="jobs beside each other, two processes each")
    parser.add_argument(
        "--spinners", type=int, default=4, help="processes that only compute, to keep the load up"
    )
    parser.add_argument("--timeout-s", type=float, default=20.0, help="the watch's own bound")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        train(given.rank, given.port, given.folder, given.minutes, given.timeout_s)
        return 0
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.spinners)]
    running: list[Job] = []
    over: list[Job] = []
    try:
        while len(over) < given.jobs:
            while len(running) < given.at_once and len(running) + len(over) < given.jobs:
                running.append(Job(len(running) + len(over), given.minutes, given.timeout_s))
            time.sleep(1)  # between checks of jobs that last minutes
            for job in running:
                job.look()
            over += [job for job in running if job.outcome is not None]
            running = [job for job in running if job.outcome is None]
    finally:
        for process in [*spinners, *(rank for job in running for rank in job.ranks)]:
            process.kill()
    bad = sum(job.outcome != "fine" for job in over)
    print(f"Python {platform.python_version()}: {len(over)} jobs of {given.minutes:g} min, {bad} not fine")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
