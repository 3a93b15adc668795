"""What is submitted to a step, and what becomes of it.

A user's command comes with its request, whose answer is made inside the step's transaction and stored with its id: a
repeat gets the same one. An answer that is made of the outcome alone, or of what the step knows (`showing`), is made
before the step writes, and travels with the writes; one that shows rows is made of them as the step leaves them.
"""

from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import HeadraceError
from headrace_services.scheduler.arrivals import Accepted, Arrival, Outcome, Stale
from headrace_services.scheduler.store import requests
from headrace_services.scheduler.store.trials import TrialView


class Shown(Struct, frozen=True, kw_only=True):
    """What an answer may show: trials as the step leaves them, and, unless it is made early, all other rows."""

    conn: AsyncConnection
    trials: Mapping[int, TrialView]


Respond = Callable[[Outcome, Shown], Awaitable[bytes]]


class Submission(Struct, frozen=True, kw_only=True):
    """An arrival, and for a user's command the request that it came in."""

    arrival: Arrival
    request: requests.Request | None = None
    respond: Respond | None = None
    """Makes the answer to the request, inside the transaction, so that a repeat gets the same one."""
    shows: Callable[[Outcome], Collection[int]] | None = None
    """The trials that the answer shows; None where it is made of the outcome alone."""
    early: bool = False
    """Whether the answer shows nothing but those trials, so that it may be made before the step writes."""


class Settled(Struct, frozen=True, kw_only=True):
    """What became of a submission."""

    outcome: Outcome | HeadraceError
    response: bytes | None = None


class Answers:
    """The submissions of a step, each with what became of it."""

    def __init__(
        self,
        submissions: Sequence[Submission],
        outcomes: Mapping[int, Outcome | HeadraceError | None],
        repeats: Mapping[str, requests.Answer],
    ) -> None:
        self._submissions = submissions
        self._repeats = repeats
        self._outcomes: list[Outcome | HeadraceError] = []
        self._responses: dict[int, bytes] = {}
        self._new: list[tuple[requests.Request, bytes]] = []
        self._left: list[tuple[int, Respond]] = []
        for seat, submission in enumerate(submissions):
            if submission.request is not None and submission.request.id in repeats:
                self._outcomes.append(Accepted())
                continue
            outcome = outcomes[seat]
            assert outcome is not None
            self._outcomes.append(outcome)
            if submission.respond is not None and not isinstance(outcome, HeadraceError):
                self._left.append((seat, submission.respond))

    @property
    def are_left(self) -> bool:
        """Whether answers have not been made yet."""
        return bool(self._left)

    def shown(self) -> set[int]:
        """The trials that the answers show."""
        shown = set[int]()
        for seat, _ in self._left:
            shows, outcome = self._submissions[seat].shows, self._outcomes[seat]
            if shows is not None and not isinstance(outcome, HeadraceError):
                shown.update(shows(outcome))
        return shown

    async def make_early(self, known: Shown) -> None:
        """Make the answers that show no rows, or only trials that are known as the step will leave them."""
        left, self._left = self._left, []
        for seat, respond in left:
            if self._is_early(seat, known.trials):
                await self._make(seat, respond, known)
            else:
                self._left.append((seat, respond))

    async def make_of_rows(self, shown: Shown) -> None:
        """Make the others."""
        left, self._left = self._left, []
        for seat, respond in left:
            await self._make(seat, respond, shown)

    def _is_early(self, seat: int, known: Container[int]) -> bool:
        submission, outcome = self._submissions[seat], self._outcomes[seat]
        if submission.shows is None:
            return True
        # Where a lease was over already, who came first is for the rows to say.
        if not submission.early or isinstance(outcome, Stale | HeadraceError):
            return False
        return all(number in known for number in submission.shows(outcome))

    async def _make(self, seat: int, respond: Respond, shown: Shown) -> None:
        request, outcome = self._submissions[seat].request, self._outcomes[seat]
        assert not isinstance(outcome, HeadraceError)
        self._responses[seat] = response = await respond(outcome, shown)
        if request is not None:
            self._new.append((request, response))

    def to_remember(self) -> list[tuple[requests.Request, bytes]]:
        """The answers that were made since this was asked last."""
        new, self._new = self._new, []
        return new

    def settled(self) -> tuple[Settled, ...]:
        """Every submission's outcome, in order."""
        return tuple(
            self._settle(seat, submission, self._outcomes[seat])
            for seat, submission in enumerate(self._submissions)
        )

    def _settle(self, seat: int, submission: Submission, outcome: Outcome | HeadraceError) -> Settled:
        request = submission.request
        if request is None or request.id not in self._repeats:
            return Settled(outcome=outcome, response=self._responses.get(seat))
        try:
            return Settled(
                outcome=outcome, response=requests.check_repeat(request, self._repeats[request.id])
            )
        except HeadraceError as error:
            return Settled(outcome=error)
