"""The same job with Optuna, Headrace and Ray Tune, two trials at a time, in alternating turns.

48 configurations of a small PyTorch network on scikit-learn's digits; an epoch takes one core about 50 ms. All draw
at random from the same space and halve successively at 1, 3, 9 and 27 epochs: Optuna and Ray Tune stop trials for
good, Headrace pauses and promotes them by default (`--variant stopping` for all alike). Each turn has another seed,
and gives it to each side. The sides:

- `optuna`: two processes, each with `study.optimize`, on a Postgres that runs already;
- `fresh`, `reuse`, `fused`: `headrace run` on a service that runs already (`headrace up`, two slots), with a process
  for each attempt, with `trial: {reuse: true}`, and with up to 16 trials in a process;
- `fresh, local`, `reuse, local`, `fused, local`: the same with `headrace run --local`, which starts Postgres, a
  scheduler and a worker, and stops them;
- `ray`, `ray, actors reused`: Ray Tune in its default, and with `reuse_actors=True`; both start Ray, and stop it.

Wall seconds are those from the command's start to its end, imports included. Processor seconds are those of all
processes: what the command starts (`spent.py`), and what the service or the Postgres that ran already did meanwhile.
The training function itself counts the epochs, and notes the lowest validation loss.

    python -m venv ../ray
    ../ray/bin/pip install 'ray[tune]' torch==2.13.0 scikit-learn        # 1.7 GB; the version of PyTorch used here
    python benchmarks/trial/same_job.py --turns 5 --ray-python ../ray/bin/python

Without `--ray-python`, Ray is left out. Prints the medians over the turns, the median of the turns' ratios to Optuna
with a 90 % bootstrap interval, and the processor seconds by component. Writes `same_job.json` into `--out` after each
turn.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from same_job_program import EPOCHS_FILE, LR, RUNGS, WEIGHT_DECAY
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
COMPARED = ("wall_s", "cpu_s", "cpu_s_per_epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a side gets."""

    configurations: int
    seed: int
    variant: str
    ray_python: Path | None
    folder: Path
    """Its own, empty."""

    @property
    def epochs(self) -> Path:
        """The file to which the training function writes."""
        return self.folder / "epochs"

    @property
    def log(self) -> Path:
        """What the commands print."""
        return self.folder / "log"

    def environ(self) -> dict[str, str]:
        """The environment of all commands."""
        return environ(**{EPOCHS_FILE: str(self.epochs), "HEADRACE_HOME": str(self.folder / "home")})

    def side(self, took: Spent, *, more: int = 0, **parts: float) -> Side:
        """The figures of the command, and of the parts that ran before it. Up to `more` additional configurations may
        have begun. Raises `RuntimeError` if this was not the job."""
        lines = [line.split() for line in self.epochs.read_text().splitlines()]
        begun = sum(epoch == "1" for epoch, _ in lines)
        if not self.configurations <= begun <= self.configurations + more:
            raise RuntimeError(f"{begun} configurations have begun, not {self.configurations}")
        cpu_s = took.cpu_s + sum(parts.values())
        return Side(
            figures={
                "wall_s": took.wall_s,
                "cpu_s": round(cpu_s, 3),
                "epochs": len(lines),
                "cpu_s_per_epoch": round(cpu_s / len(lines), 4),
                "best": min(float(loss) for _, loss in lines),
            },
            parts={"command": took.cpu_s, **{name: round(seconds, 2) for name, seconds in parts.items()}},
        )


# --- the sides ------------------------------------------------------------------------------------------------


def of_optuna(turn: Turn) -> Side:
    """Two processes on one study. Its tables and the study are there before the clock starts."""
    with database() as (url, server):
        optuna.create_study(study_name="same-job", storage=url, direction="minimize")
        before = spent_so_far(server)
        program = [
            sys.executable,
            str(HERE / "same_job_optuna.py"),
            url,
            "same-job",
            str(turn.configurations),
        ]
        both = together([[*program, str(2 * turn.seed + number)] for number in range(2)])
        took = spent(both, turn.environ(), turn.log)
        return turn.side(took, more=1, postgres=spent_so_far(server) - before)


def study_file(turn: Turn, how: str) -> Path:
    """Headrace's study. JSON is YAML."""
    module = "same_job_fused" if how == "fused" else "same_job_program"
    content = {
        "name": "same-job",
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "trial": {
            "callable": f"{module}:train",
            "working_dir": str(HERE),
            "env": {EPOCHS_FILE: str(turn.epochs)},
            **({"reuse": True} if how == "reuse" else {}),
        },
        "space": {
            name: {"type": "float", "low": low, "high": high, "log": True}
            for name, (low, high) in (("lr", LR), ("weight_decay", WEIGHT_DECAY))
        },
        **({"fuse": {"most": 16}} if how == "fused" else {}),
        "sampler": {"kind": "random"},
        "policy": {"kind": "asha", "variant": turn.variant, "eta": 3, "rungs": list(RUNGS)},
        "trials": turn.configurations,
        "seed": turn.seed,
        "resources": {"gpus": 0},
    }
    path = turn.folder / "study.yaml"
    path.write_text(json.dumps(content))
    return path


def of_headrace(turn: Turn, *, how: str) -> Side:
    """On a service that runs already."""
    run = [sys.executable, "-m", "headrace.cli", "run", str(study_file(turn, how))]
    with service(turn.folder / "home", turn.environ(), turn.log) as up:
        before = parts_of(up)
        took = spent(run, turn.environ(), turn.log)
        after = parts_of(up)
        return turn.side(took, **{name: seconds - before.get(name, 0.0) for name, seconds in after.items()})


def of_headrace_local(turn: Turn, *, how: str) -> Side:
    """With a service of its own."""
    run = [sys.executable, "-m", "headrace.cli", "run", str(study_file(turn, how))]
    return turn.side(spent([*run, "--local", "--slots", "2"], turn.environ(), turn.log))


def of_ray(turn: Turn, *, how: str) -> Side:
    """Ray Tune, in its own environment."""
    assert turn.ray_python is not None
    command = [str(turn.ray_python), str(HERE / "same_job_ray.py"), str(turn.folder / "ray")]
    variables = turn.environ()
    del variables["PYTHONPATH"]
    return turn.side(spent([*command, str(turn.configurations), str(turn.seed), how], variables, turn.log))


SIDES: dict[str, Callable[[Turn], Side]] = {
    "optuna": of_optuna,
    **{how: partial(of_headrace, how=how) for how in ("reuse", "fused", "fresh")},
    **{f"{how}, local": partial(of_headrace_local, how=how) for how in ("reuse", "fused", "fresh")},
    "ray": partial(of_ray, how=""),
    "ray, actors reused": partial(of_ray, how="reuse"),
}


def main() -> None:
    """Measures, prints, and writes the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--configurations", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1, help="of the first turn")
    parser.add_argument("--variant", choices=("promotion", "stopping"), default="promotion")
    parser.add_argument(
        "--ray-python", type=Path, help="the interpreter of Ray's environment; without it Ray is left out"
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE")
    parser.add_argument("--without-reuse", action="store_true", help="leave out the sides with `reuse`")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = [
        name
        for name in asked.sides
        if (asked.ray_python or not name.startswith("ray"))
        and not (asked.without_reuse and name.startswith("reuse"))
    ]
    turns: list[dict[str, Side]] = []
    for number in range(asked.turns):
        found = {}
        for name in in_turn(names, number):
            with tempfile.TemporaryDirectory(prefix="hr-same-job-") as folder:
                turn = Turn(
                    configurations=asked.configurations,
                    seed=asked.seed + number,
                    variant=asked.variant,
                    ray_python=asked.ray_python,
                    folder=Path(folder),
                )
                found[name] = SIDES[name](turn)
            print(json.dumps({"turn": number + 1, "side": name, **found[name]._asdict()}), flush=True)
        turns.append(found)
        rows, parts = table(turns, names, "optuna", COMPARED), median_parts(turns, names)
        write_record(
            asked.out / "same_job.json",
            configurations=asked.configurations,
            variant=asked.variant,
            table=rows,
            parts_cpu_s=parts,
            turns=[{name: side._asdict() for name, side in turn.items()} for turn in turns],
        )
    print_table(rows)
    print("processor seconds by component:", json.dumps(parts, indent=1))


if __name__ == "__main__":
    main()
