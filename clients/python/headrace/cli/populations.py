"""The schedule behind the best trial of a population: the values that its best state was trained with, in order.

The values of its best step are only the last ones of the schedule. A run that uses them from the start is a
different run.
"""

from collections.abc import Sequence

from headrace.cli import wording
from headrace.client import Client
from headrace.client.lineage import Stretch, schedule
from headrace.client.model import StudyInfo
from headrace.spec import PbtPolicy

SHOWN = 6
"""The most stretches that are shown: the last ones."""


def best_schedule(client: Client, study: StudyInfo) -> tuple[Stretch, ...]:
    """The schedule that led to the counted value of a population's best trial; empty if it was trained with the
    same values throughout.
    """
    best = study.leader
    if not isinstance(study.spec.policy, PbtPolicy) or study.spec.further_objectives or best is None:
        return ()
    trials = {trial.number: trial for trial in (*client.study(study.name).trials(), best)}
    found = schedule(trials, best.number, at=best.score_step)
    return tuple(found) if any(one.params != found[0].params for one in found) else ()


def schedule_lines(stretches: Sequence[Stretch], study: StudyInfo) -> list[tuple[str, str]]:
    """The schedule for people, as labels and texts; empty for an empty schedule."""
    if not stretches:
        return []
    said = "these are the values at the best step; earlier steps had others"
    if len(stretches) > SHOWN:
        said += f"; the last {SHOWN} of {len(stretches)} stretches (headrace lineage {study.name})"
    lines = [("schedule", said)]
    for one in stretches[-SHOWN:]:
        ordered = {name: one.params[name] for name in study.spec.space if name in one.params}
        lines.append(
            (f"  steps {one.start + 1} to {one.end}", f"trial {one.trial}: {wording.params(ordered)}")
        )
    return lines
