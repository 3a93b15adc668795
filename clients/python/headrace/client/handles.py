"""What the blocking and the async handles have in common: names, and what was known when they were created."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from headrace.client.arguments import whole_number
from headrace.client.model import Checkpoint, Lease, Suggestion, Value
from headrace.client.names import study_id
from headrace.elsewhere import ASKED, STUDY, no_attribute

TransportT = TypeVar("TransportT")


class StudyBase(Generic[TransportT]):
    """A study by name; nothing is fetched until a method is called."""

    def __init__(self, transport: TransportT, name: str) -> None:
        self.transport = transport
        self.name = study_id(name)

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report unknown names

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(no_attribute(type(self).__name__, name, STUDY), name=name, obj=self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class TrialBase(Generic[TransportT]):
    """A trial by study and number; nothing is fetched until a method is called."""

    def __init__(self, transport: TransportT, study: str, number: int) -> None:
        self.transport = transport
        self.study = study_id(study)
        self.number = whole_number("trial", number, "Give the number of a trial, such as study.trial(3).")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.study!r}, {self.number})"


class AskedTrialBase(Generic[TransportT]):
    """A trial that the caller runs in its own loop, under a lease.

    Train from step `step` + 1 (`step` is 0 at the start), load `checkpoint` if there is one, and report.
    """

    def __init__(self, transport: TransportT, suggestion: Suggestion) -> None:
        self.transport = transport
        self._suggestion = suggestion
        self.held = True
        """Whether this caller holds the trial, according to the last answer it received."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(no_attribute(type(self).__name__, name, ASKED), name=name, obj=self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lease.trial}, params={dict(self.params)!r})"

    @property
    def lease(self) -> Lease:
        """The lease: the right to report."""
        return self._suggestion.lease

    @property
    def number(self) -> int:
        """The trial's number within the study."""
        return self._suggestion.trial.number

    @property
    def params(self) -> Mapping[str, Value]:
        """The configuration."""
        return self._suggestion.trial.last_params

    @property
    def step(self) -> int:
        """The step to continue from, which is that of the checkpoint; 0 without one."""
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def next_milestone(self) -> int:
        """The step up to which the caller may continue without a decision."""
        return self._suggestion.next_milestone

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Where an earlier caller saved its state; None to start from scratch."""
        return self._suggestion.trial.checkpoint
