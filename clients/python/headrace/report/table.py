"""The table of all trials, best first."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from headrace.client import wording
from headrace.client.model import TrialInfo, Value
from headrace.report import style
from headrace.report.data import StudyData
from headrace.spec import CategoricalDomain


def trial_table(data: StudyData) -> str:
    """The table in HTML; cells carry their sorting key."""
    params = {
        name: not isinstance(domain, CategoricalDomain) for name, domain in data.study.spec.space.items()
    }
    best = data.study.best.number if data.study.best else None
    heads = [("trial", True), ("state", False), ("step", True), (data.metric, True), ("at step", True)]
    further = [objective.metric for objective in data.study.spec.further_objectives]
    heads += [(metric, True) for metric in further]
    heads += params.items()
    heads += [("attempts", True), ("why", False)]
    head = "".join(f'<th{_number(numeric)} scope="col">{escape(label)}</th>' for label, numeric in heads)
    rows = "".join(
        _row(data, trial, further, params, best=trial.number == best)
        for trial in data.outcome.best_first(data.trials)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(
    data: StudyData, trial: TrialInfo, further: Sequence[str], params: Mapping[str, bool], *, best: bool
) -> str:
    cells = [
        _cell(f"{trial.number}" + (" (baseline)" if trial.baseline else ""), trial.number, numeric=True),
        _cell(style.kind_of(trial.outcome).label),
        _cell(str(trial.step), trial.step, numeric=True),
        _cell(wording.number(trial.best_value), trial.best_value, numeric=True),
        _cell("-" if trial.best_step is None else str(trial.best_step), trial.best_step, numeric=True),
        *(_parameter(trial.objective_values.get(metric), numeric=True) for metric in further),
        *(_parameter(trial.params.get(name), numeric=numeric) for name, numeric in params.items()),
        _cell(str(trial.attempt), trial.attempt, numeric=True),
        f'<td class="why">{escape(data.why(trial))}</td>',
    ]
    kind = "best" if best else "baseline" if trial.baseline else ""
    return f'<tr class="{kind}">{"".join(cells)}</tr>'


def _parameter(value: Value | None, *, numeric: bool) -> str:
    return _cell(wording.scalar(value), "" if value is None else value, numeric=numeric)


def _cell(text: str, key: object = None, *, numeric: bool = False) -> str:
    known = key is not None and not (isinstance(key, float) and not math.isfinite(key))
    data_key = f' data-key="{escape(str(key) if known else "")}"' if numeric else ""
    return f"<td{_number(numeric)}{data_key}>{escape(text)}</td>"


def _number(numeric: bool) -> str:
    return ' class="number"' if numeric else ""
