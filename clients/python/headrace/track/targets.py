"""What `--to` names: a tool, and where it is. Everything is checked here, before anything is written."""

import fcntl
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headrace.client.missing import require
from headrace.client.model import StudyInfo
from headrace.errors import HeadraceError, InvalidFieldError, Violation
from headrace.home import append_private, home_dir
from headrace.track.exporter import Target
from headrace.track.tracker import RunsSink, Say, Sink, Tool
from headrace.track.webhook import WebhookTarget, secret_of

SECRET_ENV: Final = "HEADRACE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
URL_ENV: Final = "HEADRACE_WEBHOOK_URL"
TOOLS: Final = ("mlflow", "wandb", "tensorboard", "webhook")
_REMEDY: Final = "Write TOOL or TOOL=WHERE: mlflow=URI, wandb=FOLDER, tensorboard=FOLDER or webhook=URL."


class TargetInUseError(HeadraceError):
    """Another exporter writes there."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value of `--to`, checked: the tool, and where it is."""

    tool: str
    where: str
    from_env: bool = False
    """Whether the environment says where. It is then not shown: a URL may contain a password or a key."""

    def __str__(self) -> str:
        return self.tool if self.from_env else f"{self.tool}={self.where}"


@dataclass(frozen=True, slots=True)
class _RunsTarget:
    """A tool as a target."""

    tool: Tool

    @property
    def title(self) -> str:
        """For people."""
        return self.tool.title

    def open(self, study: StudyInfo, say: Say, *, again: bool) -> Sink:
        """The sink of a study."""
        return RunsSink(self.tool.open(study, say, again=again))


def parse(text: str, env: Mapping[str, str], field: str = "--to") -> Given:
    """Reads `TOOL` or `TOOL=WHERE`; checks that the tool's extra is installed. Raises InvalidFieldError and
    MissingExtraError.
    """
    name, _, given = (part.strip() for part in text.partition("="))
    where = given
    match name:
        case "mlflow":
            where = where or env.get("MLFLOW_TRACKING_URI", "")
            if not where:
                raise _invalid(
                    field, text, "has no URI", "Write mlflow=http://HOST:PORT, or set MLFLOW_TRACKING_URI."
                )
        case "wandb":
            where = where or env.get("WANDB_DIR", "") or "."
        case "tensorboard":
            where = where or "runs"
        case "webhook":
            where = where or env.get(URL_ENV, "")
            _check_webhook(where, text, env, field)
        case _:
            raise _invalid(field, text, f"names no tool: those are {', '.join(TOOLS)}", _REMEDY)
    if name in ("wandb", "tensorboard"):
        where = str(Path(where).expanduser().absolute())
    if name != "webhook":
        require(f"`headrace track --to {name}`", name, name)
    return Given(name, where, from_env=name in ("mlflow", "webhook") and not given)


def target_of(given: Given, env: Mapping[str, str]) -> Target:
    """The target, with its tool's library imported."""
    match given.tool:
        case "mlflow":
            from headrace.track.mlflow_runs import MlflowTool  # an extra

            return _RunsTarget(MlflowTool(given.where))
        case "wandb":
            from headrace.track.wandb_folders import WandbTool  # an extra

            return _RunsTarget(WandbTool(Path(given.where)))
        case "tensorboard":
            from headrace.track.tensorboard_files import TensorboardTool  # an extra

            return _RunsTarget(TensorboardTool(Path(given.where)))
        case _:
            key = secret_of(env.get(SECRET_ENV, ""))
            return WebhookTarget(url=given.where, key=key, positions=_own(given, "webhook"))


@contextmanager
def held(given: Given) -> Iterator[None]:
    """Keeps a second exporter of this home from writing to the same place. Raises TargetInUseError."""
    with append_private(_own(given, "lock")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TargetInUseError(
                f"Another `headrace track` of this home writes to the same place with {given.tool} already.",
                remedy="Stop it first; `headrace up --track` starts one too.",
            ) from None
        yield


def _own(given: Given, ending: str) -> Path:
    """A path in the home for a target. Its name is a digest, because a URL may contain a key."""
    return (
        home_dir()
        / "track"
        / f"{hashlib.sha256(f'{given.tool}={given.where}'.encode()).hexdigest()[:16]}.{ending}"
    )


def _check_webhook(url: str, text: str, env: Mapping[str, str], field: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _invalid(field, text, "has no URL", f"Write webhook=https://HOST/PATH, or set {URL_ENV}.")
    secret_of(env.get(SECRET_ENV, ""))


def _invalid(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
