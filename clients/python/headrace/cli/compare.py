"""`headrace compare`: several studies side by side."""

from math import isfinite
from typing import Annotated, Any

import typer

from headrace.cli import views, wording
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.output import Cell, Output
from headrace.cli.session import AsJson, Session
from headrace.cli.unshown import note_unshown
from headrace.client.model import StudyInfo
from headrace.client.outcome import Outcome


def compare(
    context: typer.Context,
    studies: Annotated[
        list[str], typer.Argument(metavar="STUDY...", help="Two studies or more.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Compare studies: the best value of each, what it cost, and the parameters that led to it.

    COST is the share of the steps that training every trial to the full budget would take.

    [bold]Examples[/bold]

    headrace compare digits digits-wide

    headrace compare $(headrace studies --tag paper --json | jq -r '.\\[].name')
    """
    names = list(dict.fromkeys(studies))
    if len(names) < 2:
        raise CommandError("There is only one study to compare.", remedy="Name two or more.", code=USAGE)
    session = Session.of(context)
    with session.client() as client:
        infos = [client.study(name).status() for name in names]
    note_unshown(session.output, *infos)
    if as_json:
        session.output.json([views.study(info) | _figures(info) for info in infos])
        return
    session.output.table(
        ["STUDY", "STATE", "TRIALS", "METRIC", "BEST", "AT STEP", "COST", "TIME", "TAGS", "PARAMETERS"],
        [_row(info, session.output) for info in infos],
        right=["TRIALS", "BEST", "AT STEP", "COST", "TIME"],
        below=["TAGS", "PARAMETERS"],
    )
    goals = {(info.spec.objective.metric, info.spec.objective.goal) for info in infos}
    if len(goals) > 1:
        session.output.note("Their objectives differ, so their best values cannot be compared.")
    else:
        _note_best(infos, session.output)


def _row(info: StudyInfo, output: Output) -> list[Cell]:
    outcome = Outcome(info)
    best = None if outcome.several else info.best
    return [
        info.name,
        output.state(info.state.value),
        str(info.counts.total),
        info.spec.objective.metric,
        "Pareto front" if outcome.several else wording.number(best.score) if best else "-",
        str(best.score_step) if best else "-",
        _cost(info),
        wording.duration(outcome.wall_time_s),
        " ".join(info.tags) or "-",
        wording.params(best.params) if best else "-",
    ]


def _cost(info: StudyInfo) -> str:
    return f"{100 * info.steps_spent / info.steps_run_all:.0f} %" if info.steps_run_all else "-"


def _note_best(infos: list[StudyInfo], output: Output) -> None:
    if any(info.spec.further_objectives for info in infos):
        return
    bests = [(info, info.best.score if info.best else None) for info in infos]
    scored = [(info, score) for info, score in bests if score is not None and isfinite(score)]
    if len(scored) < 2:
        return
    sign = infos[0].spec.objective.sign
    first, score = min(scored, key=lambda one: sign * one[1])
    others = ", ".join(
        f"{wording.number(abs(score - other))} better than {info.name}"
        for info, other in scored
        if info is not first and other != score
    )
    if not others:
        return
    output.note(f"{first.name} has the best {first.spec.objective.metric}: {others}.")


def _figures(info: StudyInfo) -> dict[str, Any]:
    outcome = Outcome(info)
    return {"wall_time_s": outcome.wall_time_s, "saved_percent": outcome.saved_percent}
