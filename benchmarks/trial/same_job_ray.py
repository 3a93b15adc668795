"""Ray Tune's side of `same_job.py`, in an environment of its own.

    python same_job_ray.py FOLDER CONFIGURATIONS SEED [reuse]

Ray starts a process for each trial; with `reuse` a process runs several (`reuse_actors`).
"""

import os
import sys
from typing import Any

os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  (Ray's spelling; its default, 15, yields to any other program)
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent anywhere
os.environ["RAY_AUTH_MODE"] = "disabled"  # no token in the home folder

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator
from same_job_program import EPOCHS, LR, WEIGHT_DECAY, Training


def train(config: dict[str, Any]) -> None:
    """Trains a configuration until its last epoch, or until Ray ends it."""
    training = Training(lr=config["lr"], weight_decay=config["weight_decay"], seed=config["seed"])
    for epoch in range(1, EPOCHS + 1):
        tune.report({"val_loss": training.epoch(epoch)})


def main(folder: str, configurations: str, seed: str, how: str = "") -> None:
    """Runs the job, two trials at a time."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level="warning", _temp_dir=folder)
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={
            "lr": tune.loguniform(*LR),
            "weight_decay": tune.loguniform(*WEIGHT_DECAY),
            "seed": tune.randint(0, 2**31),
        },
        tune_config=tune.TuneConfig(
            metric="val_loss",
            mode="min",
            num_samples=int(configurations),
            reuse_actors=how == "reuse",
            search_alg=BasicVariantGenerator(random_state=int(seed)),
            scheduler=ASHAScheduler(
                time_attr="training_iteration", max_t=EPOCHS, grace_period=1, reduction_factor=3
            ),
        ),
        run_config=tune.RunConfig(storage_path=f"{folder}/results", name="same-job", verbose=0),
    )
    errors = tuner.fit().errors
    if errors:
        raise errors[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
