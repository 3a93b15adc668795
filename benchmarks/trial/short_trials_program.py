"""The two jobs of `short_trials.py`, as a trial of Headrace, with Optuna, and with `headrace.optimize`.

    python short_trials_program.py optuna JOB SAMPLER SEED TRIALS STORAGE_URL STUDY      (one of its processes)
    python short_trials_program.py in-process JOB SAMPLER SEED TRIALS

Each trial adds a line to the file that `SHORT_TRIALS` names: when it ended, and its processor seconds.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

if TYPE_CHECKING:
    from headrace.trial import Trial

TRIALS_FILE = "SHORT_TRIALS"
IMAGES, DIGITS = load_digits(return_X_y=True)
TRAIN, TEST = slice(600), slice(1200, None)

Params = Mapping[str, Any]


class Job(NamedTuple):
    """A function to minimize, and its space as in a study file."""

    error: Callable[[Params], float]
    space: dict[str, dict[str, Any]]


def forest_error(params: Params) -> float:
    """Seven trees on 600 images: about 20 ms."""
    model = RandomForestClassifier(
        7, max_depth=params["max_depth"], max_features=params["max_features"], random_state=0, n_jobs=1
    )
    model.fit(IMAGES[TRAIN], DIGITS[TRAIN])
    return 1 - float(model.score(IMAGES[TEST], DIGITS[TEST]))


def boosting_error(params: Params) -> float:
    """LightGBM, 60 rounds of ten trees on 600 images: about 200 ms."""
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(n_estimators=60, n_jobs=1, random_state=0, verbose=-1, **params)
    model.fit(IMAGES[TRAIN], DIGITS[TRAIN])
    return 1 - float((model.predict(IMAGES[TEST]) == DIGITS[TEST]).mean())


JOBS = {
    "forest": Job(
        forest_error,
        {
            "max_depth": {"type": "int", "low": 6, "high": 16},
            "max_features": {"type": "float", "low": 0.2, "high": 0.5},
        },
    ),
    "boosting": Job(
        boosting_error,
        {
            "learning_rate": {"type": "float", "low": 0.01, "high": 0.5, "log": True},
            "num_leaves": {"type": "int", "low": 8, "high": 24},
        },
    ),
}


def noted_error(job: str, params: Params) -> float:
    """The job's value; adds a line to the turn's file."""
    began = time.process_time()
    error = JOBS[job].error(params)
    with open(os.environ[TRIALS_FILE], "a") as file:  # noqa: PTH123  (as cheap as possible)
        file.write(f"{time.time()} {time.process_time() - began}\n")
    return error


def forest(t: "Trial") -> None:
    """A trial of Headrace."""
    for _step in t.steps():
        t.report(error=noted_error("forest", t.params))


def boosting(t: "Trial") -> None:
    """A trial of Headrace."""
    for _step in t.steps():
        t.report(error=noted_error("boosting", t.params))


def with_optuna(job: str, sampler: str, seed: int, trials: int, url: str, name: str) -> None:
    """Runs trials until the study has as many as it should, together with the other process."""
    import optuna

    def objective(trial: optuna.Trial) -> float:
        params: dict[str, Any] = {}
        for one, domain in JOBS[job].space.items():
            suggest = trial.suggest_int if domain["type"] == "int" else trial.suggest_float
            params[one] = suggest(one, domain["low"], domain["high"], log=domain.get("log", False))
        return noted_error(job, params)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
    study = optuna.load_study(study_name=name, storage=url, sampler=kinds[sampler](seed=seed))
    study.optimize(objective, n_trials=trials)


def in_process(job: str, sampler: str, seed: int, trials: int) -> None:
    """Runs all trials here."""
    from headrace import optimize

    functions = {"forest": forest, "boosting": boosting}
    optimize(
        functions[job], JOBS[job].space, trials=trials, minimize="error", sampler=sampler, seed=seed, steps=1
    )


def main(how: str, job: str, sampler: str, seed: str, trials: str, *where: str) -> None:
    """One of the two."""
    if how == "optuna":
        with_optuna(job, sampler, int(seed), int(trials), *where)
    else:
        in_process(job, sampler, int(seed), int(trials))


if __name__ == "__main__":
    main(*sys.argv[1:])
