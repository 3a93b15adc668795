"""Other optimizers on a table, driven through their own interfaces.

Each receives the configuration of the row that is run. If a package registers a proposal as soon as it makes it,
the row's configuration replaces the proposal before that.
"""

import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import optuna
from table_runs import RANGES, Order, Table

from headrace_services.scheduler.samplers import Params

METRIC, RESOURCE = "value", "evaluation"
START = datetime(2000, 1, 1, tzinfo=UTC)


class OptunaTpe:
    """Optuna's TPE with its SuccessiveHalvingPruner, both with their defaults except for a reduction factor of 3."""

    def __init__(self, table: Table, seed: int) -> None:
        self._full = table.steps
        self._study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        )
        self._trials: list[optuna.Trial] = []

    def order(self) -> Order:
        trial = self._study.ask()
        self._trials.append(trial)
        params = {name: trial.suggest_float(name, *bounds, log=True) for name, bounds in RANGES.items()}
        return Order(params=dict(params))

    def added(self, trial: int, params: Params) -> None:
        asked = self._trials[trial]
        for name, (low, high) in RANGES.items():
            domain = optuna.distributions.FloatDistribution(low, high, log=True)
            self._study._storage.set_trial_param(asked._trial_id, name, float(params[name]), domain)

    def report(self, trial: int, step: int, value: float) -> bool:
        asked = self._trials[trial]
        if step == self._full:
            self._study.tell(asked, value)
            return False
        asked.report(value, step)
        if asked.should_prune():
            self._study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            return False
        return True


class _SyneTune:
    """A Syne Tune scheduler of the stopping variant."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._used = np.zeros(len(table.rows), dtype=bool)
        self._trials: list[Any] = []
        self._scheduler: Any = None
        self._trial: Any = None
        self._next: Params = {}

    def _snapped(self, config: Any) -> Any:
        """Replaces the proposal with the row's configuration."""
        if config is None:
            return None
        row = self._table.nearest(dict(config), self._used)
        self._used[row] = True
        self._next = self._table.rows[row]
        return dict(self._next)

    def added(self, trial: int, params: Params) -> None:
        assert params == self._next
        made = self._trial(trial_id=trial, config=dict(params), creation_time=START)
        self._trials.append(made)
        self._scheduler.on_trial_add(made)

    def report(self, trial: int, step: int, value: float) -> bool:
        said = {METRIC: value, RESOURCE: step}
        if step < self._table.steps:
            return bool(self._scheduler.on_trial_result(self._trials[trial], said) == "CONTINUE")
        self._ended(trial, said)
        return False

    def _ended(self, trial: int, said: dict[str, float]) -> None:
        self._scheduler.on_trial_complete(self._trials[trial], said)


class AshaBore(_SyneTune):
    """Syne Tune 0.16's ASHABORE."""

    def __init__(self, table: Table, seed: int) -> None:
        super().__init__(table)
        from syne_tune.backend.trial_status import Trial
        from syne_tune.config_space import loguniform
        from syne_tune.optimizer.baselines import ASHABORE

        np.random.seed(seed)
        space = {name: loguniform(*bounds) for name, bounds in RANGES.items()}
        self._trial = Trial
        self._scheduler = ASHABORE(
            space, metric=METRIC, time_attr=RESOURCE, max_t=table.steps, do_minimize=True, random_seed=seed
        )
        searcher = self._scheduler.searcher
        suggest = searcher.suggest
        searcher.suggest = lambda **asked: self._snapped(suggest(**asked))

    def order(self) -> Order:
        return Order(params=dict(self._scheduler.suggest().config))


class _Gp(_SyneTune):
    """Syne Tune 0.13's schedulers with Gaussian processes."""

    def __init__(self, table: Table, seed: int, kind: str) -> None:
        super().__init__(table)
        from syne_tune.backend.trial_status import Trial
        from syne_tune.config_space import loguniform
        from syne_tune.optimizer import baselines

        space = {name: loguniform(*bounds) for name, bounds in RANGES.items()}
        self._trial = Trial
        self._scheduler = getattr(baselines, kind)(
            space, metric=METRIC, resource_attr=RESOURCE, max_t=table.steps, mode="min", random_seed=seed,
            search_options={"debug_log": False},
        )  # fmt: skip
        searcher = self._scheduler.searcher
        get_config = searcher.get_config
        searcher.get_config = lambda **asked: self._snapped(get_config(**asked))

    def order(self) -> Order:
        return Order(params=dict(self._scheduler.suggest(len(self._trials)).config))

    def _ended(self, trial: int, said: dict[str, float]) -> None:
        self._scheduler.on_trial_result(self._trials[trial], said)
        super()._ended(trial, said)


class PriorBand:
    """NePS's PriorBand on asynchronous Hyperband, without a prior, because the others have none."""

    def __init__(self, table: Table, seed: int) -> None:
        import neps
        import torch

        np.random.seed(seed)
        torch.manual_seed(seed)
        domains: dict[str, Any] = {
            name: neps.HPOFloat(lower=low, upper=high, log=True) for name, (low, high) in RANGES.items()
        }
        domains[RESOURCE] = neps.HPOInteger(lower=1, upper=table.steps, is_fidelity=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._asked = neps.AskAndTell(
                neps.algorithms.priorband(neps.SearchSpace(domains), base="async_hb")
            )
        self._last: Any = None
        self._now: dict[int, Any] = {}
        """The requests of each training trial."""
        self._later: list[Any] = []
        """Requests to training trials: one configuration may be in two brackets."""
        self._trial_of: dict[str, int] = {}
        self._values: dict[int, list[float]] = {}

    def order(self) -> Order:
        for made in self._later:
            if self._trial_of[made.id] not in self._now:
                self._later.remove(made)
                if self._goes_on(made):
                    return Order(trial=self._trial_of[made.id])
                break
        while True:
            made = self._asked.ask()
            before = made.metadata.previous_trial_id
            if before is None:
                self._last = made
                return Order(params={name: float(made.config[name]) for name in RANGES})
            trial = self._trial_of[made.id] = self._trial_of[before]
            if trial in self._now:
                self._later.append(made)
            elif self._goes_on(made):
                return Order(trial=trial)

    def _goes_on(self, made: Any) -> bool:
        """Whether a trial must train for the request; otherwise it has already been that far, and the value is
        returned."""
        trial = self._trial_of[made.id]
        known, target = self._values[trial], made.config[RESOURCE]
        if target > len(known):
            self._now[trial] = made
            return True
        self._asked.tell(made, known[target - 1])
        return False

    def added(self, trial: int, params: Params) -> None:
        made = self._last
        made.config = {**made.config, **params}
        self._trial_of[made.id] = trial
        self._now[trial] = made
        self._values[trial] = []

    def report(self, trial: int, step: int, value: float) -> bool:
        made = self._now[trial]
        self._values[trial].append(value)
        if step < made.config[RESOURCE]:
            return True
        del self._now[trial]
        self._asked.tell(made, value)
        return False


def mobster(table: Table, seed: int) -> Any:
    """MOBSTER with its default model."""
    return _Gp(table, seed, "MOBSTER")


def hyper_tune(table: Table, seed: int) -> Any:
    """Hyper-Tune with its default model."""
    return _Gp(table, seed, "HyperTune")


PEERS: dict[str, Callable[[Table, int], Any]] = {
    "optuna tpe + sh": OptunaTpe,
    "syne_tune ashabore": AshaBore,
    "syne_tune mobster": mobster,
    "syne_tune hyper-tune": hyper_tune,
    "neps priorband": PriorBand,
}
