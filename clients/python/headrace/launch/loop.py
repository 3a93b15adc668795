"""The loop: one turn reads, decides and submits. See the package's docstring for what happens when it is killed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.launch.decision import Decision, FreeSlots, Kind, Need, decide
from headrace.launch.engine import Engine, Member, Stage
from headrace.launch.rests import Rests

TOKEN_LIFETIME = timedelta(minutes=10)
"""How long a join token works. It is created when the job has started, and used seconds later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a scheduler knows, as of one moment."""

    needs: Sequence[Need]
    free: Sequence[FreeSlots]
    connected: frozenset[str]
    """The workers that are connected, also those that get no trials."""


class Scheduler(Protocol):
    """What the loop needs of Headrace. Calls raise `HeadraceError`."""

    def look(self, kind: Kind, most: int) -> Cluster:
        """What waits and what is free. More trials than `most` workers can run need not be counted."""
        ...

    def create_token(self, worker: str, lifetime: timedelta) -> tuple[str, str]:
        """A join token for this worker alone, for one use: its id, and its secret."""
        ...

    def revoke_token(self, token_id: str) -> None:
        """Revokes a token that nobody uses."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn found and did."""

    cluster: Cluster
    members: tuple[Member, ...]
    decision: Decision
    tokens: tuple[str, ...] = ()
    """The workers that got a join token."""
    resting: frozenset[int] = frozenset()
    """The seats that are not filled again yet."""
    failures: tuple[HeadraceError, ...] = ()
    """What failed; the rest of the turn was done."""

    @property
    def pending(self) -> int:
        """How many members have not started."""
        return sum(member.stage is Stage.PENDING for member in self.members)

    @property
    def running(self) -> int:
        """How many members run."""
        return len(self.members) - self.pending


def turn(
    engine: Engine,
    scheduler: Scheduler,
    *,
    kind: Kind,
    most: int,
    act: bool = True,
    rests: Rests | None = None,
) -> Turn:
    """One turn. Without `act`, only says what it would do. `rests` is what the loop remembers of earlier turns.
    Raises what reading raises; failures of single actions are in the result.
    """
    cluster = scheduler.look(kind, most)
    members = tuple(engine.members())
    resting = rests.after(members, cluster.connected) if rests is not None else frozenset()
    decision = decide(
        cluster.needs, cluster.free, members, cluster.connected, kind=kind, most=most, resting=resting
    )
    found = Turn(cluster=cluster, members=members, decision=decision, resting=resting)
    if not act:
        return found
    failures: list[HeadraceError] = []
    tokens = []
    for member in members:
        if member.awaits_token and member.worker not in cluster.connected:
            with _noted(failures):
                if _give_token(engine, scheduler, member):
                    tokens.append(member.worker)
    for member in decision.withdraw:
        with _noted(failures):
            engine.withdraw(member)
    if decision.submit:
        with _noted(failures):
            engine.submit(decision.submit)
            if rests is not None:
                rests.submitted(decision.submit)
    return replace(found, tokens=tuple(tokens), failures=tuple(failures))


def run(
    once: Callable[[], Turn],
    *,
    said: Callable[[Turn | HeadraceError], None],
    rest: Callable[[], bool],
) -> None:
    """Takes turns until `rest`, which waits for the next one, returns False. A turn that fails is reported, and
    the next one tries again.
    """
    while True:
        try:
            said(once())
        except HeadraceError as error:
            said(error)
        if not rest():
            return


def _give_token(engine: Engine, scheduler: Scheduler, member: Member) -> bool:
    token_id, secret = scheduler.create_token(member.worker, TOKEN_LIFETIME)
    delivered = False
    try:
        delivered = engine.deliver(member, secret)
    finally:
        if not delivered:
            scheduler.revoke_token(token_id)
    return delivered


@contextmanager
def _noted(failures: list[HeadraceError]) -> Iterator[None]:
    try:
        yield
    except HeadraceError as error:
        failures.append(error)
