"""Optuna's importance of parameters: an adapter, not an evaluator.

PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023; with conditional parameters since Optuna 5) compares a
parameter's distribution over the best trials with its distribution over all. It is Optuna's default, and needs
neither a forest nor scikit-learn. The best are the best tenth, but at least five trials, as Optuna recommends.
"""

import sys
import warnings
from collections.abc import Sequence

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import StudyDirection
from optuna.trial import TrialState

from headrace.spec import StudySpec
from headrace_services.scheduler.samplers.dimensions import dimensions
from headrace_services.scheduler.samplers.history import Result
from headrace_services.scheduler.samplers.importance import Importance, Share, place_of, why_indistinct
from headrace_services.scheduler.samplers.trial_table import TrialTable, frozen

_BEST_SHARE = 0.1
_FEWEST_BEST = 5
_WORST = sys.float_info.max / 2
"""Replaces a value that is not usable, because the evaluator leaves out values that are not finite."""


def importances(spec: StudySpec, level: int, results: Sequence[Result]) -> tuple[Importance, ...]:
    """The importance of each parameter for each objective, from results at one level."""
    return tuple(_importance(spec, level, results, place) for place in range(len(spec.objectives)))


def _importance(spec: StudySpec, level: int, results: Sequence[Result], objective: int) -> Importance:
    metric = spec.objectives[objective].metric
    reason = why_indistinct(spec, results, objective)
    shares: tuple[Share, ...] = ()
    if not reason:
        shares = _shares(spec, results, objective)
        reason = "" if shares else "no parameter tells the best trials from the others"
    return Importance(metric=metric, level=level, trials=len(results), shares=shares, reason=reason)


def _shares(spec: StudySpec, results: Sequence[Result], objective: int) -> tuple[Share, ...]:
    """The shares of the parameters; empty if all have the same distribution over the best trials as over all."""
    quantile = max(_BEST_SHARE, _FEWEST_BEST / len(results))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `why_indistinct` covers what these warn about: too few trials
        found = get_param_importances(
            _study(spec, results, objective),
            evaluator=PedAnovaImportanceEvaluator(target_quantile=quantile),
            normalize=False,
        )
    whole = sum(found.values())
    if not whole > 0:
        return ()
    shares = [
        Share(
            parameter=name,
            share=found.get(name, 0.0) / whole,
            trials=sum(name in result.params for result in results),
        )
        for name in spec.space
    ]
    return tuple(sorted(shares, key=lambda one: -one.share))


def _study(spec: StudySpec, results: Sequence[Result], objective: int) -> optuna.Study:
    """The results as an Optuna study of one objective, less being better."""
    table = TrialTable([StudyDirection.MINIMIZE])
    shown = dimensions(spec)
    for number, result in enumerate(results):
        place = place_of(spec, result, objective)
        values = [_WORST if place is None else min(max(place, -_WORST), _WORST)]
        table.append(frozen(number, TrialState.COMPLETE, values=values, params=result.params, shown=shown))
    table.show(None, [])
    return optuna.load_study(
        study_name=table.get_study_name_from_id(0),
        storage=table,
        sampler=optuna.samplers.RandomSampler(),
        pruner=optuna.pruners.NopPruner(),
    )
