"""Samplers by the kind that a spec names. A new one is its own file and one case in `make_sampler`."""

from typing import assert_never

from headrace.spec import GridSampler, StudySpec
from headrace.spec import RandomSampler as RandomSpec
from headrace_services.scheduler.samplers.grid import Grid
from headrace_services.scheduler.samplers.protocol import Params, Sampler
from headrace_services.scheduler.samplers.random import RandomSampler

__all__ = ["Params", "Sampler", "make_sampler"]


def make_sampler(spec: StudySpec) -> Sampler:
    """The sampler of a study."""
    match spec.sampler:
        case RandomSpec():
            return RandomSampler(spec)
        case GridSampler() as grid:
            return Grid(spec, grid)
        case never:
            assert_never(never)
