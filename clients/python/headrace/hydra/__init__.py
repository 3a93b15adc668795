"""A sweeper for Hydra: `python train.py -m hydra/sweeper=headrace lr=interval(1e-4,1e-1)` runs as a study.

`space` reads the overrides, `study` writes the study file that runs the same program once per trial, `sweep` runs it,
and `callback` makes each Hydra job a trial. The plugin that Hydra finds is `hydra_plugins.headrace_sweeper`.
"""
