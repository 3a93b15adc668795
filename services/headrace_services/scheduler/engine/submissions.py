"""What is submitted to a study, and its outcome.

A user's command comes with its request. Its answer is rendered from the plan and stored under the request's id
together with the plan's own writes, so a repeat gets the same answer.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from headrace.errors import HeadraceError
from headrace_services.scheduler.core.inputs import Input, Outcome
from headrace_services.scheduler.core.records import Study, TrialView
from headrace_services.scheduler.store.quarantine import Brief
from headrace_services.scheduler.store.requests import Request


class Shown(Struct, frozen=True, kw_only=True):
    """What an answer may show: the study and the trials as the plan leaves them."""

    study: Study | Brief
    """Brief if the study is quarantined: then no trial is shown."""
    trials: Mapping[int, TrialView] = field(default_factory=dict)


Render = Callable[[Outcome, Shown], bytes]
"""Renders the answer to a request from its outcome. It is not called for a request that was refused. It may itself
refuse one that changed nothing, by raising a HeadraceError, which is not stored."""


class Submission(Struct, frozen=True, kw_only=True):
    """An input and, for a user's command, its request."""

    input: Input
    request: Request | None = None
    render: Render | None = None
    stream: object | None = None
    """The stream of a worker's messages, which are in order. Once one is left unanswered, later ones must not
    overtake it."""


class Settled(Struct, frozen=True, kw_only=True):
    """The outcome of a submission."""

    outcome: Outcome | HeadraceError
    response: bytes | None = None
