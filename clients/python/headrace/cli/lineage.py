"""`headrace lineage`: the schedule that population-based training found."""

from typing import Annotated

import typer

from headrace.cli import wording
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.cli.unshown import note_unshown
from headrace.client.lineage import Stretch, schedule
from headrace.client.model import TrialInfo
from headrace.errors import HeadraceError
from headrace.first_few import first_few


def lineage(
    context: typer.Context,
    study: StudyArgument,
    trial: Annotated[
        int | None,
        typer.Argument(
            metavar="[TRIAL]", min=0, help="The trial's number. Default: the best trial.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where a trial's state comes from: which trial trained it over which steps, and with which parameters.

    In population-based training this is the schedule that was found. With any other policy a trial trains all
    its steps itself.

    [bold]Examples[/bold]

    headrace lineage pbt

    headrace lineage pbt 3
    """
    session = Session.of(context)
    with session.client() as client:
        handle = client.study(study)
        best = handle.best() if trial is None else handle.trial(trial).info()
        if best is None:
            raise HeadraceError(
                f"no trial of study '{study}' has a value yet",
                remedy="Wait for the first report, then try again.",
            )
        trials = handle.trials()
        stretches = schedule({info.number: info for info in (*trials, best)}, best.number)
        spec = handle.status().spec
    note_unshown(session.output, trials)
    if as_json:
        session.output.json({"trial": best.number, "schedule": [_json(stretch) for stretch in stretches]})
        return
    session.output.line(f"Trial {best.number} of study {study}: {_values(best, spec.objective.metric)}")
    if keeps := wording.kept_result(best):
        session.output.line(f"  It {keeps}.")
    if said := wording.other_code(best):
        session.output.line(f"  It {said}.")
    for stretch in stretches:
        ordered = {name: stretch.params[name] for name in spec.space if name in stretch.params}
        steps = f"steps {stretch.start + 1} to {stretch.end}"
        other = f"; other code: {first_few(stretch.code_changed)}" if stretch.code_changed else ""
        session.output.line(f"  {steps:<18} trial {stretch.trial:<4} {wording.params(ordered)}{other}")


def _values(trial: TrialInfo, metric: str) -> str:
    """The value that its state reached last. Its best value may belong to a state that it has since replaced
    with another trial's.
    """
    last = trial.metrics.get(metric)
    if last is None or last == trial.best_value:
        return wording.number(trial.best_value)
    return (
        f"{wording.number(last)} at step {trial.step}; its best was {wording.number(trial.best_value)} at step "
        f"{trial.best_step}"
    )


def _json(stretch: Stretch) -> dict[str, object]:
    return {
        "start": stretch.start,
        "end": stretch.end,
        "trial": stretch.trial,
        "params": dict(stretch.params),
        "code_changed": list(stretch.code_changed),
    }
