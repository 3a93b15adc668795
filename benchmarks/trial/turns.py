"""What the comparisons in alternating turns share: the services that run already, the order, ratios, the table."""

import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scheduler"))

import psutil
import psycopg
from benchmark_site import postgres
from optuna_side import of_optuna
from spent import spent_so_far

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [str(ROOT / part) for part in ("clients/python", "services", "worker")]
READY_WITHIN_S = 120.0


class Side(NamedTuple):
    """One of the things compared, in one turn: figures by name, and processor seconds by component."""

    figures: dict[str, float]
    parts: dict[str, float]


def environ(**more: str) -> dict[str, str]:
    """This process's environment, one thread for each library, and this checkout's packages."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(PACKAGES), **more}


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The order of a turn, counted from 0: each turn begins with another one."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def together(commands: Sequence[Sequence[str]]) -> list[str]:
    """A command that runs others at the same time. It fails if one of them does."""
    starts = [f"{shlex.join(words)} & pids[{number}]=$!" for number, words in enumerate(commands)]
    waits = [f"wait ${{pids[{number}]}}" for number in range(len(commands))]
    return ["bash", "-c", "; ".join([*starts, " && ".join(waits)])]


# --- services that run before the clock starts ------------------------------------------------------------


@contextmanager
def database() -> Iterator[tuple[str, psutil.Process]]:
    """An empty database for Optuna on a Postgres of its own; yields its URL and the server's process."""
    with postgres() as url:
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
        assert row is not None
        yield of_optuna(url), psutil.Process(int(row[0].split()[0]))


@contextmanager
def service(home: Path, variables: Mapping[str, str], log: Path) -> Iterator[psutil.Process]:
    """`headrace up` with two slots; yields its process."""
    command = [sys.executable, "-m", "headrace.cli", "up", "--home", str(home), "--port", "0", "--slots", "2"]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=output)
    try:
        began = time.monotonic()
        while not (home / "address").exists():
            if process.poll() is not None or time.monotonic() - began > READY_WITHIN_S:
                raise RuntimeError(f"headrace up is not ready:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)  # before the clock starts
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def parts_of(up: psutil.Process) -> dict[str, float]:
    """The processor seconds so far of a service's components."""
    found = {"up": sum(up.cpu_times()[:2])}
    for child in up.children():
        words = child.cmdline()
        name = next((one for one in ("scheduler", "worker") if one in words), "postgres")
        found[name] = found.get(name, 0.0) + spent_so_far(child)
        if name == "worker":
            own = sum(child.cpu_times()[:2])
            found["trials"] = found["worker"] - own
            found["worker"] = own
    return found


# --- the comparison -----------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A 90 % bootstrap interval of the median."""
    chance = random.Random(1)
    medians = [median(chance.choices(values, k=len(values))) for _ in range(2000)]
    cuts = quantiles(medians, n=20)
    return cuts[0], cuts[-1]


def short(number: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"


def table(
    turns: Sequence[Mapping[str, Side]], names: Sequence[str], against: str, compared: Sequence[str]
) -> list[dict[str, str]]:
    """A row for each side: the median of each figure over the turns. The `compared` ones have the median of the turns'
    ratios to the side `against`, with its interval, if that side ran."""
    rows = []
    for name in names:
        row = {"": name}
        for figure in turns[0][name].figures:
            values = [turn[name].figures[figure] for turn in turns]
            row[figure] = short(median(values))
            if figure in compared and name != against and against in names:
                ratios = [turn[name].figures[figure] / turn[against].figures[figure] for turn in turns]
                low, high = interval(ratios)
                row[figure] += f"; × {short(median(ratios))} ({short(low)} to {short(high)})"
        rows.append(row)
    return rows


def print_table(rows: Sequence[Mapping[str, str]]) -> None:
    """Prints rows with equal keys as Markdown."""
    header = list(rows[0])
    print("|", " | ".join(header), "|")
    print("|", " | ".join("---" for _ in header), "|")
    for row in rows:
        print("|", " | ".join(row[key] for key in header), "|")


def median_parts(turns: Sequence[Mapping[str, Side]], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """The median processor seconds of each side's components."""
    return {
        name: {
            part: round(median(turn[name].parts.get(part, 0.0) for turn in turns), 2)
            for part in turns[0][name].parts
        }
        for name in names
        if turns[0][name].parts
    }
