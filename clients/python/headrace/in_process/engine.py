"""What the loop requires of a study in this process, and where such a study comes from.

The client imports no services. The one needed here is found by its name on first use, like the commands of
services.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from headrace.client.missing import MissingExtraError
from headrace.client.model import Report, StudyInfo, TrialInfo
from headrace.spec import StudySpec, Value
from headrace.trial.runtime import Decision

SERVICE: Final = "headrace_services.scheduler.in_process"
NAME: Final = "in-process"
"""The study's name, used in its trials' names and in figures."""


class Asked(Protocol):
    """A trial to run."""

    params: dict[str, Value]
    seed: int
    milestone: int
    step: int
    over: bool

    @property
    def number(self) -> int: ...


class Engine(Protocol):
    """A study that is used through plain calls; `InProcessStudy` documents them."""

    @property
    def spec(self) -> StudySpec: ...
    @property
    def has_reports(self) -> bool: ...
    @property
    def has_failed(self) -> bool: ...
    def ask(self) -> Any: ...
    def report(self, asked: Any, step: int, metrics: Mapping[str, float], *, held: bool) -> Decision: ...
    def finish(self, asked: Any) -> None: ...
    def infeasible(self, asked: Any, reason: str) -> None: ...
    def fail(self, asked: Any, error: str) -> None: ...
    def stop(self, why: str) -> None: ...
    def take_ended(self) -> list[int]: ...
    def trial(self, number: int) -> TrialInfo: ...
    def show(self) -> tuple[StudyInfo, Sequence[TrialInfo], Sequence[Report]]: ...


def new_engine(spec: StudySpec) -> Engine:
    """A study of this spec, before its first trial. Raises `MissingExtraError` if the services are not
    installed.
    """
    try:
        engine: Engine = import_module(SERVICE).InProcessStudy(spec, name=NAME)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "headrace":
            raise
        raise MissingExtraError.of("headrace.optimize", "services", error.name) from None
    return engine
