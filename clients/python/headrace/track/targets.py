"""What `--to` names: a tool, and where it is. Everything is checked here, before anything is written."""

import fcntl
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from headrace.client.missing import require
from headrace.client.model import StudyInfo
from headrace.errors import HeadraceError, InvalidFieldError, Violation
from headrace.hidden import hide_from_command_line
from headrace.home import append_private, home_dir
from headrace.track.exporter import Target
from headrace.track.redaction import redacted
from headrace.track.tracker import RunsSink, Say, Sink, Start, Tool
from headrace.track.webhook import WebhookTarget, secret_of

SECRET_ENV: Final = "HEADRACE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
URL_ENV: Final = "HEADRACE_WEBHOOK_URL"
TOOLS: Final = ("mlflow", "wandb", "tensorboard", "webhook")
_VARIABLES: Final = {"mlflow": "MLFLOW_TRACKING_URI", "webhook": URL_ENV}
_MLFLOW: Final = "Write mlflow=http://HOST:PORT, or set MLFLOW_TRACKING_URI."
_WEBHOOK: Final = f"Write webhook=https://HOST/PATH, or set {URL_ENV}."
_REMEDY: Final = "Write TOOL or TOOL=WHERE: mlflow=URI, wandb=FOLDER, tensorboard=FOLDER or webhook=URL."


class TargetInUseError(HeadraceError):
    """Another exporter writes there."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A value of `--to`, checked: the tool, and where it is."""

    tool: str
    where: str

    def arguments(self) -> tuple[str, dict[str, str]]:
        """The value and the environment variables for another process. Addresses are passed as variables, because a
        URL may contain a password or a key.
        """
        variable = _VARIABLES.get(self.tool)
        return (self.tool, {variable: self.where}) if variable else (f"{self.tool}={self.where}", {})

    def hide(self) -> None:
        """Hides an address on this process's command line."""
        if self.tool in _VARIABLES:
            hide_from_command_line(self.where)


@dataclass(frozen=True, slots=True)
class RunsTarget:
    """A tool as a target."""

    tool: Tool
    console: str | None = None
    """The console's address."""

    @property
    def title(self) -> str:
        """For people."""
        return self.tool.title

    def open(self, study: StudyInfo, say: Say, start: Start) -> Sink:
        """The sink of a study."""
        pages = f"{self.console}/studies/{study.name}/trials/" if self.console else ""
        return RunsSink(self.tool.open(study, say, start), pages)


def parse(text: str, env: Mapping[str, str], field: str = "--to") -> Destination:
    """Reads `TOOL` or `TOOL=WHERE`; checks that the tool's extra is installed. Raises InvalidFieldError and
    MissingExtraError.
    """
    name, _, given = (part.strip() for part in text.partition("="))
    where = given or env.get(_VARIABLES.get(name, ""), "")
    match name:
        case "mlflow":
            _check_mlflow(where, field)
        case "wandb":
            where = str(Path(given or env.get("WANDB_DIR", "") or ".").expanduser().absolute())
        case "tensorboard":
            where = str(Path(given or "runs").expanduser().absolute())
        case "webhook":
            _check_webhook(where, field)
            secret_of(env.get(SECRET_ENV, ""))
        case _:
            raise _invalid(field, redacted(text), f"names no tool: those are {', '.join(TOOLS)}", _REMEDY)
    if name != "webhook":
        require(f"`headrace track --to {name}`", name, name)
    return Destination(name, where)


def target_of(destination: Destination, env: Mapping[str, str], console: str | None = None) -> Target:
    """The target, with its tool's library imported; its runs link to pages of the console at this address. Raises
    InvalidFieldError if the library rejects the address.
    """
    where = destination.where
    match destination.tool:
        case "mlflow":
            from headrace.track.mlflow_client import UnusableUriError  # an extra
            from headrace.track.mlflow_runs import MlflowTool  # an extra

            try:
                return RunsTarget(MlflowTool(where), console)
            except UnusableUriError as error:
                shown = redacted(where)
                raise _invalid(
                    "--to", shown, f"MLflow cannot use this URI: {error.message}", _MLFLOW
                ) from None
        case "wandb":
            from headrace.track.wandb_folders import WandbTool  # an extra

            return RunsTarget(WandbTool(Path(where)), console)
        case "tensorboard":
            from headrace.track.tensorboard_files import TensorboardTool  # an extra

            return RunsTarget(TensorboardTool(Path(where)), console)
        case _:
            note_first_use(destination, home_dir())
            key = secret_of(env.get(SECRET_ENV, ""))
            return WebhookTarget(url=where, key=key, folder=_own(destination, "webhook"))


@contextmanager
def locked(destination: Destination, *whose: str, shared: bool = False) -> Iterator[None]:
    """Keeps a second exporter of this home from copying the same to the same place. `whose` says what is copied: an
    exporter of all studies has the lock for itself, and exporters of single ones share it. Raises TargetInUseError.
    """
    with append_private(_own(destination, "lock", *whose)) as lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TargetInUseError(
                f"Another `headrace track` of this home copies the same with {destination.tool} to the same place.",
                remedy="Stop it first; `headrace up --track` starts one for all studies.",
            ) from None
        yield


def note_first_use(destination: Destination, home: Path) -> None:
    """Notes that a webhook is used from now on: studies that are created later are followed from their beginning."""
    if destination.tool == "webhook":
        folder = _own(destination, "webhook", home=home)
        WebhookTarget(url=destination.where, key=b"", folder=folder).first_used_s()


def _own(destination: Destination, ending: str, *whose: str, home: Path | None = None) -> Path:
    """A path in the home for a target. Its name is a digest, because a URL may contain a key."""
    what = "\0".join((f"{destination.tool}={destination.where}", *whose))
    return (home or home_dir()) / "track" / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.{ending}"


def _check_mlflow(uri: str, field: str) -> None:
    if not uri:
        raise _invalid(field, "mlflow", "has no URI", _MLFLOW)
    parts, problem = _split(uri)
    if not problem and parts.scheme in ("http", "https") and not parts.hostname:
        problem = "has no host"
    if problem:
        raise _invalid(field, redacted(uri), problem, _MLFLOW)


def _check_webhook(url: str, field: str) -> None:
    if not url:
        raise _invalid(field, "webhook", "has no URL", _WEBHOOK)
    parts, problem = _split(url)
    if not problem and (parts.scheme not in ("http", "https") or not parts.hostname):
        problem = "is no http or https URL"
    if not problem and parts.username is not None:
        problem = "contains a user name or a password, which would not be sent"
    if not problem and (not url.isascii() or not url.isprintable() or " " in url):
        problem = "contains a space or a character that is not ASCII"
    if problem:
        raise _invalid(field, "webhook=…", problem, _WEBHOOK)  # any part of it may be a key


def _split(url: str) -> tuple[SplitResult, str]:
    """The parts of a URL, and what is wrong with it, or nothing. The library's own errors may show a password."""
    nothing = SplitResult("", "", "", "", "")
    try:
        parts = urlsplit(url)
    except ValueError:
        return nothing, "is not a URL"
    try:
        _ = parts.port
    except ValueError:
        return nothing, "has a port that is no number from 0 to 65535"
    return parts, ""


def _invalid(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
