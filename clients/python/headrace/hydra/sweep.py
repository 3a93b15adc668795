"""Runs a sweep as a study: checks it, writes its files, and shows it with `headrace run` until it ends."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml
from hydra.core.override_parser.types import Override
from hydra.errors import CompactHydraException
from omegaconf import DictConfig, OmegaConf

from headrace.client import Client
from headrace.errors import HeadraceError, InvalidFieldError
from headrace.hydra.space import Sweep, sweep_of
from headrace.hydra.study import program, study_name, study_of
from headrace.spec.file import parse_study_text

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
    """Runs the sweep to its end, in the folder `hydra.sweep.dir`. Raises `SweepError` before anything is written if
    an override or a setting is invalid, and at the end if the study failed.
    """
    hydra = config.hydra
    folder = Path(hydra.sweep.dir).absolute()
    try:
        sweep = sweep_of(overrides)
        name = settings.get("name") or study_name(hydra.job.name, datetime.now(UTC).strftime("%Y%m%d-%H%M%S"))
        study = study_of(
            sweep,
            {**settings, "name": name},
            program=program(python),
            folder=folder,
            hydra_overrides=OmegaConf.to_container(hydra.overrides.hydra),  # type: ignore[arg-type]  # texts
        )
        text = yaml.safe_dump(study, sort_keys=False, width=120, allow_unicode=True)
        parse_study_text(text, folder=Path.cwd(), file=STUDY_FILE)
    except InvalidFieldError as error:
        raise SweepError(
            f"headrace: the sweep is invalid, and nothing was started.\n{error}\n"
            "Settings of the study are hydra.sweeper.NAME, as in hydra.sweeper.steps=27; those that the sweeper does "
            "not have are +hydra.sweeper.study.NAME."
        ) from None
    for one in islice(_configurations(sweep), _MOST_COMPOSED):
        compose(one)
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / "multirun.yaml")
    file = folder / STUDY_FILE
    file.write_text(text, encoding="utf-8")
    _run(file)
    _write_results(folder, name, sweep)


def _configurations(sweep: Sweep) -> Iterator[list[str]]:
    """Configurations in which each choice occurs: a misspelt one is then found before any trial runs it."""
    first = {name: _values(domain)[0] for name, domain in sweep.space.items()}
    yield sweep.overrides(first)
    for name, domain in sweep.space.items():
        for value in _values(domain)[1:]:
            yield sweep.overrides({**first, name: value})


def _values(domain: Mapping[str, Any]) -> Sequence[Any]:
    return domain["values"] if "values" in domain else (domain["low"],)


def _run(file: Path) -> None:
    """`headrace run`, whose exit status says how the study ended. It detaches at Ctrl-C, so this process waits for
    it.
    """
    process = subprocess.Popen([sys.executable, "-m", "headrace.cli", "run", str(file)])
    while True:
        try:
            status = process.wait()
            break
        except KeyboardInterrupt:
            continue
    if status == 1:
        raise SweepError(f"headrace: the study failed, or ended without a result: {file}")
    if status:
        sys.exit(status)


def _write_results(folder: Path, name: str, sweep: Sweep) -> None:
    """The best configuration, in the file that Hydra's sweepers leave."""
    try:
        with Client() as client:
            best = client.study(name).best()
    except HeadraceError as error:  # the study has its result; this file is a copy
        print(f"headrace: {RESULTS} was not written: {error}", file=sys.stderr)
        return
    if best is None:
        return
    result = {
        "name": "headrace",
        "study": name,
        "trial": best.number,
        "best_evaluated_params": {sweep.keys.get(key, key): value for key, value in best.params.items()},
        "best_evaluated_result": best.value,
    }
    partial = folder / f".{RESULTS}.partial"
    partial.write_text(yaml.safe_dump(result, sort_keys=False), encoding="utf-8")
    partial.replace(folder / RESULTS)
