"""One of Optuna's processes in `same_job.py`.

python same_job_optuna.py STORAGE_URL STUDY CONFIGURATIONS SEED
"""

import sys

import optuna
from same_job_program import EPOCHS, LR, WEIGHT_DECAY, Training

HALVING = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
"""Its rungs are 1, 3, 9 and 27."""


def objective(trial: optuna.Trial) -> float:
    """Trains a configuration until its last epoch, or until it is pruned."""
    training = Training(
        lr=trial.suggest_float("lr", *LR, log=True),
        weight_decay=trial.suggest_float("weight_decay", *WEIGHT_DECAY, log=True),
        seed=trial.number,
    )
    loss = float("inf")
    for epoch in range(1, EPOCHS + 1):
        loss = training.epoch(epoch)
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


def main(url: str, name: str, configurations: str, seed: str) -> None:
    """Runs trials until the study has as many as it should, together with the other process."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.RandomSampler(seed=int(seed))
    study = optuna.load_study(study_name=name, storage=url, sampler=sampler, pruner=HALVING)
    # Counts trials that run, too: the study gets this number, or one more if both processes ask at once.
    enough = optuna.study.MaxTrialsCallback(int(configurations), states=None)
    study.optimize(objective, callbacks=[enough])


if __name__ == "__main__":
    main(*sys.argv[1:])
