"""Runs a sweep as a study: checks it, writes its files, and shows it with `headrace run` until it ends."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import yaml
from hydra.core.override_parser.types import Override
from hydra.errors import CompactHydraException
from omegaconf import DictConfig, OmegaConf

from headrace.client import Client
from headrace.errors import HeadraceError, InvalidFieldError, StudyNotFoundError
from headrace.hydra.space import Sweep, sweep_of
from headrace.hydra.study import SweepStudy, program, study_name, study_of
from headrace.spec import StudySpec
from headrace.spec.domains import CategoricalDomain
from headrace.spec.file import parse_study_text
from headrace.spec.space import draw
from headrace.spec.template import CommandLine

STUDY_FILE: Final = "study.yaml"
RESULTS: Final = "optimization_results.yaml"
_MOST_COMPOSED: Final = 200
"""How many configurations are composed before the study starts, at some 50 ms each."""


class SweepError(CompactHydraException):
    """Hydra prints its text alone."""


def run_sweep(
    overrides: Sequence[Override],
    config: DictConfig,
    settings: Mapping[str, Any],
    *,
    python: str | None,
    compose: Callable[[list[str]], object],
) -> None:
    """Runs the sweep to its end, in the folder `hydra.sweep.dir`.

    Raises `SweepError` before anything is written if an override or a setting is invalid, if no service answers, or
    if the study's name is taken. Exits as `headrace run` does if the study fails or is left.
    """
    hydra = config.hydra
    folder = Path(hydra.sweep.dir).absolute()
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    try:
        sweep = sweep_of(overrides)
        study = study_of(
            sweep,
            {"name": study_name(hydra.job.name, now), **settings},
            program=program(python),
            folder=folder,
            hydra_overrides=cast("list[str]", OmegaConf.to_container(hydra.overrides.hydra, resolve=False)),
        )
        text = yaml.safe_dump(study.file, sort_keys=False, width=120, allow_unicode=True)
        name, spec = parse_study_text(text, folder=Path.cwd(), file=STUDY_FILE)
    except InvalidFieldError as error:
        raise SweepError(
            f"headrace: the sweep is invalid, and nothing was started.\n{error}\n"
            "Settings of the study are hydra.sweeper.NAME, as in hydra.sweeper.steps=27; those that the sweeper does "
            "not have are +hydra.sweeper.study.NAME."
        ) from None
    for one in dict.fromkeys(map(tuple, islice(_configurations(study, spec), _MOST_COMPOSED))):
        compose(list(one))
    _require_free(name)
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / "multirun.yaml")
    (folder / RESULTS).unlink(missing_ok=True)
    (folder / STUDY_FILE).write_text(text, encoding="utf-8")
    _run(folder / STUDY_FILE)
    _write_results(folder / RESULTS, name, sweep)


def _configurations(study: SweepStudy, spec: StudySpec) -> Iterator[list[str]]:
    """The overrides of configurations in which each choice occurs: a misspelt one is then found before any trial
    runs it.
    """
    command = CommandLine(args=study.overrides)
    values = {
        name: domain.values if isinstance(domain, CategoricalDomain) else (domain.low,)
        for name, domain in spec.space.items()
    }
    first = {name: choices[0] for name, choices in values.items()}
    for name, choices in values.items():
        for value in choices:
            yield command.fill(_active(spec, first | {name: value}), trial=0, seed=0)


def _active(spec: StudySpec, values: Mapping[str, Any]) -> dict[str, Any]:
    return draw(spec.space, lambda name, _: values[name])


def _require_free(name: str) -> None:
    """Raises `SweepError` if no scheduler answers, or if it has a study of this name."""
    try:
        with Client() as client, suppress(StudyNotFoundError):
            client.study(name).status()
            raise SweepError(f"headrace: a study {name} exists already. Set another hydra.sweeper.name.")
    except HeadraceError as error:
        raise SweepError(f"headrace: {error}") from None


def _run(file: Path) -> None:
    """`headrace run`, which says how the study ended. It detaches at Ctrl-C, so this process waits for it."""
    process = subprocess.Popen([sys.executable, "-m", "headrace.cli", "run", str(file)])
    while True:
        with suppress(KeyboardInterrupt):
            status = process.wait()
            break
    if status:
        sys.exit(status)


def _write_results(file: Path, name: str, sweep: Sweep) -> None:
    """The best configuration, as Hydra's sweepers leave it. With several objectives there is none."""
    try:
        with Client() as client:
            best = client.study(name).status().best
    except HeadraceError as error:  # the study has its result, and `headrace best` shows it
        print(f"headrace: {file} is not written: {error}", file=sys.stderr)
        return
    if best is not None:
        result = {
            "name": "headrace",
            "study": name,
            "trial": best.number,
            "best_evaluated_params": {sweep.keys.get(key, key): value for key, value in best.params.items()},
            "best_evaluated_result": best.value,
        }
        file.write_text(yaml.safe_dump(result, sort_keys=False), encoding="utf-8")
