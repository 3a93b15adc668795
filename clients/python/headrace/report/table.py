"""The table of all trials, best first."""

import math
from collections.abc import Mapping
from html import escape

from headrace.client import wording
from headrace.client.model import TrialInfo, Value
from headrace.report import style
from headrace.report.data import StudyData
from headrace.spec import CategoricalDomain


def trial_table(data: StudyData) -> str:
    """The table in HTML; cells carry their sort keys."""
    params = {
        name: not isinstance(domain, CategoricalDomain) for name, domain in data.study.spec.space.items()
    }
    best = data.outcome.marked()
    heads = [("trial", True), ("state", False), ("step", True)]
    heads += [(objective.metric, True) for objective in data.study.spec.objectives]
    heads += [] if data.outcome.several else [("at step", True)]
    heads += params.items()
    heads += [("attempts", True), ("why", False)]
    head = "".join(f'<th{_number(numeric)} scope="col">{escape(label)}</th>' for label, numeric in heads)
    rows = "".join(
        _row(data, trial, params, best=trial.number in best) for trial in data.outcome.best_first(data.trials)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(data: StudyData, trial: TrialInfo, params: Mapping[str, bool], *, best: bool) -> str:
    cells = [
        _cell(f"{trial.number}" + (" (baseline)" if trial.baseline else ""), trial.number, numeric=True),
        _cell(style.kind_of(trial.outcome).label),
        _cell(str(trial.step), trial.step, numeric=True),
        *(_cell(wording.number(value), value, numeric=True) for value in data.outcome.values(trial).values()),
        *(
            []
            if data.outcome.several
            else [_cell(wording.scalar(trial.score_step), trial.score_step, numeric=True)]
        ),
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
