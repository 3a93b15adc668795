"""Trials a second where a trial is short: Headrace with reused processes, Optuna, and `headrace.optimize`, in turns.

Two jobs, each with one report a trial: a random forest of scikit-learn, about 20 ms, and LightGBM, about 200 ms. All
draw at random (`--sampler tpe` for a model), and no trial is stopped. The sides:

- `optuna`: two processes, each with `study.optimize`, on a Postgres that runs already;
- `reuse`: `headrace run` with `trial: {reuse: true}` on a service that runs already, with two slots;
- `in process`: `headrace.optimize`, which is one process;
- `fresh`, on request (`--sides`): `headrace run` with a process for each trial.

`trials_per_s` is the rate between the end of the first trial and the end of the last one. `wall_s` is the whole
command's, imports included. `cpu_ms` is the processor time of all processes over the number of trials, imports and
daemons included, and `work_ms` that of the function alone.

LightGBM is in an environment of its own, which runs the trials of all sides:

    python -m venv ../lightgbm
    ../lightgbm/bin/pip install -e '.[services,worker]' scikit-learn lightgbm             # 0.5 GB
    python benchmarks/trial/short_trials.py --turns 5 --python ../lightgbm/bin/python

If the interpreter lacks LightGBM, that job is left out. Prints the medians over the turns, and the median of the
turns' ratios to Optuna with a 90 % bootstrap interval. Writes `short_trials.json` into `--out` after each turn.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from short_trials_program import JOBS, TRIALS_FILE
from spent import Spent, spent, spent_so_far
from turns import (
    Side,
    database,
    environ,
    in_turn,
    median_parts,
    parts_of,
    print_table,
    service,
    table,
    together,
)

import optuna  # isort: skip  (after `turns`, which finds the scheduler's benchmarks)
from benchmark_site import write_record  # isort: skip

HERE = Path(__file__).resolve().parent
PROGRAM = str(HERE / "short_trials_program.py")
COMPARED = ("trials_per_s", "wall_s", "cpu_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a side gets."""

    job: str
    trials: int
    sampler: str
    seed: int
    python: str
    folder: Path
    """Its own, empty."""

    @property
    def ends(self) -> Path:
        """The file to which each trial writes."""
        return self.folder / "ends"

    @property
    def log(self) -> Path:
        """What the commands print."""
        return self.folder / "log"

    def environ(self) -> dict[str, str]:
        """The environment of all commands."""
        return environ(**{TRIALS_FILE: str(self.ends), "HEADRACE_HOME": str(self.folder / "home")})

    def side(self, took: Spent, **parts: float) -> Side:
        """The figures of the command, and of the parts that ran before it. Raises `RuntimeError` if it ran another
        number of trials."""
        lines = [line.split() for line in self.ends.read_text().splitlines()]
        if len(lines) != self.trials:
            raise RuntimeError(f"{len(lines)} trials ended, not {self.trials}")
        ends = sorted(float(end) for end, _ in lines)
        return Side(
            figures={
                "trials_per_s": round((len(ends) - 1) / (ends[-1] - ends[0]), 3),
                "wall_s": took.wall_s,
                "cpu_ms": round((took.cpu_s + sum(parts.values())) / len(lines) * 1e3, 2),
                "work_ms": round(sum(float(seconds) for _, seconds in lines) / len(lines) * 1e3, 2),
            },
            parts={"command": took.cpu_s, **{name: round(seconds, 2) for name, seconds in parts.items()}},
        )


def of_optuna(turn: Turn) -> Side:
    """Two processes on one study. Its tables and the study are there before the clock starts."""
    with database() as (url, server):
        optuna.create_study(study_name="short", storage=url, direction="minimize")
        before = spent_so_far(server)
        program = [turn.python, PROGRAM, "optuna", turn.job, turn.sampler]
        each = [(2 * turn.seed + number, (turn.trials + number) // 2) for number in range(2)]
        both = together([[*program, str(seed), str(trials), url, "short"] for seed, trials in each])
        took = spent(both, turn.environ(), turn.log)
        return turn.side(took, postgres=spent_so_far(server) - before)


def of_headrace(turn: Turn, *, reuse: bool) -> Side:
    """On a service that runs already."""
    study = turn.folder / "study.yaml"
    content = {
        "name": "short",
        "objective": {"metric": "error", "goal": "minimize"},
        "trial": {
            "callable": f"short_trials_program:{turn.job}",
            "working_dir": str(HERE),
            "env": {TRIALS_FILE: str(turn.ends)},
            "python": turn.python,
            **({"reuse": True} if reuse else {}),
        },
        "space": JOBS[turn.job].space,
        "sampler": {"kind": turn.sampler},
        "policy": {"kind": "run_all"},
        "steps": 1,
        "trials": turn.trials,
        "seed": turn.seed,
        "resources": {"gpus": 0},
    }
    study.write_text(json.dumps(content))  # JSON is YAML
    with service(turn.folder / "home", turn.environ(), turn.log) as up:
        before = parts_of(up)
        took = spent([sys.executable, "-m", "headrace.cli", "run", str(study)], turn.environ(), turn.log)
        after = parts_of(up)
        return turn.side(took, **{name: seconds - before.get(name, 0.0) for name, seconds in after.items()})


def of_optimize(turn: Turn) -> Side:
    """All trials in one process."""
    command = [turn.python, PROGRAM, "in-process", turn.job, turn.sampler, str(turn.seed), str(turn.trials)]
    return turn.side(spent(command, turn.environ(), turn.log))


SIDES: dict[str, Callable[[Turn], Side]] = {
    "optuna": of_optuna,
    "reuse": partial(of_headrace, reuse=True),
    "in process": of_optimize,
    "fresh": partial(of_headrace, reuse=False),
}


def has_lightgbm(python: str) -> bool:
    """Whether an interpreter can import it."""
    return not subprocess.run([python, "-c", "import lightgbm"], capture_output=True).returncode


def main() -> None:
    """Measures, prints, and writes the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--trials", type=int, default=400, help="of the forest, in each turn")
    parser.add_argument("--boosting-trials", type=int, default=100)
    parser.add_argument("--sampler", choices=("random", "tpe"), default="random")
    parser.add_argument("--seed", type=int, default=1, help="of the first turn")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of all trials")
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=["optuna", "reuse", "in process"], metavar="SIDE"
    )
    parser.add_argument("--without-reuse", action="store_true", help="leave out the side `reuse`")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = [name for name in asked.sides if not (asked.without_reuse and name == "reuse")]
    sizes = {"forest": asked.trials, "boosting": asked.boosting_trials}
    if not has_lightgbm(asked.python):
        print(f"{asked.python} has no LightGBM: its job is left out", flush=True)
        del sizes["boosting"]
    turns: dict[str, list[dict[str, Side]]] = {job: [] for job in sizes}
    for number in range(asked.turns):
        for job, trials in sizes.items():
            found = {}
            for name in in_turn(names, number):
                with tempfile.TemporaryDirectory(prefix="hr-short-") as folder:
                    turn = Turn(
                        job=job,
                        trials=trials,
                        sampler=asked.sampler,
                        seed=asked.seed + number,
                        python=asked.python,
                        folder=Path(folder),
                    )
                    found[name] = SIDES[name](turn)
                told = {"turn": number + 1, "job": job, "side": name, **found[name]._asdict()}
                print(json.dumps(told), flush=True)
            turns[job].append(found)
        results = {
            job: {
                "trials": sizes[job],
                "table": table(of, names, "optuna", COMPARED),
                "parts_cpu_s": median_parts(of, names),
                "turns": [{name: side._asdict() for name, side in turn.items()} for turn in of],
            }
            for job, of in turns.items()
        }
        write_record(asked.out / "short_trials.json", sampler=asked.sampler, jobs=results)
    for job, of in turns.items():
        print(f"\n{job}:")
        print_table(table(of, names, "optuna", COMPARED))
        print("processor seconds by component:", json.dumps(median_parts(of, names), indent=1))


if __name__ == "__main__":
    main()
