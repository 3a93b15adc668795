"""The program that `headrace check` runs for a study file."""

import shlex
from pathlib import Path
from typing import Final

from headrace import logins
from headrace.cli import wording
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.output import Output
from headrace.client.model import Value
from headrace.client.shipping import ships
from headrace.commands import Program, python_program
from headrace.home import DEFAULT_ADDRESS, NotRunningError, StartingError, address
from headrace.spec import StudySpec

_OPAQUE_REMEDY: Final = (
    "write the command as `python SCRIPT ...` or `python -m MODULE ...`, with `resources: {processes: per_slot}` in "
    "place of torchrun, so that Headrace starts the ranks itself; or check the script alone: `headrace check SCRIPT`"
)


def ships_to(spec: StudySpec, given: str | None) -> bool:
    """Whether `headrace run` would ship the folder; `given` is the value of --address."""
    login = logins.kept()
    try:
        to = address(given, login=login.address if login else None)
    except (NotRunningError, StartingError):  # of `headrace up`, on this machine
        to = DEFAULT_ADDRESS
    return spec.template is not None and ships(spec.template, to, None)


def program_of(
    spec: StudySpec, file: Path, values: dict[str, Value], function: str | None
) -> tuple[Path, str] | Program | str:
    """The script of a study file and its function; for a command, its program, or why that cannot be inspected."""
    template = spec.template
    if template is None:
        raise CommandError(
            f"{file} names no program: its trials run by ask and tell, so Headrace never pauses them.",
            remedy="Give the training script instead.",
            code=USAGE,
        )
    folder = Path(template.working_dir)
    if template.callable is not None:
        module, _, named = template.callable.partition(":")
        return folder.joinpath(*module.split(".")).with_suffix(".py"), named
    args = template.command.fill(values, trial=0, seed=0) if template.command is not None else []
    if function is not None:
        raise CommandError(
            f"--callable {function}: {file} runs a command, which calls its functions itself.",
            remedy="Leave the option out, or check the script: `headrace check SCRIPT --callable FUNCTION`.",
            code=USAGE,
        )
    program = python_program(args, folder)
    return program if isinstance(program, Program) else f"`{shlex.join(args)}`: {program}"


def say_undecided(output: Output, name: str, why: str, *, as_json: bool) -> None:
    """Say that nothing was run, because the check could not see what a pause loses."""
    if as_json:
        output.json({"passed": False, "verdict": "undecided", "reason": why, "remedy": _OPAQUE_REMEDY})
        return
    output.line(f"UNDECIDED  {name}: check cannot inspect its command, so nothing was run")
    output.line(f"        {why}")
    output.line(
        "        NOT COVERED: whether a pause changes anything: check sees only the Python process that it starts"
    )
    output.line(f"     remedy: {_OPAQUE_REMEDY}")


def require_known(given: dict[str, Value], values: dict[str, Value], spec: StudySpec, file: Path) -> None:
    """Raises `CommandError` for a parameter that is not in the study's space, or not in the configuration `values`."""
    deciding = {one.parameter for domain in spec.space.values() for one in domain.conditions}
    for name, value in given.items():
        if name in spec.space and name not in values:
            parents = {one.parameter for one in spec.space[name].conditions} & values.keys()
            with_them = (
                wording.params({one: values[one] for one in spec.space if one in parents}) or "these values"
            )
            raise CommandError(
                f"--param {wording.params({name: value})}: {name} does not exist with {with_them}.",
                remedy="Leave it out, or also give values with which it exists.",
                code=USAGE,
            )
        if name in deciding and spec.space[name].admit(value) is None:
            raise CommandError(
                f"--param {wording.params({name: value})}: which parameters exist depends on {name}, which never has "
                "this value.",
                remedy=f"It is {spec.space[name].describe()}.",
                code=USAGE,
            )
        if name not in spec.space:
            raise CommandError(
                f"--param {wording.params({name: value})}: the space of {file} has no parameter {name}.",
                remedy=f"It has {', '.join(spec.space)}.",
                code=USAGE,
            )
