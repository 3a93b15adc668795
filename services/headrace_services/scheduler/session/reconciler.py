"""What a worker should hold, compared with what it says it holds: the pure part of a session.

Both sides change while messages are in transit, so a difference counts only when it shows in two heartbeats in a
row.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class LeaseReconciler:
    """The leases of one worker, as its session knows them."""

    known: set[str] = field(default_factory=set)
    """Live leases, as committed here or read from the rows."""
    said: set[str] = field(default_factory=set)
    """The leases that the last heartbeat named."""
    _differed: bool = False

    def grant(self, lease_id: str) -> None:
        """A lease was given to the worker."""
        self.known.add(lease_id)

    def end(self, lease_id: str) -> None:
        """A lease ended."""
        self.known.discard(lease_id)

    def heartbeat(self, said: set[str]) -> bool:
        """Add a heartbeat. Returns True if the rows should be read."""
        self.said = said
        differs = said != self.known
        look = differs and self._differed
        self._differed = differs
        return look

    def refresh(self, live: set[str]) -> None:
        """Update from the rows, which include leases that were granted or ended without this session learning of
        it."""
        self.known = live

    def settle(self, live: set[str], said: set[str]) -> tuple[set[str], set[str]]:
        """Update from the rows. Returns the live leases that the worker does not run, and those that it runs
        wrongly.

        `said` is what it had named before the rows were read: what it started since is not in the rows yet.
        """
        self.known = live
        self._differed = False
        return live - said, said - live
