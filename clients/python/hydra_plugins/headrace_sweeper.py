"""The plugin that Hydra finds: `hydra/sweeper=headrace`.

Hydra imports it whenever a program starts, so it imports the rest when a sweep begins.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf


@dataclass
class HeadraceSweeperConf:
    """The settings `hydra.sweeper.…`: those of a study file that sweeps usually set, and `study` for the others."""

    _target_: str = "hydra_plugins.headrace_sweeper.HeadraceSweeper"
    params: dict[str, Any] = field(default_factory=dict)  # the search space, in Hydra's notation
    name: str | None = None  # the study's name; None: the job's, with the time
    metric: str = "objective"
    goal: str = "minimize"
    trials: int = 20
    steps: int | None = None
    policy: Any = "auto"
    sampler: Any = "random"
    parallel: int = 0
    seed: int = 0
    study: dict[str, Any] = field(default_factory=dict)  # any other key of a study file
    python: str | None = None  # the interpreter on the workers; None: this one


ConfigStore.instance().store(
    group="hydra/sweeper", name="headrace", node=HeadraceSweeperConf, provider="headrace"
)


class HeadraceSweeper(Sweeper):
    """Runs a multirun as a study of Headrace."""

    def __init__(
        self,
        *,
        params: DictConfig,
        metric: str,
        goal: str,
        study: DictConfig,
        python: str | None,
        **settings: Any,
    ) -> None:
        self._params = params
        self._python = python
        self._settings = {
            "objective": {"metric": metric, "goal": goal},
            **{key: _plain(value) for key, value in settings.items() if value is not None},
            **_plain(study),
        }

    def setup(self, *, hydra_context: HydraContext, config: DictConfig, **_: Any) -> None:
        """Keeps what the sweep needs. The task function runs in the trials."""
        self._loader = hydra_context.config_loader
        self._config = config

    def sweep(self, arguments: list[str]) -> None:
        """Runs the study to its end. Overrides of the command line count over those of `params`."""
        from headrace.hydra.sweep import run_sweep

        lines = [*_lines(_plain(self._params)), *arguments]
        run_sweep(
            OverridesParser.create(config_loader=self._loader).parse_overrides(lines),
            self._config,
            self._settings,
            python=self._python,
            compose=lambda overrides: self._loader.load_sweep_config(self._config, overrides),
        )


def _lines(params: Mapping[str, Any], *outer: str) -> Iterator[str]:
    """The overrides of `params`, whose keys may be nested."""
    for key, value in params.items():
        if isinstance(value, Mapping):
            yield from _lines(value, *outer, key)
        else:
            yield f"{'.'.join((*outer, key))}={'null' if value is None else value}"


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
