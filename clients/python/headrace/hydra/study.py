"""The study file of a sweep: the program that Hydra started, once per trial, as a command line.

A trial is an ordinary run of the program. Its overrides put it into the sweep's folder, as a job of a multirun would
be, and install the callback that makes it a trial.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hydra._internal.utils import get_args
from hydra.core.override_parser.types import Quote, QuotedString

from headrace.errors import InvalidFieldError
from headrace.hydra.space import Sweep, escaped
from headrace.spec.names import STUDY
from headrace.spec.problems import Problem

CALLBACK: Final = "headrace.hydra.callback.JobIsTrial"
_NOT_FOR_TRIALS: Final = re.compile(
    r"[+~]*hydra\.((sweeper|launcher)\.|(mode|sweep\.dir|run\.dir|job\.num|job\.id)\b)"
)
"""Settings of Hydra that concern the sweep as a whole, or that each trial has its own of."""


@dataclass(frozen=True, slots=True)
class SweepStudy:
    """A study file as a mapping, and the overrides of its trials: arguments of a command template."""

    file: Mapping[str, Any]
    overrides: tuple[str, ...]


def study_of(
    sweep: Sweep,
    settings: Mapping[str, Any],
    *,
    program: Iterable[str],
    folder: Path,
    hydra_overrides: Iterable[str],
) -> SweepStudy:
    """The study of a sweep. `settings` has the keys of a study file, except for what the sweep itself says.

    A `space` in the settings adds parameters, such as those with conditions, which overrides cannot express. Raises
    `InvalidFieldError` if there is nothing to search over, or if settings and sweep say the same.
    """
    further, trial = dict(settings.get("space") or {}), dict(settings.get("trial") or {})
    if not (sweep.space or further):
        problems = [
            Problem(
                loc=("overrides",),
                value=" ".join(sweep.args),
                message="have nothing to search over",
                remedy="Write 'lr=tag(log,interval(1e-4,1e-1))', or optimizer=sgd,adam.",
            )
        ]
    else:
        problems = [
            *(_twice("space", name) for name in further if name in sweep.space),
            *(_twice("trial", key) for key in ("command", "callable") if key in trial),
        ]
    if problems:
        raise InvalidFieldError([problem.violation() for problem in problems])
    overrides = (*sweep.args, *(f"{name}={{{name}}}" for name in further))
    command = [
        *map(escaped, program),
        *overrides,
        *(escaped(one) for one in hydra_overrides if not _NOT_FOR_TRIALS.match(one)),
        "hydra.mode=RUN",
        escaped(f"hydra.sweep.dir={QuotedString(str(folder), Quote.single).with_quotes()}"),
        escaped("hydra.run.dir=${hydra.sweep.dir}/${hydra.sweep.subdir}"),
        "hydra.job.num={trial}",
        "hydra.job.id={trial}",
        f"++hydra.callbacks.headrace._target_={CALLBACK}",
    ]
    # Hydra prints errors and exits; with its full errors they reach the trial, which reports them.
    env = {"HYDRA_FULL_ERROR": "1", **(trial.get("env") or {})}
    file = {
        **settings,
        "trial": {"working_dir": str(Path.cwd()), **trial, "command": command, "env": env},
        "space": {**{name: dict(domain) for name, domain in sweep.space.items()}, **further},
    }
    return SweepStudy(file, overrides)


def program(python: str | None = None) -> list[str]:
    """The command that started this process, without its overrides: the interpreter, the script or module, and the
    options that say where the configuration is.
    """
    module = getattr(sys.modules["__main__"], "__spec__", None)
    what = [sys.argv[0]] if module is None else ["-m", module.name.removesuffix(".__main__")]
    given = vars(get_args(sys.argv[1:]))
    places = {
        f"--{name.replace('_', '-')}": given[name] for name in ("config_path", "config_name", "config_dir")
    }
    return [
        python or sys.executable,
        *what,
        *(f"{option}={place}" for option, place in places.items() if place is not None),
    ]


def study_name(job: str, time: str) -> str:
    """A name for a sweep of a job: `train-20261130-212233`."""
    name = re.sub(f"[^{STUDY.holds}]+", "-", job.lower()).strip("-") or "sweep"
    if not name[0].isalpha():
        name = f"sweep-{name}"
    return f"{name[: STUDY.longest - len(time) - 1].rstrip('-')}-{time}"


def _twice(*loc: str) -> Problem:
    message = (
        "is also an override" if loc[0] == "space" else "is the program that was started, with its overrides"
    )
    return Problem(loc=loc, message=message, remedy="Remove it from hydra.sweeper.study.")
