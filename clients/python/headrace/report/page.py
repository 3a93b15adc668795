"""The page: a summary, the figures and the table of trials, in one HTML file with nothing to fetch.

Plotly's JavaScript is put in once. Everything that comes from a study is escaped: in HTML with `html.escape`, in
figures with `style.text`, and Plotly's JSON has no `<`, `>` or `/` of its own.
"""

from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from headrace.client import wording
from headrace.report import style
from headrace.report.curves import learning_curves
from headrace.report.data import StudyData
from headrace.report.front import pareto_fronts
from headrace.report.gantt import gantt
from headrace.report.lineage import lineage
from headrace.report.parallel import parallel_coordinates
from headrace.report.rungs import rung_occupancy
from headrace.report.table import trial_table

CSS = f"""
:root {{ color-scheme: light; }}
body {{ font-family: {style.FONT}; color: {style.INK}; background: #f4f6f8; margin: 0; line-height: 1.45; }}
main {{ max-width: 1240px; margin: 0 auto; padding: 28px 24px 60px; }}
h1 {{ font-size: 28px; margin: 0 0 2px; overflow-wrap: anywhere; }}
h2 {{ font-size: 19px; margin: 0 0 4px; }}
.lead, .note {{ color: {style.MUTED}; margin: 0 0 14px; }}
.note {{ font-size: 14px; }}
section {{ background: white; border: 1px solid #dfe4e9; border-radius: 10px; padding: 18px 20px; margin-top: 18px; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 14px; margin-top: 18px; }}
.card {{ background: white; border: 1px solid #dfe4e9; border-radius: 10px; padding: 14px 16px; }}
.card .label {{ color: {style.MUTED}; font-size: 13px; }}
.card .figure {{ font-size: 25px; font-weight: 650; overflow-wrap: anywhere; }}
.card .more {{ font-size: 13px; color: {style.MUTED}; overflow-wrap: anywhere; }}
.best .figure {{ color: {style.BEST}; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 12.5px; width: 100%; }}
th, td {{ text-align: left; padding: 5px 8px; border-bottom: 1px solid #e6eaee; white-space: nowrap; }}
td.why {{ white-space: normal; min-width: 200px; }}
th {{ position: sticky; top: 0; background: white; cursor: pointer; user-select: none; }}
th[aria-sort=ascending]::after {{ content: " ▲"; }}
th[aria-sort=descending]::after {{ content: " ▼"; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
tr.best td {{ background: #fdf0e6; font-weight: 600; }}
tr.baseline td {{ background: #f1f3f5; }}
.wide {{ grid-column: 1 / -1; }}
dl {{ display: flex; flex-wrap: wrap; gap: 4px 32px; margin: 4px 0 0; }}
dt {{ color: {style.MUTED}; font-size: 13px; }}
dd {{ margin: 0; font-weight: 650; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
"""

SORT_SCRIPT = """
document.querySelectorAll("th").forEach((head, column) => head.addEventListener("click", () => {
  const up = head.getAttribute("aria-sort") !== "ascending";
  document.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const body = head.closest("table").tBodies[0];
  const key = row => row.cells[column].dataset.key ?? row.cells[column].textContent;
  const rows = [...body.rows].sort((a, b) => {
    const x = key(a), y = key(b);
    if (x === "" || y === "") return x === y ? 0 : x === "" ? 1 : -1;
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return up ? order : -order;
  });
  body.append(...rows);
}));
"""


def render(data: StudyData) -> str:
    """The page."""
    schedule = gantt(data)
    sections = [
        _section(
            "Learning curves",
            "One line per trial. Dotted vertical lines are rungs. Point at a line to see the trial and why it ended.",
            _figure(learning_curves(data), "curves"),
        ),
        *_fronts(data),
        *_lineage(data),
        _section(
            "Parameters and values",
            _about_parallel(data),
            f'<div class="scroll">{_figure(parallel_coordinates(data), "parallel", zoom=False)}</div>'
            if data.study.best
            else "<p>No trial has a value yet.</p>",
        ),
        _section(
            "Trials on slots",
            "One row per slot. A bar is a trial (by number) while it holds the slot. A black tick is a pause, after "
            "which the slot goes to another trial.",
            _figure(schedule, "gantt") if schedule else "<p>No trial was placed on a worker.</p>",
        ),
        _section(
            "Rungs",
            "How many trials were recorded at each rung, and how many went on.",
            _figure(rung_occupancy(data), "rungs", zoom=False),
        ),
        _section("Trials", "Best first. Click on a heading to sort.", trial_table(data)),
    ]
    title = escape(data.study.name)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title} · Headrace</title>\n'
        f"<style>{CSS}</style>\n<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>\n"
        f"{_header(data)}\n{''.join(sections)}\n</main>\n<script>{SORT_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _fronts(data: StudyData) -> list[str]:
    figures = [
        _figure(figure, f"front-{place}", zoom=False) for place, figure in enumerate(pareto_fronts(data))
    ]
    if not figures:
        return []
    what = "One point per trial, by its last report. No other trial beats those on the Pareto front in every objective."
    if len(figures) > 1:
        what += (
            " Each pair of objectives has a figure: a trial that is beaten in one may be ahead in another."
        )
    return [_section("Pareto front", what, "".join(figures))]


def _about_parallel(data: StudyData) -> str:
    value = (
        "its objectives in its last report"
        if data.outcome.several
        else "its best value so far; trials that were stopped early had fewer steps"
    )
    return f"One line per trial, darker for a better {data.metric} ({value}). Drag along an axis to select trials."


def _lineage(data: StudyData) -> list[str]:
    figure = lineage(data)
    if figure is None:
        return []
    what = (
        "Which trial copied which, and the parameters that it went on with. The thick line is the best schedule: the "
        "parameters that the best trial's state was trained with, in whichever trial, from the first step to the last."
    )
    return [_section("Lineage", what, _figure(figure, "lineage", zoom=False))]


def _header(data: StudyData) -> str:
    study = data.study
    spec = study.spec
    created = study.created.strftime("%Y-%m-%d %H:%M UTC") if study.created else ""
    lead = (
        f"{study.state.value} · {spec.objective.goal} {data.metric} · {spec.policy.kind} over steps "
        f"{', '.join(str(milestone) for milestone in spec.rungs())} · {spec.sampler.kind} sampler, "
        f"seed {spec.seed} · {created}"
    )
    detail = f'<p class="lead">{escape(study.detail)}</p>' if study.detail else ""
    return (
        f'<h1>{escape(study.name)}</h1><p class="lead">{escape(lead)}</p>{detail}'
        f'<div class="cards">{"".join(_cards(data))}</div>'
    )


def _cards(data: StudyData) -> list[str]:
    study = data.study
    counts = study.counts
    cards = []
    if data.outcome.several:
        names = " and ".join(objective.metric for objective in study.spec.objectives)
        failed = "" if data.outcome.sound or not study.front else "; all of them failed"
        cards.append(
            _card(
                f"Pareto front of {names}",
                str(len(study.front)),
                f"trials that no other one beats{failed}",
                "best",
            )
        )
    elif study.best is not None:
        best = study.best
        failed = "; it failed, as did every trial with a value" if best.failed else ""
        gain = (data.outcome.improvement_text() or "").removeprefix("none: ")
        cards.append(
            _card(
                f"best {data.metric}",
                wording.number(best.best_value),
                f"trial {best.number} at step {best.best_step}{failed}" + (f"; {gain}" if gain else ""),
                "best",
            )
        )
    if study.baseline is not None:
        baseline = study.baseline
        cards.append(
            _card(
                f"baseline {data.metric}",
                wording.number(
                    baseline.value if baseline.step >= study.spec.max_steps else baseline.best_value
                ),
                f"the default configuration, {baseline.outcome.replace('_', ' ')} at step {baseline.step}",
            )
        )
    spent = f"of {study.steps_run_all} to run every trial to the end"
    if data.outcome.saved_percent is not None:
        spent += f"; {data.outcome.saved_percent:.0f} % saved"
    cards.append(_card("steps", str(study.steps_spent), spent))
    ends = f"{counts.completed} completed, {counts.stopped_early} stopped early, {counts.failed} failed"
    live = counts.total - counts.terminated
    cards.append(_card("trials", str(counts.total), ends + (f", {live} live" if live else "")))
    failures = wording.failures(study)
    if failures is not None:
        cards.append(f'<div class="card wide"><div class="label">failures</div>{escape(failures)}</div>')
    if data.outcome.wall_time_s is not None:
        cards.append(_card("wall time", wording.duration(data.outcome.wall_time_s), ""))
    if study.best is not None and not data.outcome.several:
        rows = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(wording.scalar(value))}</dd></div>"
            for name, value in study.best.params.items()
        )
        cards.append(
            f'<div class="card wide"><div class="label">best configuration</div><dl>{rows}</dl></div>'
        )
    return cards


def _card(label: str, figure: str, more: str, kind: str = "") -> str:
    return (
        f'<div class="card {kind}"><div class="label">{escape(label)}</div>'
        f'<div class="figure">{escape(figure)}</div><div class="more">{escape(more)}</div></div>'
    )


def _section(title: str, note: str, body: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{body}</section>'


def _figure(figure: go.Figure, name: str, *, zoom: bool = True) -> str:
    # The buttons are named, since Plotly's own list has one that sends the figure to a server.
    buttons = [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]] if zoom else [["toImage"]]
    config = {"displaylogo": False, "responsive": True, "modeBarButtons": buttons}
    html: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"figure-{name}", config=config
    )
    return html
