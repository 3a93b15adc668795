"""`headrace check`: does pausing and resuming change what a script computes?

The proof itself is in `headrace.check`. This module has its options, a study file as another way to name the
script, and its outcome as text, JSON and exit code.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import wording
from headrace.cli.check_reuse import note_unreported, refuse_ranks, refuse_reuse_of, reuse_checked
from headrace.cli.check_study import program_of, require_known, say_undecided, ships_to
from headrace.cli.failure import FAILED, USAGE, CommandError
from headrace.cli.output import Output
from headrace.cli.session import AsJson, Session
from headrace.client.missing import MissingExtraError
from headrace.client.model import Value
from headrace.commands import Program
from headrace.spec import load_study_file
from headrace.spec.configuration import configuration_of, mutations_of, other_configuration_of
from headrace.spec.resources import Processes
from headrace.spec.yaml import read_yaml


def check(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT",
            help="A training script (also train.py:function), or a study file (.yaml).",
            show_default=False,
        ),
    ],
    steps: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="How many steps each run reports, with a restore after each.",
            show_default="the whole budget, within the time limit",
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="The check ends after this time, and says what it did not cover. By default it plans for 60 seconds "
            "without --steps, but takes longer for three steps and for the restores after the first step, before the "
            "end and at the end. With --reuse the limit is approximate.",
            show_default=False,
        ),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(
            "--callable",
            metavar="FUNCTION",
            help="The function that trains, if the script has several and does not call trial.main itself. "
            "With a study file: a different function of its module.",
            show_default=False,
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A parameter's value. Repeat the option for more parameters. The name must be in the "
            "study's space; for a script, in its `defaults`, or quoted in its text, as in t.params.get('width', 32). "
            "A script without defaults takes any name.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many processes train together, as with `processes: per_slot`. A study file gives its slots.",
            show_default="1",
        ),
    ] = None,
    ignored: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore-metric",
            metavar="NAME",
            help="Do not compare this metric, such as a duration, which differs in every run. Repeat the "
            "option for more.",
            show_default=False,
        ),
    ] = None,
    reuse: Annotated[
        bool,
        typer.Option(
            "--reuse",
            help="Check `trial: {reuse: true}` instead: whether a trial computes the same after another one in its "
            "process.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that pausing and resuming does not change what a script computes, or name what is missing.

    A study whose trials run a command is checked if the command is a Python script or module with arguments, filled
    in with the configuration. For any other command, such as a shell or torchrun, the result is UNDECIDED.

    A study file also provides the configuration to train: its baseline, else the first of `enqueue`, else a
    random one from its space. If `headrace run` would ship the code, with `code: ship`
    or because of the address, each process runs in a fresh copy of what is shipped, as on a worker.

    Trains without a pause, then again with saves and restores in new processes, and compares every bit, and where and
    how the script ends. Without --steps it covers the whole budget, or lists the steps and pauses that the time limit
    left out. In a population (policy pbt), each parameter that mutates must also have an effect.
    Exits with 0 if all of this holds (PASSED), even if it had no time for restores that nothing suggests are at risk
    (PASSED IN PART). Exits with 1 if something does not hold (FAILED), or if it had no time for the end, for a pause of
    the study, or for steps that may read a variable that a pause loses (UNDECIDED).

    With --reuse it runs a trial after another one in the same process, and alone in a new one, and compares every bit.
    Exits with 0 if they are equal and the process would take further trials, and with 1 if they differ (FAILED), if
    the process would end after each trial (NO GAIN), or if the script is not deterministic (UNDECIDED).

    [bold]Examples[/bold]

    headrace check train.py

    headrace check study.yaml --steps 4

    headrace check train.py --callable train --param lr=0.01 --param width=32

    headrace check train.py --ranks 2

    headrace check study.yaml --reuse
    """
    session = Session.of(context)
    length = _Length(steps=steps, time_limit_s=time_limit, ignored=tuple(ignored or ()), reuse=reuse)
    if not _checked(script, length, function, param, ranks, session, as_json=as_json):
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Length:
    """The limits on what is run and compared."""

    steps: int | None
    time_limit_s: float | None
    ignored: tuple[str, ...]
    # Whether to check the reuse of processes, not pauses.
    reuse: bool


def _checked(
    script: Path,
    length: _Length,
    function: str | None,
    param: list[str] | None,
    ranks: int | None,
    session: Session,
    *,
    as_json: bool,
) -> bool:
    output = session.output
    path, colon, named = str(script).rpartition(":")
    if colon and path and function is None and not script.exists():  # as written in a study file
        script, function = Path(path), named
    given = dict(_param(text) for text in param or ())
    values, max_steps, mutations, world, folder = given, None, {}, 1, None
    command: Program | None = None
    env: dict[str, str] = {}
    wanted: tuple[str, ...] = ()
    rungs: tuple[int, ...] = ()
    pauses = is_shipped = False
    first: dict[str, Value] | None = None
    if script.suffix in (".yaml", ".yml"):
        spec = load_study_file(script).spec
        if spec.max_steps == 1 and not length.reuse:
            raise CommandError(
                f"each trial of {script} has a single step, so no trial is ever paused: there is nothing to check.",
                remedy="Give the study 2 `steps` or more, or check the script itself: `headrace check SCRIPT`.",
            )
        wanted = spec.metrics
        file = script
        values, origin = configuration_of(spec, given)
        require_known(given, values, spec, file)
        if length.reuse:
            refuse_reuse_of(spec, file)
            first = other_configuration_of(spec, values)
        program = program_of(spec, file, values, function)
        if isinstance(program, str):
            say_undecided(output, file.name, program, as_json=as_json)
            return False
        folder = Path(spec.template.working_dir) if spec.template is not None else None
        env = dict(spec.template.env) if spec.template is not None else {}
        if isinstance(program, Program):
            command, script = program, program.script
        else:
            script, named = program
            function = function or named
            if length.reuse and spec.template is not None:
                function = f"{(spec.template.callable or '').partition(':')[0]}:{function}"
        if is_shipped := ships_to(spec, session.address):
            output.note("each process runs in a fresh copy of what is shipped, as on a worker")
        rungs, pauses = spec.due_rungs(0)[:-1], spec.pauses
        max_steps, mutations = spec.max_steps, mutations_of(spec, values)
        world = spec.resources.of(values).slots if spec.resources.processes is Processes.PER_SLOT else 1
        if spec.fuse is not None:
            output.note(
                "one member is checked, alone: the number of members in a bundle may change the last bits "
                "of results, unless sizes are multiples of 16 or the engine is separate"
            )
        output.note(f"configuration: {wording.params(values)} ({origin})")
    return _run(
        script,
        length,
        function,
        values,
        max_steps,
        rungs,
        ranks or world,
        mutations,
        folder,
        wanted,
        output,
        command=command,
        env=env,
        pauses=pauses,
        is_shipped=is_shipped,
        first=first,
        as_json=as_json,
    )


def _run(
    script: Path,
    length: _Length,
    function: str | None,
    values: dict[str, Value],
    max_steps: int | None,
    rungs: tuple[int, ...],
    ranks: int,
    mutations: dict[str, dict[str, Value]],
    folder: Path | None,
    wanted: tuple[str, ...],
    output: Output,
    *,
    command: Program | None,
    env: dict[str, str],
    pauses: bool,
    is_shipped: bool,
    first: dict[str, Value] | None,
    as_json: bool,
) -> bool:
    if asked := [name for name in length.ignored if name in wanted]:
        raise CommandError(
            f"--ignore-metric {asked[0]}: the study uses this metric, so it has to be compared.",
            remedy="Leave the option out, or check the script on its own.",
            code=USAGE,
        )
    try:
        from headrace.check import LIMIT_S, CheckError, render, run_check
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("`headrace check`", "torch", error.name) from None

    def progress(what: str, done: int, total: int) -> None:
        output.note(f"{what} ({done}/{total})" if total else what)

    limit_s = LIMIT_S if length.time_limit_s is None else length.time_limit_s
    try:
        if length.reuse:
            refuse_ranks(ranks)
            return reuse_checked(
                script,
                output,
                wanted,
                as_json=as_json,
                first_params=first,
                steps=length.steps,
                limit_s=limit_s,
                params=values,
                callable=function,
                max_steps=max_steps,
                objectives=wanted,
                ignored=length.ignored,
                folder=folder,
                ships=is_shipped,
                env=env,
                progress=progress,
            )
        report = run_check(
            script,
            steps=length.steps,
            limit_s=limit_s,
            stop_s=length.time_limit_s,
            params=values,
            callable=function,
            max_steps=max_steps,
            rungs=rungs,
            pauses=pauses,
            ranks=ranks,
            mutations=mutations,
            objectives=wanted,
            ignored=length.ignored,
            folder=folder,
            ships=is_shipped,
            arguments=command.arguments if command is not None else None,
            module=command.module if command is not None else "",
            env=env,
            progress=progress,
        )
    except CheckError as error:
        said = str(error).rstrip()
        stop = "" if "\n" in said else "."  # after a traceback or a log, it would be on a line by itself
        raise CommandError(f"{script} cannot be checked: {said}{stop}", remedy=error.remedy) from None
    if as_json:
        output.json({"passed": report.passed, "verdict": report.verdict.value, **asdict(report)})
    else:
        output.line(render(report))
    note_unreported(output, report, wanted)
    return report.passed


def _param(text: str) -> tuple[str, Value]:
    name, equals, written = text.partition("=")
    value, _ = read_yaml(written, f"--param {name}") if equals else (None, ())
    if isinstance(value, bool | int | float | str):
        return name, value
    raise CommandError(
        f"--param {text} is not NAME=VALUE.",
        remedy="Write it as in --param lr=0.01; an empty text is --param NAME='\"\"'.",
        code=USAGE,
    )
