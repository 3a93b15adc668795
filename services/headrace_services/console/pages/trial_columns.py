"""The columns of a table of trials: those that there are, and those that the page's address chooses (`col`)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from headrace.client import wording
from headrace.client.model import StudyInfo, TrialInfo
from headrace.spec import CategoricalDomain

MOST_PARAMS: Final = 8
"""How many parameters are columns if nothing is chosen."""
MOST: Final = 60


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table. To add one, add it to `offered`."""

    key: str
    """What the address calls it, and what the scheduler sorts by if it does."""
    label: str
    cell: Callable[[TrialInfo], str]
    text: bool = False
    """Whether it holds words, not numbers."""
    sorts: bool = True
    """Whether the scheduler sorts by it; if not, its heading is no link."""


def offered(info: StudyInfo, trials: Iterable[TrialInfo]) -> list[Column]:
    """All columns that a study's table may have, in order; metrics are those that these trials have reported."""
    metrics = {name: None for one in trials for name in one.metrics}
    return [
        Column("step", "Step", lambda one: str(one.step)),
        Column("score", info.spec.objective.metric, lambda one: wording.number(one.score)),
        *(
            _param(name, text=isinstance(domain, CategoricalDomain))
            for name, domain in info.spec.space.items()
        ),
        *(_metric(name) for name in metrics),
        Column("seconds", "Time", _seconds),
        Column("started", "Started", lambda one: wording.ago(one.started) if one.started else ""),
        Column("steps", "Steps computed", lambda one: str(one.steps_spent)),
        Column("attempt", "Attempts", lambda one: str(one.attempt)),
        Column("failures", "Failures", lambda one: str(one.failures)),
        Column("interruptions", "Interruptions", lambda one: str(one.interruptions)),
        Column("worker", "Worker", lambda one: one.last_worker or "", text=True, sorts=False),
        Column("note", "Note", lambda one: one.note, text=True),
    ]


def chosen(columns: Sequence[Column], keys: Sequence[str]) -> list[Column]:
    """The columns with these keys, in that order; without any, those of a table that nobody has changed. Unknown keys
    are left out: a metric may not be reported yet."""
    known = {one.key: one for one in columns}
    if keys:
        return [known[key] for key in dict.fromkeys(keys) if key in known][:MOST]
    params = [one for one in columns if one.key.startswith("param.")]
    return [known["step"], known["score"], *params[:MOST_PARAMS], known["seconds"]]


def _param(name: str, *, text: bool) -> Column:
    return Column(
        f"param.{name}",
        name,
        lambda one: wording.scalar(one.params[name]) if name in one.params else "",
        text,
    )


def _metric(name: str) -> Column:
    return Column(
        f"metric.{name}",
        f"{name} (metric)",
        lambda one: wording.number(one.counted_metrics[name]) if name in one.counted_metrics else "",
    )


def _seconds(one: TrialInfo) -> str:
    if one.started is None:
        return ""
    return wording.duration(((one.ended or datetime.now(UTC)) - one.started).total_seconds())
