"""Places that unidentified callers share. Pure.

There is always a place for a new caller. If all are taken, one is given up: the oldest one of the connection with
the most places, at the address with the most. For IPv6, an address is a network of 64 bits, because one machine
has that many.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_services.serving.peers import network_of, peer_of


@dataclass(slots=True, eq=False)
class Place:
    """The place of one call."""

    connection: str
    give_way: Callable[[], None]


class Places:
    """A fixed number of places."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts = Counter[str]()
        """By address."""
        self._taken: dict[str, dict[str, dict[Place, None]]] = {}
        """By address and connection, oldest first."""

    def __len__(self) -> int:
        return self._counts.total()

    def acquire(self, connection: str, give_way: Callable[[], None]) -> Place:
        """A place for a call of a connection, named as gRPC names peers. `give_way` is called when another call
        gets the place."""
        if len(self) >= self._most:
            found = self._heaviest()
            self.leave(found)
            found.give_way()
        place, address = Place(connection, give_way), address_of(connection)
        self._taken.setdefault(address, {}).setdefault(connection, {})[place] = None
        self._counts[address] += 1
        return place

    def leave(self, place: Place) -> None:
        """Its call no longer needs it, or has lost it."""
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
    """Which connections must go so that `most` stay: the oldest ones of the addresses with the most. They are
    given by their addresses, oldest first."""
    if len(addresses) <= most:
        return []
    counts = Counter(addresses)
    low, high = 0, max(counts.values())
    while low < high:  # the largest number per address with which no more than `most` stay
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
    """Which connections count together: those of one machine, by gRPC's name of the peer; others by their names."""
    peer = peer_of(connection)
    return connection if peer is None else network_of(peer.host)
