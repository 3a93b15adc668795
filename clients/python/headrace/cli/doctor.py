"""`headrace doctor`: is everything in place, and if not, what to do about it.

Each check is a function that returns findings. None of them changes anything except a temporary file.
"""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.text import Text

from headrace import logins
from headrace.cli import certificates, machine_gpus, packages, wording
from headrace.cli.failure import FAILED
from headrace.cli.finding import Finding, Level
from headrace.cli.session import AsJson, Session
from headrace.client import Client, Planner, ServerInfo, Worker
from headrace.client.identities import WhoIs
from headrace.environment import NAMED_IN, names_to_pass, select
from headrace.errors import HeadraceError, InternalError, InvalidFieldError
from headrace.home import home_dir, is_on_this_machine
from headrace.target import Target

LOW_DISK_BYTES = 5 * 2**30
NO_DISK_BYTES = 2**28
MOST_NAMES = 12
SOON = timedelta(days=7)
MOST_DUE = 10_000
"""How many entries may be due for deletion at once: the scheduler deletes them in some minutes."""


def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check this installation, the scheduler, the workers, the GPUs and the disk; exit with 1 if anything fails."""
    session = Session.of(context)
    findings = list(_findings(session))
    if as_json:
        session.output.json([asdict(finding) for finding in findings])
    else:
        styles = {Level.OK: "blue", Level.WARN: "yellow", Level.FAIL: "bold magenta"}
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            session.output.line(
                Text.assemble(
                    (f"{finding.level.value:<5}", styles[finding.level]),
                    f"{finding.what.ljust(width)}  {finding.text}",
                )
            )
            if finding.remedy:
                session.output.line(Text(f"{' ' * (7 + width)}→ {finding.remedy}", style="dim"))
    if any(finding.level is Level.FAIL for finding in findings):
        raise typer.Exit(FAILED)


def _findings(session: Session) -> Iterator[Finding]:
    yield _python()
    yield from _packages()
    yield from _service(session)
    yield from _planner()
    yield from machine_gpus.findings()
    yield _environment()
    yield _environments()
    yield from _home()


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding(Level.OK, "Python", f"{found} ({sys.executable})")


def _packages() -> Iterator[Finding]:
    required = packages.required()
    listed = dict.fromkeys(name for extra in ("", *packages.EXTRAS) for name in required[extra])
    found = packages.present(list(listed))
    yield Finding(Level.OK, "packages", ", ".join(f"{name} {version}" for name, version in found.items()))
    if absent := packages.missing(required[""]):
        yield Finding(Level.FAIL, "packages", f"missing: {', '.join(absent)}", "pip install headrace")
    for extra in packages.EXTRAS:
        if absent := packages.missing(required[extra]):
            yield Finding(
                Level.WARN,
                f"extra {extra}",
                f"not installed ({', '.join(absent)})",
                f"If this machine needs it: pip install 'headrace[{extra}]'",
            )


def _service(session: Session) -> Iterator[Finding]:
    try:
        with Client(session.address, timeout_s=3.0, connect_timeout_s=1.5) as client:
            where = client.address
            who = _who(client)
            workers = client.workers()
            info = _server_info(client)
            kept = _kept(client)
    except HeadraceError as error:
        yield Finding(Level.FAIL, "scheduler", error.message, error.remedy)
        return
    yield Finding(Level.OK, "scheduler", f"answers at {where}")
    if who is not None:
        yield _identity(who, where)
    if info is not None:
        yield from _upkeep(info, workers)
    yield kept
    yield from _certificates(session, workers)
    connected = [worker for worker in workers if worker.connected]
    slots = sum(len(worker.slots) for worker in connected)
    if slots:
        busy = sum(
            slot.trial is not None or slot.elsewhere > 0 for worker in connected for slot in worker.slots
        )
        text = f"{len(connected)} connected, {wording.plural(slots, 'slot')}, {busy} of them busy"
        yield Finding(Level.OK, "workers", text)
    else:
        text = f"none connected ({wording.plural(len(workers), 'worker')} known), so trials wait"
        yield Finding(Level.WARN, "workers", text, "headrace worker --scheduler HOST:PORT")
    yield from _kept_off(connected)
    for worker in connected:
        if worker.trouble.startswith("studies/"):  # it is preparing a trial's program
            yield Finding(Level.OK, f"worker {worker.name}", worker.trouble)
        elif worker.trouble:
            yield Finding(
                Level.FAIL,
                f"worker {worker.name}",
                f"waits: {worker.trouble}",
                "Fix the cause (free space on that disk, mount the store, or let it reach a scheduler); "
                "the worker then continues.",
            )
    for worker in workers:
        if worker.rejected:
            yield Finding(
                Level.WARN,
                f"worker {worker.name}",
                f"has rejected messages: {worker.rejected}",
                "Read them, fix what sent them (headrace why STUDY TRIAL), then delete the files.",
            )


def _who(client: Client) -> WhoIs | None:
    """Who this user is to the scheduler; None if the scheduler is too old to say."""
    try:
        return client.who_am_i()
    except InternalError:
        return None


def _identity(who: WhoIs, where: str) -> Finding:
    if (mode := logins.others_may_read()) is not None:
        path = home_dir() / logins.FILE
        text = f"{path} holds a token, and other users can read it (mode {mode:04o})"
        return Finding(Level.WARN, "identity", text, f"chmod 600 {path}, and have the token revoked.")
    if who.token is None:
        text = "no token is required: anyone who can reach the scheduler is an admin"
        if is_on_this_machine(where):
            return Finding(Level.OK, "identity", text)
        return Finding(Level.WARN, "identity", text, "Start it with --tls-cert, --tls-key and --auth tokens.")
    text = f"{who.role} of project {who.project} (token {who.token.id})"
    ends = who.token.expire_time
    if ends is not None and ends - datetime.now(UTC) < SOON:
        text += f", which expires at {ends.astimezone():%Y-%m-%d %H:%M}"
        return Finding(Level.WARN, "identity", text, "Ask an admin of the project for another token.")
    return Finding(Level.OK, "identity", text)


def _certificates(session: Session, workers: Sequence[Worker]) -> Iterator[Finding]:
    end = certificates.server_end(Target.of_user(session.address))
    if end is not None:
        soon = end - datetime.now(UTC) < certificates.SERVER_SOON
        yield Finding(
            Level.WARN if soon else Level.OK,
            "scheduler",
            f"its certificate {certificates.in_words(end)}",
            "Issue a new one (`headrace ca server`), and restart the schedulers." if soon else "",
        )
    for worker in certificates.ended(workers):
        yield Finding(
            Level.WARN,
            f"worker {worker.name}",
            "its certificate has expired, so it cannot connect",
            f"To let it join again: `headrace worker-token create --worker {worker.name}`.",
        )
    if (first := certificates.first_end(workers)) is not None:
        yield Finding(Level.OK, "certificates", f"of the workers: the first {certificates.in_words(first)}")


def _kept_off(connected: Iterable[Worker]) -> Iterator[Finding]:
    """Workers and devices that get no trials."""
    for worker in connected:
        what = f"worker {worker.name}"
        if worker.draining:
            left = f"{wording.plural(len(worker.trials), 'trial')} to leave"
            text = f"is draining ({left}) and gets no trials: {worker.draining}"
            yield Finding(Level.WARN, what, text, f"headrace undrain {worker.name}")
        if worker.cordoned:
            text = f"gets no trials, it is cordoned: {worker.cordoned}"
            yield Finding(Level.WARN, what, text, f"headrace uncordon {worker.name}")
        if why := wording.suspended(worker):
            remedy = "Fix the cause and restart the worker, or wait: it is tried again automatically."
            yield Finding(Level.WARN, what, why, remedy)
        for slot in worker.slots:
            if slot.defect:
                text = f"slot {slot.index} ({slot.device}) gets no trials, its device failed: {slot.defect}"
                remedy = f"Reset or replace the device, then: headrace uncordon {worker.name} --device {slot.index}"
                yield Finding(Level.WARN, what, text, remedy)
        for cordon in worker.cordons:
            if not cordon.quarantined:
                text = f"slot {cordon.device} gets no trials, it is cordoned: {cordon.reason or 'no reason given'}"
                remedy = f"headrace uncordon {worker.name} --device {cordon.device}"
                yield Finding(Level.WARN, what, text, remedy)


def _server_info(client: Client) -> ServerInfo | None:
    try:
        return client.server_info()
    except HeadraceError:  # a scheduler of an older release
        return None


def _upkeep(info: ServerInfo, workers: Sequence[Worker]) -> Iterator[Finding]:
    """Whether releases and schema match, and where metrics are served."""
    ours = version("headrace")
    if info.version != ours:
        yield Finding(
            Level.WARN,
            "release",
            f"the scheduler runs {info.version or 'an unknown version'}, and this command line is {ours}",
            "They may differ during an upgrade. Afterwards, install the same version on both.",
        )
    if info.database_schema == info.program_schema:
        yield Finding(Level.OK, "schema", f"{info.database_schema}, as the scheduler expects")
    else:
        yield Finding(
            Level.WARN,
            "schema",
            f"the database has {info.database_schema}, and the scheduler expects {info.program_schema}",
            "Finish the upgrade: `headrace migrate --check` says which replicas are older.",
        )
    yield Finding(
        Level.OK,
        "metrics",
        f"served at http://{info.metrics}/metrics"
        if info.metrics
        else "off; start the scheduler with --metrics-listen HOST:PORT to serve them",
    )
    others = sorted({one.version for one in workers if one.connected and one.version != info.version})
    if others:
        yield Finding(
            Level.WARN,
            "releases",
            f"connected workers run {', '.join(others)}, and the scheduler {info.version}",
            "Mixed versions are meant for upgrades only; update the older ones.",
        )


def _kept(client: Client) -> Finding:
    """How large the scheduler's database is, and whether due data is being deleted."""
    try:
        upkeep = client.upkeep()
    except HeadraceError as error:  # an older scheduler does not know the call
        return Finding(Level.WARN, "database", f"its size is not known: {error.message}")
    most = ", ".join(f"{one.table} {wording.size(one.size_bytes)}" for one in upkeep.tables[:2])
    size = f"{wording.size(upkeep.size_bytes)} ({most})"
    text = size if upkeep.tables else "only admins of the project 'default' see its size"
    if upkeep.due > MOST_DUE:
        due = ", ".join(f"{one.due} {one.kind}" for one in upkeep.kinds if one.due)
        return Finding(
            Level.WARN,
            "database",
            f"{text}; due to be deleted: {due}",
            "The scheduler deletes it within minutes. If this persists, its log says why.",
        )
    return Finding(Level.OK, "database", text)


def _planner() -> Iterator[Finding]:
    """Checks the planner that `HEADRACE_PLANNER` names, with a small question; nothing if none is named."""
    where = os.environ.get("HEADRACE_PLANNER")
    if not where:
        return
    alone = dict.fromkeys(("data", "tensor", "optimizer", "pipeline", "micro_batches", "expert"), 1)
    try:
        with Planner(where, timeout_s=3.0) as planner:
            planner.simulate("gpt3-125m", "a100-1", alone, batch=1)
    except HeadraceError as error:
        yield Finding(Level.FAIL, "planner", error.message, error.remedy)
        return
    yield Finding(Level.OK, "planner", f"plans at {where}")


def _environment() -> Finding:
    """Which variables of this environment are passed to trials by a worker that is started from here."""
    try:
        selection = select(os.environ, names_to_pass(os.environ.get(NAMED_IN), field=NAMED_IN))
    except InvalidFieldError as error:
        return Finding(Level.FAIL, "environment", str(error), f"Correct {NAMED_IN}.")
    count = wording.plural(len(selection.withheld), "variable")
    names = ", ".join(selection.withheld[:MOST_NAMES]) + (
        ", …" if len(selection.withheld) > MOST_NAMES else ""
    )
    text = f"a worker started here withholds {count} from its trials" + (f": {names}" * bool(names))
    return Finding(Level.OK, "environment", text)


def _environments() -> Finding:
    """Whether a worker that is started from here can install a study's requirements."""
    uv = shutil.which("uv")
    if uv is not None:
        return Finding(Level.OK, "requirements", f"a worker here installs them with {uv}")
    if any(find_spec(module) for module in ("pip", "ensurepip")) and find_spec("venv"):
        return Finding(
            Level.OK, "requirements", "a worker here installs them with venv and pip; uv.lock needs uv"
        )
    return Finding(
        Level.WARN,
        "requirements",
        "a worker here cannot install a study's `requirements`: this Python has neither pip nor ensurepip",
        "Install uv, or the package python3-venv.",
    )


def _home() -> Iterator[Finding]:
    home = home_dir()
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    yield _writable(home, existing)
    if existing == home and (mode := stat.S_IMODE(home.stat().st_mode)) & 0o077:
        yield Finding(
            Level.WARN,
            "home",
            f"{home} is open to other users (mode {mode:04o})",
            f"Unless they need to read it: chmod 700 {home}",
        )
    free = shutil.disk_usage(existing).free
    text = f"{wording.size(free)} free in {existing}"
    if free < NO_DISK_BYTES:
        yield Finding(Level.FAIL, "disk", text, "Free some space, or set HEADRACE_HOME to a larger disk.")
    elif free < LOW_DISK_BYTES:
        yield Finding(
            Level.WARN, "disk", text, "Checkpoints may need more; set HEADRACE_HOME to a larger disk."
        )
    else:
        yield Finding(Level.OK, "disk", text)


def _writable(home: Path, existing: Path) -> Finding:
    try:
        if not existing.is_dir():
            raise NotADirectoryError(20, "is not a folder")
        with tempfile.NamedTemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Finding(
            Level.FAIL,
            "home",
            f"{home} cannot be written ({error.strerror})",
            "Set HEADRACE_HOME to a folder that you can write.",
        )
    named = " (HEADRACE_HOME)" if os.environ.get("HEADRACE_HOME") else ""
    return Finding(Level.OK, "home", f"{home}{named}")
