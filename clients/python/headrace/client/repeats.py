"""Warnings before a study is created or extended that has more trials than different configurations (decision
0141).
"""

from headrace.client.wording import plural
from headrace.spec import StudySpec
from headrace.spec.repeats import repeats


def creation_warnings(spec: StudySpec) -> list[str]:
    """Warnings before a study is created; empty if there are none. Raises nothing."""
    found = repeats(spec)
    if found is None:
        return []
    repeated = plural(found.trials - found.distinct, "trial")
    message = (
        f"The space has {plural(found.points, 'point')} and the study {plural(found.trials, 'trial')}: once every "
        f"point has been tried, {repeated} will repeat one, which only shows how noisy results are. To try each point "
        f"once, set `trials: {found.distinct}`; to try more points, enlarge the space."
    )
    return [message]


def trials_warnings(spec: StudySpec, further: int) -> list[str]:
    """Warnings before the study gets `further` trials; empty if there are none. Raises nothing."""
    found = repeats(spec, further)
    if found is None:
        return []
    untried = max(0, found.distinct - spec.max_trials)
    repeated = further - untried
    remedy = f", or extend by at most {plural(untried, 'trial')}" if untried else ""
    message = (
        f"The space has {plural(found.points, 'point')} and the study would have {plural(found.trials, 'trial')}: of "
        f"the {plural(further, 'trial')} added, {repeated} will repeat a point, which only shows how noisy "
        f"results are. To try other points, create a study with a larger space{remedy}."
    )
    return [message]
