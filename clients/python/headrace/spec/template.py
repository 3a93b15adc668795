"""What a trial runs: a Python callable, or a command line with placeholders."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from headrace.spec.code import HowShipped, requirements_problem
from headrace.spec.domains import SpecModel, Written
from headrace.spec.function import CALLABLE, MAIN, how_to_name, how_to_name_main
from headrace.spec.plan import TrialPlan
from headrace.spec.problems import Problem, Unknown, fault, reject
from headrace.spec.scalars import Duration, Text

_OPTION: Final = re.compile(r"--?[^\W\d][^={}]*")
"""An option whose value, if it takes one, is the next argument."""
_TOKEN: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
RESERVED: Final = ("trial", "seed")


class CommandLine(SpecModel):
    """A program and its arguments, never passed through a shell.

    `{name}` is replaced by a parameter's value, `{trial}` by the trial's number and `{seed}` by its seed; `{{`
    and `}}` are braces. An argument that names an inactive parameter is left out.
    """

    args: Annotated[tuple[Text, ...], Written("")]

    def fill(self, params: Mapping[str, bool | int | float | str], *, trial: int, seed: int) -> list[str]:
        """The arguments of one trial. Booleans are written as true and false."""
        known: dict[str, bool | int | float | str] = {**params, "trial": trial, "seed": seed}
        return [
            _TOKEN.sub(lambda token: _filled(token, known), arg)
            for arg in self.args
            if all(name in known for name in placeholders(arg))
        ]


def _no_function(value: object) -> object:
    if callable(value):
        raise fault("must be a text, for workers import the function by name", how_to_name(value))
    return value


class TrialTemplate(SpecModel):
    """What a trial runs, where, and how long it may go without a report. Exactly one of callable and command is
    set.
    """

    callable: Annotated[Text, BeforeValidator(_no_function)] | None = None
    command: CommandLine | None = None
    working_dir: Text
    env: dict[Text, Text] = Field(default_factory=dict)
    python: Text = ""
    grace: Annotated[Duration | None, Written("grace_s")] = None
    report_timeout: Annotated[Duration | None, Written("report_timeout_s")] = None
    timeout: Annotated[Duration | None, Written("trial_timeout_s")] = None
    """How long a trial may run, over all its attempts."""
    prestart: bool = True
    """Whether a standby process may import a callable's module before the trial is known."""
    reuse: bool = False
    """Whether a callable's process may run several trials, one after another."""
    plan: Annotated[TrialPlan | None, Written(None)] = None
    """The plan that the trials follow, in a study created by a transfer. The scheduler sets it."""
    code: HowShipped | None = None
    """How workers get the folder; None: depends on where the scheduler is."""
    requirements: Text = ""
    """A file in the folder that lists what workers install for the program; empty: nothing."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        problems = _program_problems(self)
        if not PurePosixPath(self.working_dir).is_absolute():
            problems.append(
                Problem(
                    loc=("working_dir",),
                    value=self.working_dir,
                    message="must be an absolute path",
                    remedy="Write the whole path, from /: every worker must find it.",
                )
            )
        if self.requirements and (said := requirements_problem(self.requirements)):
            remedy = "Name a file of the folder, such as requirements.txt or uv.lock."
            problems.append(
                Problem(loc=("requirements",), value=self.requirements, message=said, remedy=remedy)
            )
        for name in self.env:
            if not name or "=" in name or name.startswith("HEADRACE_"):
                problems.append(
                    Problem(
                        loc=("env", name),
                        message="cannot be set for a trial",
                        remedy="Choose a name without =, and not one of Headrace's own HEADRACE_ names.",
                    )
                )
        if self.reuse and self.command is not None:
            problems.append(
                Problem(
                    loc=("reuse",),
                    value=True,
                    message="applies to a callable: a command starts its own process",
                    remedy="Leave it out, or name a function with callable: module:function.",
                )
            )
        if self.report_timeout is not None and not self.report_timeout:
            problems.append(
                Problem(
                    loc=("report_timeout",),
                    value=0,
                    message="must be above 0",
                    remedy="Leave it out to wait for reports for ever.",
                )
            )
        if self.timeout is not None and not self.timeout:
            problems.append(
                Problem(
                    loc=("timeout",),
                    value=0,
                    message="must be above 0",
                    remedy="Leave it out to let trials run for as long as they take.",
                )
            )
        reject(problems)
        return self


def placeholders(arg: str) -> list[str]:
    """The names in braces in one argument."""
    return [token[1] for token in _TOKEN.finditer(arg) if token[1] is not None]


def placeholder_problems(
    template: TrialTemplate, declared: Collection[str], conditional: Collection[str]
) -> Iterator[Problem]:
    """Problems: placeholders that name no parameter, parameters that a command could not name, and conditional
    parameters whose argument cannot be left out by itself.
    """
    if template.command is None:
        return
    for name in declared:
        if name in RESERVED:
            yield Problem(
                loc=("space", name),
                message=f"has the name of the placeholder {{{name}}}, so the command could not tell them apart",
                remedy="Rename the parameter.",
            )
    known = dict.fromkeys((*declared, *RESERVED))
    for index, arg in enumerate(template.command.args):
        for name in placeholders(arg):
            if name not in known:
                yield Problem(
                    loc=("template", "command", "args", index),
                    value=arg,
                    message=f"names `{name}`, which is no parameter",
                    unknown=Unknown(word=name, known=known, noun="placeholder"),
                )
            elif name in conditional and (problem := _left_alone(template.command.args, index, name)):
                yield problem


def _left_alone(args: Sequence[str], index: int, name: str) -> Problem | None:
    """The option that would remain if the argument of a conditional parameter is left out."""
    loc, arg = ("template", "command", "args", index), args[index]
    if index == 0:
        message = f"is the program, and is left out when {name} is inactive"
        return Problem(loc=loc, value=arg, message=message, remedy="Name a program that is always there.")
    option = args[index - 1]
    if not _OPTION.fullmatch(option):
        return None
    return Problem(
        loc=loc,
        value=arg,
        message=f"is left out when {name} is inactive, but {option} before it is not",
        remedy=f"Write both as one argument: {option}={arg}",
    )


def _program_problems(template: TrialTemplate) -> list[Problem]:
    match template.callable, template.command:
        case None, None:
            return [
                Problem(
                    loc=("callable",),
                    message="is required where there is no command",
                    remedy="Name the function that trains, as `module:function`.",
                )
            ]
        case str(), CommandLine():
            return [
                Problem(
                    loc=("command",),
                    message="cannot be combined with callable",
                    remedy="Keep one: a trial runs one program.",
                )
            ]
        case str() as text, None:
            module, _, function = text.partition(":")
            if module.endswith(".py"):
                return [
                    Problem(
                        loc=("callable",),
                        value=text,
                        message="names a file instead of a module",
                        remedy=f"Did you mean `{module.removesuffix('.py').replace('/', '.')}:{function or 'train'}`?",
                    )
                ]
            if module == MAIN:
                return [
                    Problem(
                        loc=("callable",),
                        value=text,
                        message=f"names {MAIN}, which is another program in a trial: each is a process of its own",
                        remedy=how_to_name_main(function or "train"),
                    )
                ]
            if CALLABLE.fullmatch(text):
                return []
            return [
                Problem(
                    loc=("callable",),
                    value=text,
                    message="is not of the form `module:function`",
                    remedy="Write the module as Python imports it, a colon and the function, such as train:train.",
                )
            ]
        case _:
            return _command_problems(template)


def _command_problems(template: TrialTemplate) -> list[Problem]:
    args = template.command.args if template.command else ()
    problems: list[Problem] = []
    if not args or not args[0]:
        problems.append(
            Problem(
                loc=("command", "args"),
                message="is empty",
                remedy="Name the program and its arguments as a list.",
            )
        )
    for index, arg in enumerate(args):
        if any(token[0] in ("{", "}") for token in _TOKEN.finditer(arg)):
            problems.append(
                Problem(
                    loc=("command", "args", index),
                    value=arg,
                    message="has a brace without its partner",
                    remedy="Write {{ or }} for a brace that is no placeholder.",
                )
            )
    if template.python:
        problems.append(
            Problem(
                loc=("python",),
                value=template.python,
                message="has no meaning for a command",
                remedy="Remove it, or begin the command with the interpreter.",
            )
        )
    return problems


def _filled(token: re.Match[str], known: Mapping[str, bool | int | float | str]) -> str:
    if token[1] is None:
        return token[0][0]
    value = known[token[1]]
    return str(value).lower() if isinstance(value, bool) else str(value)
