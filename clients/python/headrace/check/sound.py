"""Whether a script can be checked at all: it runs without a pause, and reports."""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from headrace.check.report import plain
from headrace.check.snapshot import Control, SegmentResult
from headrace.check.source import parameters_read, unknown_parameters
from headrace.trial.configuration import NO_PARAMETER

_OWN: Final = "CheckFaultError: "


class CheckError(RuntimeError):
    """The script does not run, so there is nothing to compare."""

    def __init__(
        self, message: str, *, remedy: str = "Run the script by hand first; it has to work without a pause."
    ) -> None:
        super().__init__(message)
        self.remedy = remedy


def refuse_own_fault(result: SegmentResult, name: str) -> None:
    """Raises `CheckError` if the check itself failed in a process, which says nothing about the script."""
    kind, found, what = result.error.partition(_OWN)
    if found and kind in ("", "headrace.check.segment."):
        raise CheckError(
            f"`headrace check` failed while it inspected the script's variables: {what}\n{result.traceback}",
            remedy=f"This is a bug in the check: it says nothing about {name}. Please report it with the traceback.",
        )


def require_sound(
    result: SegmentResult,
    control: Control,
    reported: Collection[str],
    left_out: Collection[str],
    least: int = 2,
) -> None:
    """Raises `CheckError` if the straight run shows that there is nothing to compare.

    `reported` are its metrics, and `left_out` those that are not to be compared. It has to report `least` times.
    """
    name = Path(control.script).name
    if result.known_params:
        raise _unknown_parameter(control, result.known_params)
    if NO_PARAMETER in result.error:
        raise _parameters_missing(control)
    if result.error:
        raise CheckError(
            f"{name} fails by itself, without any pause: {result.error}\n{result.traceback}",
            remedy=f"Fix it; it has to work without a pause.{_or_its_study(control)}",
        )
    if not result.attached:
        raise CheckError(
            f"{name} never asks for a trial, and no function of it clearly takes one",
            remedy="End it with trial.main(train, defaults={...}, steps=...), call trial.current(), "
            "or name its function with --callable.",
        )
    if len(result.reports) < least:
        raise CheckError(
            f"{name} reported {len(result.reports)} {'time' if len(result.reports) == 1 else 'times'} "
            f"in its budget; a check needs {'two' if least > 1 else 'one'}",
            remedy="Call t.report(...) in the loop, and give the script a budget in which it reports "
            f"{'twice' if least > 1 else 'once'} or more"
            f"{'' if control.max_steps is not None else '; a study file has one'}.",
        )
    unknown = sorted(set(left_out) - set(reported))
    if unknown or (left_out and set(left_out) == set(reported)):
        raise CheckError(
            f"{name} reports {', '.join(sorted(reported))}, and of these nothing would be compared"
            if not unknown
            else f"{name} does not report {', '.join(unknown)}, which it is to be checked without",
            remedy=f"Of --ignore-metric, give some of these, not all: {', '.join(sorted(reported))}.",
        )


def _or_its_study(control: Control) -> str:
    """A hint to check the study file, if a script is checked on its own."""
    if control.max_steps is not None:  # as a study file says
        return ""
    return (
        " Where it works as a study's trial, check the study file, which gives it parameters and steps: "
        "`headrace check STUDY.yaml`."
    )


def _unknown_parameter(control: Control, known: Collection[str]) -> CheckError:
    script = Path(control.script)
    name = unknown_parameters(script, control.params, known)[0]
    return CheckError(
        f"--param {name}={plain(control.params[name])} is no parameter of {script.name}, whose defaults are "
        f"{', '.join(known)}",
        remedy=f"Correct the name. If another file reads {name}, add it to `defaults` in {script.name}.",
    )


def _parameters_missing(control: Control) -> CheckError:
    name = Path(control.script).name
    read = parameters_read(Path(control.script))
    missing = [parameter for parameter in read if parameter not in control.params]
    options = " ".join(f"--param {parameter}=..." for parameter in missing) or "--param NAME=..."
    return CheckError(
        f"{name} reads parameters that have no value here: {', '.join(missing) or 'see its t.params'}",
        remedy=f"Give them, as in `headrace check {name} {options}`, or check the study file instead, "
        "which has them: `headrace check STUDY.yaml`.",
    )
