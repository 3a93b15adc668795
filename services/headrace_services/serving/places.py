"""Places that callers share whom nobody knows. Pure.

There is always one for a caller who comes. Where all are taken, one gives way: the oldest of the connection with the
most, at the address with the most. An address of IPv6 is a network of 64 bits, for one machine has so many.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_services.serving.peers import network_of, peer_of


@dataclass(slots=True, eq=False)
class Place:
    """What one call has."""

    connection: str
    give_way: Callable[[], None]


class Places:
    """So many places."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts = Counter[str]()
        """By address."""
        self._taken: dict[str, dict[str, dict[Place, None]]] = {}
        """By address and connection, the oldest first."""

    def __len__(self) -> int:
        return self._counts.total()

    def acquire(self, connection: str, give_way: Callable[[], None]) -> Place:
        """A place for a call of a connection, named as gRPC names peers. `give_way` is called when another one gets
        it."""
        if len(self) >= self._most:
            found = self._heaviest()
            self.leave(found)
            found.give_way()
        place, address = Place(connection, give_way), address_of(connection)
        self._taken.setdefault(address, {}).setdefault(connection, {})[place] = None
        self._counts[address] += 1
        return place

    def leave(self, place: Place) -> None:
        """Its call needs it no more, or has lost it."""
        address = address_of(place.connection)
        here = self._taken.get(address, {})
        taken = here.get(place.connection, {})
        if place not in taken:
            return
        del taken[place]
        self._counts[address] -= 1
        if not taken:
            del here[place.connection]
        if not here:
            del self._taken[address], self._counts[address]

    def _heaviest(self) -> Place:
        here = self._taken[max(self._counts, key=self._counts.__getitem__)]
        return next(iter(here[max(here, key=lambda connection: len(here[connection]))]))


def too_many(addresses: Sequence[str], most: int) -> list[int]:
    """Which connections, given by their addresses, the oldest first, are to go, so that `most` stay: the oldest of the
    addresses with the most."""
    if len(addresses) <= most:
        return []
    counts = Counter(addresses)
    low, high = 0, max(counts.values())
    while low < high:  # the greatest number for each address with which no more than `most` stay
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if sum(min(n, middle) for n in counts.values()) <= most else (low, middle - 1)
        )
    gone, seen = [], Counter[str]()
    for number, address in enumerate(addresses):
        seen[address] += 1
        if seen[address] <= counts[address] - low:
            gone.append(number)
    return gone


def address_of(connection: str) -> str:
    """Which connections count together: those of a machine, by gRPC's name of the peer; others by their names."""
    peer = peer_of(connection)
    return connection if peer is None else network_of(peer.host)
