"""Choose the scale of a study's copies from the results of its pilot (`headrace.spec.pilot`).

It is the smallest copy that ranks the pilot's configurations as the model does: Kendall's τ is high enough, and
the best of the copy's first five is only a little worse on the model than the best of all. If no limit is given,
"a little" is a tenth of the distance between the model's best value and its median, which needs no unit.

A trial that failed, or has no value, ranks last. The same rows always give the same choice.
"""

import json
from collections.abc import Iterable, Mapping
from math import isfinite
from statistics import median

from headrace.spec import Pilot
from headrace.spec.pilot import SCALE
from headrace.spec.scalars import Value, value_to_json
from headrace_services.scheduler.core.scales import PilotTrial, ScaleChoice, ScaleTried
from headrace_torch.agreement import TOP, agreement, as_badness

SHARE = 0.1
"""The default limit of the regret, as a fraction of the distance between the model's best value and its median."""


class NoScaleError(Exception):
    """A pilot cannot choose a scale; the message says why, and what to do."""


def choose(pilot: Pilot, trials: Iterable[PilotTrial], *, study: str, maximize: bool) -> ScaleChoice:
    """The choice of a pilot that has ended; `study` is the pilot's name. Raises NoScaleError if there is none."""
    found: dict[int, dict[str, float | None]] = {}
    for trial in trials:
        of_scale = found.setdefault(int(trial.params.get(SCALE, 0)), {})
        of_scale[_without_scale(trial.params)] = trial.value
    model = found.get(1, {})
    target = list(model.values())
    badness = [bad for one in target if isfinite(bad := as_badness(one, maximize=maximize))]
    if len(badness) < 2:
        raise NoScaleError(
            f"the pilot '{study}' cannot choose a scale: {len(badness)} of its {len(target)} trials of the model "
            f"itself have a value (`headrace trials {study}`); fix what fails there, or name a scale, such as "
            "surrogate: {scale: 8}"
        )
    most = pilot.most_regret
    if most is None:
        most = SHARE * (median(badness) - min(badness))
    if not isfinite(most):
        raise NoScaleError(
            f"the values of the pilot '{study}' lie too far apart to be compared; fix what diverges there, "
            "or name a scale, such as surrogate: {scale: 8}"
        )
    tried = []
    for scale in pilot.candidates:
        values = [found.get(scale, {}).get(configuration) for configuration in model]
        known = agreement(values, target, maximize=maximize, ks=(TOP,))
        agrees = known.is_enough(least_kendall=pilot.least_kendall, most_regret=most)
        regret = known.regret[TOP]
        lost = regret if regret is not None and isfinite(regret) else None
        tried.append(ScaleTried(scale=scale, kendall=known.kendall, regret=lost, agrees=agrees))
    for one in tried:
        if one.agrees:
            return ScaleChoice(
                scale=one.scale,
                study=study,
                least_kendall=pilot.least_kendall,
                most_regret=most,
                tried=tuple(tried),
            )
    raise NoScaleError(
        f"no small copy ranks the configurations of the pilot '{study}' as the model does "
        f"({'; '.join(map(str, tried))}; asked for: τ of {pilot.least_kendall:g}, regret of {most:.4g} at most); "
        "let it train longer or try larger copies (surrogate: {pilot: {steps: ..., scales: [4, 2]}}), or name a scale: "
        "surrogate: {scale: 4}"
    )


def _without_scale(params: Mapping[str, Value]) -> str:
    rest = {name: value_to_json(value) for name, value in params.items() if name != SCALE}
    return json.dumps(rest, sort_keys=True)
