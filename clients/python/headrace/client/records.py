"""Trials and reports as flat rows: the content of `export` and `dataframe()`.

The columns of a trial, in this order: `study`, `trial`, `state`, `reason`, `baseline`, `bracket`, `step`,
`value`, `best_value`, `best_step`, `score` (the value that counts, by the objective's `scope`), `score_step`,
`counts_as` (how it ended with the result that counts: `reason`, unless it continued after that and an earlier
end counts), `sound` (whether that end neither failed nor diverged), `feasible` (whether it meets the
constraints; None without any), `front` (whether it is on the Pareto front; None with one objective), `rung` (the
highest recorded, counted from 0), `rung_step` (the step of that rung), `steps_spent`, `failures`,
`interruptions`, `worker` (where it runs, or last ran), `created`, `started`, `ended`, `checkpoint` (the last
one), `kept_checkpoint` (the one to load), `code` (the digest of the source files in the study's folder that its
last attempt executed), `code_changed` (the source files in which it ran different code than the study started
with, or copied the state of a trial that did, separated by spaces; with a question mark if it is not known which
version ran), `other_code` (the steps that such code trained), `result_of_other_code` (whether the result that
counts was reported after that), `detail`. Then come `param.NAME` for each parameter of the space, with its value
at `score_step`; `last_param.NAME` for each parameter that a member of a population has changed since, with its
later value; `counted.NAME` for each objective and constraint, with the value that counts; and `metric.NAME` for
each metric of any trial's last report. The last two differ if an earlier end or, with `scope: best`, an earlier
report counts, and in the objective with `mean_last_k`.

The columns of a report: `study`, `trial`, `attempt` (which placement of the trial, counted from 1), `sequence`,
`step`, `time`, then `metric.NAME` for each metric that any report has.

A trial has a `score` no matter how it ended. `best` counts unsound trials only if no sound one has a score, so
compare only sound rows: `frame[frame.sound & ~frame.baseline].score.min()`. With `scope: full_budget`, the rows
whose `counts_as` is `completed` come before all others.

A parameter that a conditional space leaves out, and any other value that does not exist, is None (NA in
`dataframe()`). Times are in UTC; `export` writes them as ISO 8601.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from headrace.client.missing import MissingExtraError
from headrace.client.model import Listing, Report, StudyInfo, TrialInfo, Value
from headrace.client.outcome import Outcome
from headrace.client.warning import warn
from headrace.client.wording import left_out, steps_of_other_code

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Value | datetime | None]
_DTYPES: Final[Mapping[type, str]] = {int: "Int64", bool: "boolean", str: "string", float: "Float64"}


def trial_rows(study: StudyInfo, trials: Iterable[TrialInfo]) -> list[Row]:
    """One row per trial, all with the same columns."""
    stored = list(trials)
    names = sorted({name for trial in stored for name in trial.metrics})
    changed = [name for name in study.spec.space if any(name in trial.changed_params for trial in stored)]
    return [_trial_row(study, trial, names, changed) for trial in stored]


def report_rows(study: StudyInfo, reports: Iterable[Report]) -> list[Row]:
    """One row per report, all with the same columns."""
    stored = list(reports)
    names = sorted({name for report in stored for name in report.metrics})
    return [
        {
            "study": study.name,
            "trial": report.trial,
            "attempt": report.attempt,
            "sequence": report.sequence,
            "step": report.step,
            "time": report.time,
            **{f"metric.{name}": report.metrics.get(name) for name in names},
        }
        for report in stored
    ]


def dataframe(study: StudyInfo, trials: Listing[TrialInfo]) -> "pd.DataFrame":
    """`trial_rows` as a pandas frame, indexed by trial. Warns about trials that the list leaves out.

    A column has the type of its values, so that integers stay exact next to missing values: `Int64`, `boolean`,
    `string`, `Float64`, times in UTC, or objects if types are mixed. Missing values and NaN are `pandas.NA`.
    `add_trials` and `enqueue` leave such values out, so the `param` columns of rows can be tried again
    unchanged.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError.of("A data frame", "report", error.name) from None
    for line in left_out(trials):
        warn(line)
    rows = trial_rows(study, trials)
    if not rows:
        return pd.DataFrame()
    columns = {name: _column([row[name] for row in rows]) for name in rows[0]}
    return pd.DataFrame(columns).set_index("trial")


def _column(values: "Sequence[Value | datetime | None]") -> "pd.Series[Any]":
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    if kinds == {datetime}:
        return pd.Series(pd.to_datetime(pd.Index(values), utc=True))
    dtype = _DTYPES.get(kinds.pop(), "object") if len(kinds) == 1 else "object"
    return pd.Series([pd.NA if value is None else value for value in values], dtype=dtype)


def _trial_row(study: StudyInfo, trial: TrialInfo, metrics: Sequence[str], changed: Sequence[str]) -> Row:
    return {
        "study": study.name,
        "trial": trial.number,
        "state": trial.state.value,
        "reason": trial.reason.value if trial.reason else None,
        "baseline": trial.baseline,
        "bracket": trial.bracket,
        "step": trial.step,
        "value": trial.value,
        "best_value": trial.best_value,
        "best_step": trial.best_step,
        "score": trial.score,
        "score_step": trial.score_step,
        "counts_as": trial.counts_as.value if trial.counts_as else None,
        "sound": trial.sound,
        "feasible": trial.feasible,
        "front": trial.number in {one.number for one in study.front}
        if study.spec.further_objectives
        else None,
        "rung": trial.rungs[-1].rung if trial.rungs else None,
        "rung_step": trial.rungs[-1].milestone if trial.rungs else None,
        "steps_spent": trial.steps_spent,
        "failures": trial.failures,
        "interruptions": trial.interruptions,
        "worker": trial.worker or trial.last_worker,
        "created": trial.created,
        "started": trial.started,
        "ended": trial.ended,
        "checkpoint": trial.checkpoint.uri if trial.checkpoint else None,
        "kept_checkpoint": trial.kept_checkpoint.uri if trial.kept_checkpoint else None,
        "code": trial.code or None,
        "code_changed": " ".join(trial.code_changed) or None,
        "other_code": steps_of_other_code(trial.other_code) or None,
        "result_of_other_code": trial.result_of_other_code,
        "detail": trial.detail or None,
        **{f"param.{name}": trial.params.get(name) for name in study.spec.space},
        **{f"last_param.{name}": trial.last_params.get(name) for name in changed},
        **{f"counted.{name}": value for name, value in Outcome(study).counted(trial).items()},
        **{f"metric.{name}": trial.metrics.get(name) for name in metrics},
    }
