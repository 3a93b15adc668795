"""What users ask of a worker and of its devices, and what its daemon reports about them: the pure part of a
session.

The rows are authoritative. A daemon repeats the defects that it knows with each heartbeat. If the rows call such a
device sound, a user has cleared the defect: the daemon is told once, and its reports are ignored until it knows.
"""

from collections.abc import Callable, Iterable, Mapping

from headrace.bounds.sessions import TROUBLE
from headrace.v1 import worker_pb2
from headrace_services.scheduler.session import messages
from headrace_services.scheduler.store.machines import Wish


class Wishes:
    """The wishes for one worker, as its session knows them."""

    def __init__(
        self,
        say: Callable[[worker_pb2.SessionResponse], None],
        *,
        defects: Mapping[int, str],
        leaving: str,
    ) -> None:
        self._say = say
        self._told: Wish | None = None
        self.withdrawn = False
        """Whether the daemon believes that it is drained, from an earlier session."""
        self._forgiven: set[int] = set()
        self.defects = dict(defects)
        """The failed devices that the daemon reported, by index, as far as the rows know them."""
        self.leaving = leaving
        """What the daemon reported about its own end, as far as the rows know it."""

    def new_defects(self, heartbeat: worker_pb2.Heartbeat) -> dict[int, str]:
        """The defects that the rows do not have yet."""
        said = {one.index: TROUBLE.kept(one.reason) or "it failed" for one in heartbeat.defects}
        self._forgiven &= said.keys()
        return {
            index: reason
            for index, reason in said.items()
            if self.defects.get(index) != reason and index not in self._forgiven
        }

    def note_defects(self, new: Mapping[int, str]) -> None:
        """Record that the rows have these defects."""
        self.defects |= new

    def tell(self, wish: Wish | None) -> None:
        """Tell the daemon whether it is drained, if that has changed."""
        if wish == self._told and not (self.withdrawn and wish is None):
            return
        self._told, self.withdrawn = wish, False
        said = worker_pb2.Withdraw()
        if wish is not None:
            grace = None if wish.grace_s is None else messages.duration(wish.grace_s)
            said = worker_pb2.Withdraw(reason=wish.reason, grace=grace, leave=wish.leave)
        self._say(worker_pb2.SessionResponse(withdraw=said))

    def forgive(self, sound: Iterable[int]) -> None:
        """Tell the daemon that these devices, which it considers failed, are sound according to the rows."""
        indices = sorted(set(sound) & self.defects.keys())
        if not indices:
            return
        for index in indices:
            del self.defects[index]
        self._forgiven |= set(indices)
        self._say(worker_pb2.SessionResponse(uncordon=worker_pb2.Uncordon(devices=indices)))
