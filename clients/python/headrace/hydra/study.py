"""The study file of a sweep: the program that Hydra started, once per trial, as a command line.

A trial is an ordinary run of the program. Its overrides put it into the sweep's folder, as a job of a multirun would
be, and install the callback that makes it a trial.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from hydra._internal.utils import get_args
from hydra.core.override_parser.types import Quote, QuotedString

from headrace.errors import InvalidFieldError
from headrace.hydra.space import Sweep, escaped
from headrace.spec.names import STUDY
from headrace.spec.problems import Problem

CALLBACK: Final = "headrace.hydra.callback.JobIsTrial"
_OF_THE_SWEEP: Final = re.compile(r"[+~]*hydra([./](sweeper|launcher|mode|sweep|run)\b|\.job\.(num|id)\b)")
"""Settings of Hydra that concern the sweep as a whole, or that every trial has its own of."""


def study_of(
    sweep: Sweep,
    settings: Mapping[str, Any],
    *,
    program: Iterable[str],
    folder: Path,
    hydra_overrides: Iterable[str],
) -> dict[str, Any]:
    """The study file, as a mapping. `settings` has the keys of a study file, except for what the sweep itself says.

    A `space` in the settings adds parameters, such as those with conditions, which overrides cannot express. Raises
    `InvalidFieldError` for a parameter that is in both.
    """
    further = dict(settings.get("space") or {})
    if both := further.keys() & sweep.space.keys():
        name = min(both)
        remedy = "Keep one of the two."
        raise InvalidFieldError(
            [Problem(loc=("space", name), message="is also an override", remedy=remedy).violation()]
        )
    trial = dict(settings.get("trial") or {})
    command = [
        *map(escaped, program),
        *sweep.arguments(),
        *(f"{name}={{{name}}}" for name in further),
        *(escaped(one) for one in hydra_overrides if not _OF_THE_SWEEP.match(one)),
        "hydra.mode=RUN",
        escaped(f"hydra.sweep.dir={QuotedString(str(folder), Quote.single).with_quotes()}"),
        escaped("hydra.run.dir=${hydra.sweep.dir}/${hydra.sweep.subdir}"),
        "hydra.job.num={trial}",
        "hydra.job.id={trial}",
        f"++hydra.callbacks.headrace._target_={CALLBACK}",
    ]
    # Hydra prints errors and exits; with its full errors they reach the trial, which reports them.
    env = {"HYDRA_FULL_ERROR": "1", **(trial.get("env") or {})}
    return {
        **settings,
        "trial": {"working_dir": str(Path.cwd()), **trial, "command": command, "env": env},
        "space": {**{name: dict(domain) for name, domain in sweep.space.items()}, **further},
    }


def program(python: str | None = None) -> list[str]:
    """The command that started this process, without its overrides: the interpreter, the script or module, and the
    options that say where the configuration is.
    """
    module = getattr(sys.modules["__main__"], "__spec__", None)
    if module is not None and module.name != "__main__":
        what = ["-m", module.name.removesuffix(".__main__")]
    else:
        what = [os.path.relpath(sys.argv[0]) if _is_below(Path(sys.argv[0]), Path.cwd()) else sys.argv[0]]
    given = get_args(sys.argv[1:])
    options = {
        "--config-path": given.config_path,
        "--config-name": given.config_name,
        "--config-dir": given.config_dir,
    }
    return [
        python or sys.executable,
        *what,
        *(f"{option}={value}" for option, value in options.items() if value is not None),
    ]


def study_name(job: str, time: str) -> str:
    """A name for a sweep of a job: `train-20261130-212233`."""
    name = re.sub(f"[^{STUDY.holds}]+", "-", job.lower()).strip("-") or "sweep"
    if not name[0].isalpha():
        name = f"sweep-{name}"
    return f"{name[: STUDY.longest - len(time) - 1].rstrip('-')}-{time}"


def _is_below(path: Path, folder: Path) -> bool:
    return path.absolute().is_relative_to(folder)
