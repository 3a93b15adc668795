"""A sweeper for Hydra: `python train.py -m hydra/sweeper=headrace lr=interval(1e-4,1e-1)` runs as a study.

    from headrace.hydra import current

    @hydra.main(config_path="conf", config_name="config")
    def train(cfg):
        t = current(steps=cfg.epochs)
        for step in t.steps(): ...

`space` reads the overrides, `study` writes the study file that runs the same program once per trial, `sweep` runs it,
and `callback` makes each Hydra job a trial. The plugin that Hydra finds is `hydra_plugins.headrace_sweeper`.
"""

from headrace.client.missing import require

require("headrace.hydra", "hydra", "hydra")

from hydra.core.hydra_config import HydraConfig  # noqa: E402  # after the check

from headrace.trial import Trial, script  # noqa: E402  # after the check

__all__ = ["current"]

_job: object = None


def current(*, steps: int = 1, seed: int = 0) -> Trial:
    """The trial of this Hydra job. Outside a study it is a trial by hand, and each job of a plain multirun gets its
    own, although Hydra runs them in one process.

    `steps` and `seed` are those of a trial by hand. Raises `ValueError` outside a task function of Hydra.
    """
    global _job
    HydraConfig.get()  # raises an error outside a job
    if _job is not (job := HydraConfig.instance().cfg):
        script.leave_current()
        _job = job
    return script.current(steps=steps, seed=seed, argv=[])
