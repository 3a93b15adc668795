"""`headrace logs`: a trial's output.

The log is a file on the worker's machine. If that file can be read from here (one machine, or a shared folder),
it is printed and, with `-f`, followed until the trial is over. While a trial is in a bundle, that includes the
output of the bundle's process. Otherwise the scheduler reads it: from the worker while the trial runs, from the
store once an attempt is over. If that fails too, the command prints why, and the tail that the scheduler keeps
of a failed attempt.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from headrace.bundle_logs import LogReader
from headrace.cli.failure import FAILED, CommandError
from headrace.cli.output import Output
from headrace.cli.session import Session, StudyArgument, TrialArgument
from headrace.client.model import TrialInfo, TrialState
from headrace.client.sync import Trial
from headrace.errors import HeadraceError, StoreAwayError, WorkerAwayError
from headrace.lifetimes import since_of
from headrace.log_times import WHOLE, since_ms

POLL_S = 0.5


def logs(
    context: typer.Context,
    study: StudyArgument,
    trial: TrialArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the trial is over.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option("--tail", "-n", metavar="N", min=0, help="Print only the last N lines so far."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="Print only output since then: 10m or 2h ago, or a time such as 2026-01-31T12:00.",
        ),
    ] = None,
) -> None:
    """Print what a trial wrote to stdout and stderr.

    With --since, the output may start up to 5 seconds early, or a few percent of the requested time, and leaves
    out nothing later. A log is printed completely if the worker did not record when it was written.

    [bold]Examples[/bold]

    headrace logs digits 7

    headrace logs digits 7 -n 20 -f

    headrace logs digits 7 --since 10m
    """
    session = Session.of(context)
    called = datetime.now(UTC)
    within = since_of(since, "--since", called) if since is not None else None
    shown = _Shown(session.output, tail)
    with session.client() as client:
        handle = client.study(study).trial(trial)
        info = handle.info()
        if info.log_path is None and not follow:
            raise CommandError(
                f"Trial {trial} of study {study} has not run yet ({info.outcome}).",
                remedy="With -f, its log is printed as soon as it runs.",
            )
        if follow:
            info = _started(handle, info)
        path = Path(info.log_path) if info.log_path else None
        if path is None or not _readable(path):
            _from_service(handle, info, session.output, shown, within, follow=follow)
            shown.all_is_there()
            return
        reader = LogReader(path, since=None if within is None else since_ms(within, called.timestamp()))
        for chunk in reader.new():
            shown.raw(chunk)
        if not reader.timed:
            session.output.note(f"{path}: {WHOLE}.")
        if follow:
            shown.all_is_there()
            for chunk in _follow(handle, reader):
                shown.raw(chunk)
        shown.raw(reader.rest())
        shown.all_is_there()


class _Shown:
    """Prints a log: all of it, or the last lines of its current content."""

    def __init__(self, output: Output, tail: int | None) -> None:
        self._output = output
        self._tail = tail
        self._held = b""

    def raw(self, data: bytes) -> None:
        """Take the next part of the log."""
        if self._tail is None:
            self._output.raw(data)
            return
        self._held = _last(self._held + data, self._tail)

    def all_is_there(self) -> None:
        """Print the held lines; everything later is new."""
        held, self._held, self._tail = self._held, b"", None
        self._output.raw(held)


def _last(data: bytes, lines: int) -> bytes:
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :] if lines else b""


def _started(handle: Trial, info: TrialInfo) -> TrialInfo:
    while info.log_path is None and info.state is not TrialState.TERMINATED:
        time.sleep(POLL_S)
        info = handle.info()
    return info


def _readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return True
    except OSError:
        return False


def _follow(handle: Trial, reader: LogReader) -> Iterator[bytes]:
    """The log as it grows; read once more after the trial's end, for its last output."""
    last_asked, over = 0.0, False
    while True:
        yield from reader.new()
        if over:
            return
        if time.monotonic() - last_asked > 4 * POLL_S:
            last_asked = time.monotonic()
            over = handle.info().state is TrialState.TERMINATED
        if not over:
            time.sleep(POLL_S)


def _from_service(
    handle: Trial, info: TrialInfo, output: Output, shown: _Shown, within: timedelta | None, *, follow: bool
) -> None:
    cursor, told = "", ""
    while True:
        try:
            part = handle.read_log(cursor, within=within)
        except HeadraceError as error:
            if not follow or not isinstance(error, StoreAwayError | WorkerAwayError):
                _instead(info, output, error, begun=bool(cursor))
                return
            if error.message != told:
                told = error.message
                output.note(f"{error} Trying again until the trial is over.")
            if handle.info().state is TrialState.TERMINATED:
                return
            time.sleep(4 * POLL_S)
            continue
        cursor = part.cursor
        for note in part.notes:
            output.note(note)
        shown.raw(part.data)
        if part.complete or (not part.data and not follow):
            return
        if not part.data:
            shown.all_is_there()
            time.sleep(2 * POLL_S)


def _instead(info: TrialInfo, output: Output, error: HeadraceError, *, begun: bool) -> None:
    """Print what remains if the log cannot be read, and why it cannot."""
    if begun:
        raise error
    if info.log_tail:
        output.raw(info.log_tail.rstrip("\n").encode() + b"\n")
    else:
        output.note("The scheduler keeps the end of a log only for attempts that failed.")
    machine = f"of worker {info.last_worker}" if info.last_worker else "of the worker that ran it last"
    output.note(f"The log itself cannot be read from here: it is {info.log_path} on the machine {machine}.")
    output.note(str(error))
    if not info.log_tail:
        raise typer.Exit(FAILED)
