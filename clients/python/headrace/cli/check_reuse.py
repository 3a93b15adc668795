"""`headrace check --reuse`: may a process run several of a study's trials?"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.failure import USAGE, CommandError
from headrace.cli.output import Output
from headrace.spec import StudySpec
from headrace.spec.resources import Processes

if TYPE_CHECKING:  # the check needs PyTorch, which may not be installed
    from headrace.check import CheckReport, ReuseReport


def reuse_checked(
    script: Path, output: Output, wanted: tuple[str, ...], *, as_json: bool, **options: Any
) -> bool:
    """Runs the check with these options, and presents the outcome; returns whether it passed."""
    from headrace.check import render_reuse, run_reuse_check

    report = run_reuse_check(script, **options)
    if as_json:
        output.json({"passed": report.passed, "verdict": report.verdict.value, **asdict(report)})
    else:
        output.line(render_reuse(report))
    note_unreported(output, report, wanted)
    return report.passed


def note_unreported(output: Output, report: "CheckReport | ReuseReport", wanted: tuple[str, ...]) -> None:
    """Says which metrics of the study were not reported."""
    for metric in wanted:
        if metric not in report.metrics and metric not in (noise.what for noise in report.noise):
            output.note(
                f"{metric}, which the study needs, was not reported in these {report.steps} steps; reported: "
                f"{', '.join(report.metrics)}."
            )


def refuse_reuse_of(spec: StudySpec, file: Path) -> None:
    """Raises `CommandError` for a study whose processes cannot run several trials."""
    if spec.template is not None and spec.template.command is not None:
        raise CommandError(
            f"{file} runs a command, which starts a process of its own for each trial: only a callable's process can "
            "run several.",
            remedy="Name a function instead, `trial: {callable: module:function}`.",
            code=USAGE,
        )
    if spec.resources.processes is Processes.PER_SLOT:
        raise CommandError(
            f"{file} has `processes: per_slot`, and --reuse cannot check a gang of ranks yet.",
            remedy="Leave --reuse out, or give its trials a single process.",
            code=USAGE,
        )


def refuse_ranks(ranks: int) -> None:
    """Raises `CommandError` for more than one rank."""
    if ranks > 1:
        raise CommandError(
            f"--ranks {ranks}: --reuse cannot check a gang of ranks yet.",
            remedy="Leave --reuse or --ranks out.",
            code=USAGE,
        )
