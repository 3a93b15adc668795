"""`headrace show`: one study, or one of its trials."""

from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli import gates, scales, views, wording
from headrace.cli.hindered import said_of
from headrace.cli.importance import show_importance
from headrace.cli.live import BAR_WIDTH, rung_bar
from headrace.cli.output import Output
from headrace.cli.populations import best_schedule
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.cli.shipping import described
from headrace.cli.summary import Summary, deleted_of_best, no_longer_saved, show_summary, transferred
from headrace.cli.unshown import note_unshown
from headrace.client.deleted import Deleted, deleted_checkpoint
from headrace.client.importance import importance_or_reason
from headrace.client.model import EarlierEnd, StudyInfo, TrialInfo
from headrace.first_few import first_few
from headrace.last_words import printed_last
from headrace.spec import BestOfSampler, Scope

RUNG_COLUMNS = 48
"""The width of the table of rungs without its bars."""


def show(
    context: typer.Context,
    study: StudyArgument,
    trial: Annotated[
        int | None, typer.Argument(metavar="[TRIAL]", min=0, help="A trial's number.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a study, or one of its trials.

    For a study, this includes the importance of each parameter: how much it matters for being among the best trials.
    Trials are compared by their values at one step, the highest rung that enough of them reached, so those that stopped
    earlier do not count.

    [bold]Examples[/bold]

    headrace show digits

    headrace show digits 7
    """
    session = Session.of(context)
    with session.client() as client:
        info = client.study(study).status()
        taken = transferred(client, info) if trial is None else None
        trained = best_schedule(client, info) if trial is None else ()
        gone = deleted_of_best(client, info) if trial is None else None
        matters = importance_or_reason(client.study(study), info) if trial is None else ()
        handle = client.study(study).trial(trial) if trial is not None else None
        one = in_order(handle.info(), info) if handle is not None else None
        reports = handle.reports() if handle is not None and not as_json else []
        said = (
            [] if as_json or (one is not None and not one.worker) else said_of(client.workers(), study, trial)
        )
    if one is not None:
        note_unshown(session.output, one)
        if as_json:
            session.output.json(views.trial(one))
        else:
            heard = reports[-1].time if reports else None
            deleted = deleted_checkpoint(one, reports, info.spec)
            _show_trial(one, info, wording.silence(one, info.spec, heard), deleted, session.output)
    elif as_json:
        session.output.json(
            views.study(info)
            | {
                "transferred": views.transferred(taken) if taken else None,
                "importance": [asdict(one) for one in matters],
            }
        )
    else:
        _show_study(Summary(study=info, transferred=taken, schedule=trained, deleted=gone), session.output)
        if not (gates.is_gate(info) or scales.is_pilot(info)):  # these are not searches
            show_importance(matters, session.output)
    for line in said:
        session.output.note(line)


def in_order(trial: TrialInfo, study: StudyInfo) -> TrialInfo:
    """The trial with its parameters in the order of the space, which the trial alone does not know."""
    names = [name for name in study.spec.space if name in trial.params]
    return replace(trial, params={name: trial.params[name] for name in names})


def _show_study(summary: Summary, output: Output) -> None:
    study = summary.study
    show_summary(summary, output)
    code = study.spec.template.code if study.spec.template is not None else None
    if code is not None and (told := described(code)):
        output.line(f"\nCode {told}")
    if study.tags or study.note:
        output.line("\n" + "  ".join(filter(None, [" ".join(study.tags), study.note])))
    if study.code_changed:
        output.line(f"\nCode changed since the study began: {first_few(study.code_changed)}")
        output.note(
            f"`headrace trials {study.name}` marks the trials that ran different code from the first one, "
            "or copied what such a trial had trained."
        )
    if study.spec.transfer is not None:
        output.note(f"Study {study.spec.transfer.study_name(study.name)} trains its best configurations.")
    full = max([study.spec.max_trials, *(r.recorded for r in study.rungs)])
    bar_width = max(0, min(BAR_WIDTH, output.console.width - RUNG_COLUMNS))
    output.line()
    output.table(
        ["RUNG AT STEP", "RECORDED", "PROMOTED", "RUNNING", ""],
        [
            [
                str(r.milestone),
                str(r.recorded),
                str(r.promoted),
                str(r.running),
                rung_bar(r, full, bar_width) if output.is_terminal else "",
            ]
            for r in wording.thinned(study.rungs)
        ],
        right=["RUNG AT STEP", "RECORDED", "PROMOTED", "RUNNING"],
    )


def _show_trial(
    trial: TrialInfo, study: StudyInfo, silence: str, deleted: Deleted | None, output: Output
) -> None:
    output.line(
        Text.assemble(
            f"Trial {trial.number} of study {trial.study}"
            + (" (the baseline)" if trial.baseline else "")
            + "  ",
            wording.state(trial.outcome),
        )
    )
    lines = [(name, wording.scalar(value)) for name, value in trial.params.items()]
    lines.append(
        ("step", f"{trial.step}" + (f", may run to {trial.milestone}" if trial.milestone is not None else ""))
    )
    if silence:
        lines.append(("last report" if trial.metrics else "started", silence))
    if trial.changed_params:
        lines.append(
            (
                "continues with" if trial.reason is None else "continued with",
                wording.params(trial.changed_params),
            )
        )
    if trial.best_value is not None and not study.spec.further_objectives:
        since = " (diverged since)" if trial.diverged else ""
        lines.append(("best value", f"{wording.number(trial.best_value)} at step {trial.best_step}{since}"))
        best = (trial.best_value, trial.best_step)
        if study.spec.scope is not Scope.BEST or (trial.score, trial.score_step) != best:
            counts = wording.scored(trial, study.spec.objective) if trial.score is not None else "none"
            lines.append(("counts", counts))
    elif trial.counted_end is not None:
        lines.append(("counts", wording.counted(trial, study.spec)))
    lines += [("earlier end", _earlier_end(end, study)) for end in trial.earlier_ends]
    if keeps := wording.kept_result(trial):
        lines.append(("", keeps))
    if trial.feasible is not None:
        lines.append(("feasible", "yes" if trial.feasible else f"no: {wording.misses(trial, study.spec)}"))
    if trial.source is not None and isinstance(study.spec.sampler, BestOfSampler):
        lines.append(
            ("taken over", f"the configuration of trial {trial.source} of {study.spec.sampler.study}")
        )
    if trial.generation is not None:
        lines.append(("generation", str(trial.generation)))
    lines += [(f"last {name}", wording.number(value)) for name, value in trial.metrics.items()]
    lines += [
        (
            f"rung at step {r.milestone}",
            f"{wording.number(r.value)}, arrival {r.arrival}" + (", promoted" if r.promoted else ""),
        )
        for r in wording.thinned(trial.rungs)
    ]
    lines.append(("steps spent", str(trial.steps_spent)))
    if trial.failures or trial.interruptions:
        lines.append(
            (
                "attempts",
                wording.plural(trial.failures, "failure")
                + " of its own, "
                + wording.plural(trial.interruptions, "interruption")
                + " by machines",
            )
        )
    if trial.waits_for:
        lines.append(("waits for", trial.waits_for))
    if trial.last_worker and not trial.worker:
        lines.append(("last worker", trial.last_worker))
    if trial.failed and printed_last(trial.log_tail):
        lines.append(("printed last", printed_last(trial.log_tail)))
    if trial.worker:
        share = f" ({trial.slot_milli / 1000:g} of it)" if 0 < trial.slot_milli < 1000 else ""
        lines.append(("worker", f"{trial.worker}, slots {', '.join(map(str, trial.slots)) or '-'}{share}"))
    if trial.bundle:
        seats = f"{trial.bundle_members} of {trial.bundle_seats} seats taken"
        if study.spec.fuse is not None and study.spec.fuse.auto:  # the most seats that it may ever have
            seats = wording.plural(trial.bundle_members, "trial")
        lines.append(("bundle", f"{trial.bundle}, {seats}"))
    if trial.code:
        lines.append(("code", trial.code))
    if said := wording.other_code(trial):
        lines.append(("", said) if trial.code else ("code", said))
    if trial.bubbles:
        lines.append(("bubbles", f"ran in bubbles of {'; '.join(trial.bubbles)}"))
    if trial.checkpoint:
        lines.append(("checkpoint", f"{trial.checkpoint.uri} (step {trial.checkpoint.step})"))
    if deleted is not None:
        of = "checkpoint" if trial.checkpoint is None else "of its result"
        lines.append((of, no_longer_saved(deleted)))
    if trial.best_checkpoint and trial.best_checkpoint != trial.checkpoint:
        lines.append(("best checkpoint", f"{trial.best_checkpoint.uri} (step {trial.best_checkpoint.step})"))
    if trial.log_path:
        lines.append(("log", trial.log_path))
    if trial.detail and not trial.waits_for:  # otherwise it is from an earlier time
        lines.append(("detail", trial.detail))
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        output.line(f"  {label.ljust(width)}  {text}")


def _earlier_end(end: EarlierEnd, study: StudyInfo) -> str:
    """The trial's result when it had ended: how it ended, with which values, and what was saved."""
    values = {one.metric: end.metrics.get(one.metric) for one in study.spec.objectives}
    if not study.spec.further_objectives:
        values = {study.spec.objective.metric: end.score}
    said = ", ".join(f"{name} {wording.number(value)}" for name, value in values.items())
    saved = f", checkpoint {end.checkpoint.uri} (step {end.checkpoint.step})" if end.checkpoint else ""
    return f"{wording.earlier_end(end)} with {said}{saved}"
