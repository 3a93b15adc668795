"""A sweeper for Hydra: `python train.py -m hydra/sweeper=headrace lr=interval(1e-4,1e-1)` runs as a study.

    from headrace import hydra as headrace_hydra

    @hydra.main(config_path="conf", config_name="config")
    def train(cfg):
        t = headrace_hydra.current(steps=cfg.epochs)
        for step in t.steps(): ...

`space` reads the overrides, `study` writes the study file that runs the same program once per trial, `sweep` runs it,
and `callback` makes each Hydra job a trial. The plugin that Hydra finds is `hydra_plugins.headrace_sweeper`.
"""

from hydra.core.hydra_config import HydraConfig

from headrace.trial import Trial, script

__all__ = ["current"]

_folder: str | None = None


def current(*, steps: int = 1, seed: int = 0) -> Trial:
    """The trial of this Hydra job: the study's, or one by hand. Of the jobs that a multirun of Hydra's own runs in
    one process, each has its own.

    `steps` and `seed` apply by hand. Raises `ValueError` outside a task function of Hydra.
    """
    global _folder
    folder = str(HydraConfig.get().runtime.output_dir)
    if folder != _folder:
        script.leave_current()
        _folder = folder
    return script.current(steps=steps, seed=seed, argv=[])
