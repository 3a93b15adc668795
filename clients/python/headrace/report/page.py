"""The page of a study: a summary, the figures and the table of trials.

Everything that comes from a study is escaped: in HTML with `html.escape`, in figures with `style.text`, and Plotly's
JSON has no `<`, `>` or `/` of its own.
"""

from html import escape

from headrace.client import wording
from headrace.client.importance import about
from headrace.client.model import TrialInfo
from headrace.first_few import first_few
from headrace.report import document
from headrace.report.curves import learning_curves
from headrace.report.data import StudyData
from headrace.report.front import pareto_fronts
from headrace.report.gantt import gantt
from headrace.report.importance import importance_bars
from headrace.report.lineage import lineage
from headrace.report.loads import device_loads
from headrace.report.parallel import parallel_coordinates
from headrace.report.rungs import rung_occupancy
from headrace.report.table import trial_table

_WHAT_COUNTS_OF_SEVERAL = (
    "the values that count: those of its last report, or an earlier result that it keeps"
)

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
        document.section(
            "Learning curves",
            "One line per trial. Dotted vertical lines are rungs. Point at a line to see the trial and why it ended.",
            document.figure(learning_curves(data), "curves"),
        ),
        *_fronts(data),
        *_lineage(data),
        document.section(
            "Parameters and values",
            _about_parallel(data),
            f'<div class="scroll">{document.figure(parallel_coordinates(data), "parallel", zoom=False)}</div>'
            if any(
                value is not None for trial in data.trials for value in data.outcome.values(trial).values()
            )
            else "<p>No trial has a value yet.</p>",
        ),
        *_importances(data),
        document.section(
            "Trials on slots",
            "One row per slot. A bar is a trial (by number) while it holds the slot. A black tick is a pause, after "
            f"which the slot goes to another trial.{_about_other(data)}",
            document.figure(schedule, "gantt") if schedule else "<p>No trial was placed on a worker.</p>",
        ),
        *_devices(data),
        document.section(
            "Rungs",
            "How many trials were recorded at each rung, and how many went on.",
            document.figure(rung_occupancy(data), "rungs", zoom=False),
        ),
        document.section("Trials", "Best first. Click on a heading to sort.", trial_table(data)),
    ]
    return document.page(data.study.name, _header(data), sections, script=SORT_SCRIPT)


def _about_other(data: StudyData) -> str:
    if data.other is None:
        return ""
    return f" Trials of study {data.other.name} are shown too, in a colour of their own."


def _fronts(data: StudyData) -> list[str]:
    figures = [
        document.figure(figure, f"front-{place}", zoom=False)
        for place, figure in enumerate(pareto_fronts(data))
    ]
    if not figures:
        return []
    what = (
        f"One point per trial, with {_WHAT_COUNTS_OF_SEVERAL}. No other trial beats those on the Pareto front in every "
        "objective."
    )
    if len(figures) > 1:
        what += (
            " Each pair of objectives has a figure: a trial that is beaten in one may be ahead in another."
        )
    return [document.section("Pareto front", what, "".join(figures))]


def _devices(data: StudyData) -> list[str]:
    figure = device_loads(data)
    if figure is None:
        return []
    what = (
        "How busy the devices were that this study's trials were on, a line a slot, by any process. The scheduler "
        "keeps the last hour. CPU slots show their machine."
    )
    return [document.section("Devices", what, document.figure(figure, "devices", zoom=False))]


def _importances(data: StudyData) -> list[str]:
    sections = []
    for place, found in enumerate(data.importances):
        title = "Importance of parameters"
        if len(data.importances) > 1:
            title += f" for {found.metric}"
        if found.reason:
            said = f"<p>Not known: {escape(found.reason)}.</p>"
            sections.append(document.section(title, "", said))
            continue
        what = (
            f"How much each parameter has to do with being {about(found)} (Optuna's PED-ANOVA). Trials that were "
            "stopped before that step are not compared."
        )
        bars = document.figure(importance_bars(found), f"importance-{place}", zoom=False)
        sections.append(document.section(title, what, bars))
    return sections


def _about_parallel(data: StudyData) -> str:
    value = _WHAT_COUNTS_OF_SEVERAL
    if not data.outcome.several:
        value = f"{_what_counts(data)}; trials that were stopped early had fewer steps"
    return f"One line per trial, darker for a better {data.metric} ({value}). Drag along an axis to select trials."


def _lineage(data: StudyData) -> list[str]:
    figure = lineage(data)
    if figure is None:
        return []
    what = (
        "Which trial copied which, and the parameters that it went on with. The thick line is the best schedule: the "
        "parameters that the best trial's state was trained with, in whichever trial, from the first step to the last."
    )
    return [document.section("Lineage", what, document.figure(figure, "lineage", zoom=False))]


def _header(data: StudyData) -> str:
    study = data.study
    spec = study.spec
    created = study.created.strftime("%Y-%m-%d %H:%M UTC") if study.created else ""
    counts = "" if data.outcome.several else f" (of each trial {_what_counts(data)})"
    lead = (
        f"{study.state.value} · {wording.goals(spec)}{counts} · {spec.policy.kind} over "
        f"steps {wording.rungs_listed(spec.rungs())} · {spec.sampler.kind} sampler, "
        f"seed {spec.seed} · {created}"
    )
    more = [study.detail] if study.detail else []
    if study.code_changed:
        more.append(
            f"Code changed since the study began: {first_few(study.code_changed)}. The table of trials marks those "
            "that ran other code than the first one, or took over what such a trial had trained."
        )
    more += [f"Not on this page: {line}" for line in data.left_out]
    said = "".join(f'<p class="lead">{escape(line)}</p>' for line in (lead, *more))
    return f'<h1>{escape(study.name)}</h1>{said}<div class="cards">{"".join(_cards(data))}</div>'


def _what_counts(data: StudyData) -> str:
    """Which value of a trial counts, if there is one objective."""
    said = wording.what_counts(data.study.spec.objective)
    if any(trial.counted_end is not None for trial in data.trials):
        said += ", or that of before it continued where that is better"
    return said


def _cards(data: StudyData) -> list[str]:
    study = data.study
    counts = study.counts
    cards = []
    if data.outcome.several:
        names = " and ".join(objective.metric for objective in study.spec.objectives)
        failed = "" if data.outcome.sound or not study.front else "; all of them failed"
        found, what = str(len(study.front)), f"trials that no other one beats{failed}"
        if data.outcome.front_left_out:
            found, what = "-", study.unshown
        cards.append(document.card(f"Pareto front of {names}", found, what, "best"))
    elif (best := study.best) is not None:
        failed = "; it failed, as did every trial with a value" if best.flaw == "failed" else ""
        kept = f"; it {keeps}" if (keeps := wording.kept_result(best)) else ""
        gain = (data.outcome.improvement_text() or "").removeprefix("none: ")
        cards.append(
            document.card(
                f"best {data.metric}",
                wording.number(best.score),
                f"trial {best.number} at step {best.score_step}{failed}{kept}"
                + (f"; {gain}" if gain else ""),
                "best",
            )
        )
    if study.baseline is not None:
        cards.append(_baseline_card(data, study.baseline))
    spent = f"of {study.steps_run_all} to run every trial to the end"
    if data.outcome.saved_percent is not None:
        by_end = {"failed": counts.failed, "cancelled": counts.cancelled, "infeasible": counts.infeasible}
        lost = [word for word, count in by_end.items() if count]
        included = f", {' and '.join(lost)} trials included" if lost else ""
        spent += f"; {data.outcome.saved_percent:.0f} % saved{included}"
    elif data.outcome.cut_off:
        spent += "; the study ended before"
    cards.append(document.card("steps", str(study.steps_spent), spent))
    ends = f"{counts.completed} completed, {counts.stopped_early} stopped early, {counts.failed} failed"
    ends += f", {counts.infeasible} infeasible" if counts.infeasible else ""
    live = counts.total - counts.terminated
    cards.append(document.card("trials", str(counts.total), ends + (f", {live} live" if live else "")))
    failures = wording.failures(study)
    if failures is not None:
        cards.append(f'<div class="card wide"><div class="label">failures</div>{escape(failures)}</div>')
    if data.outcome.wall_time_s is not None:
        cards.append(document.card("wall time", wording.duration(data.outcome.wall_time_s), ""))
    if not data.outcome.several and study.best is not None:
        rows = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(wording.scalar(value))}</dd></div>"
            for name, value in study.best.params.items()
        )
        cards.append(
            f'<div class="card wide"><div class="label">best configuration</div><dl>{rows}</dl></div>'
        )
    return cards


def _baseline_card(data: StudyData, baseline: TrialInfo) -> str:
    """The baseline's card, with the values that count."""
    spec = data.study.spec
    title = "baseline" if data.outcome.several else f"baseline {data.metric}"
    what = f"the default configuration, {baseline.outcome.replace('_', ' ')} at step {baseline.step}"
    if keeps := wording.kept_result(baseline):
        what += f"; it {keeps}"
    elif baseline.score_step not in (None, baseline.step):
        what += f"; the value is of step {baseline.score_step}"
    return document.card(title, wording.shown_values(baseline, spec), what)
