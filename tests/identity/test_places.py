"""Who gives way when strangers share places: never one who has few to one who has many."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_services.serving.places import Place, Places, address_of, too_many


def taken(places: Places, *connections: str) -> list[str]:
    """Takes places; returns the connections that gave way, in order."""
    gone: list[str] = []
    for one in connections:
        places.acquire(one, lambda one=one: gone.append(one))  # type: ignore[misc]  # mypy has no type for such a default
    return gone


def test_the_oldest_of_the_heaviest_connection_of_the_heaviest_address_gives_way() -> None:
    light, heavy, other = "ipv4:10.0.0.9:1", "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2"
    assert taken(Places(4), light, heavy, heavy, other, light) == [heavy]
    assert taken(Places(2), light, light, heavy) == [light]


def test_a_place_that_was_left_or_lost_is_free() -> None:
    places, gone = Places(1), list[str]()
    first = places.acquire("a", lambda: gone.append("first"))
    places.acquire("a", lambda: gone.append("second"))
    places.leave(first)  # it has already lost it
    assert (gone, len(places)) == (["first"], 1)
    third = places.acquire("b", lambda: gone.append("third"))
    places.leave(third)
    places.leave(third)
    assert (gone, len(places)) == (["first", "second"], 0)


@given(
    st.lists(st.sampled_from(["ipv4:1.1.1.1:1", "ipv4:1.1.1.1:2", "ipv4:2.2.2.2:1", "unix:"]), max_size=40)
)
def test_there_are_never_more_than_so_many_and_the_lightest_keep_theirs(connections: list[str]) -> None:
    places, here = Places(5), Counter[str]()

    def give_way(connection: str) -> None:
        here[connection] -= 1
        weights = Counter[str]()
        for one, count in here.items():
            weights[address_of(one)] += count
        weights[address_of(connection)] += 1
        assert weights[address_of(connection)] == max(weights.values())

    held: list[Place] = []
    for one in connections:
        held.append(places.acquire(one, lambda one=one: give_way(one)))  # type: ignore[misc]  # mypy has no type for such a default
        here[one] += 1
        assert len(places) == here.total() <= 5
    for place in held:
        places.leave(place)
    assert not len(places)


@pytest.mark.parametrize(
    ("counts", "most", "left"),
    [
        ((10, 2, 1), 6, (3, 2, 1)),
        ((5, 5, 5), 6, (2, 2, 2)),
        ((3, 2), 5, (3, 2)),
        ((4,), 0, (0,)),
        ((), 3, ()),
    ],
)
def test_the_heaviest_addresses_lose_their_oldest_connections(
    counts: tuple[int, ...], most: int, left: tuple[int, ...]
) -> None:
    connections = [f"ipv4:10.0.0.{who}:{port}" for who, count in enumerate(counts) for port in range(count)]
    gone = {connections[number] for number in too_many([*map(address_of, connections)], most)}
    kept = [one for one in connections if one not in gone]
    assert (
        tuple(sum(address_of(one) == f"10.0.0.{who}" for one in kept) for who in range(len(counts))) == left
    )
    for who, count in enumerate(counts):
        own = [one for one in kept if address_of(one) == f"10.0.0.{who}"]
        assert own == [f"ipv4:10.0.0.{who}:{port}" for port in range(count - len(own), count)], (
            "the newest stay"
        )


def test_an_address_of_ipv6_is_a_network() -> None:
    assert address_of("ipv6:%5B2001:db8:0:1::5%5D:80") == address_of("ipv6:%5B2001:db8:0:1:ffff::9%5D:81")
    assert address_of("ipv6:%5B2001:db8:0:1::5%5D:80") != address_of("ipv6:%5B2001:db8:0:2::5%5D:80")
    assert address_of("ipv6:%5Bfe80::1%25eth0%5D:80") == "fe80::/64"
    assert address_of("ipv4:10.0.0.1:80") == address_of("ipv6:%5B::ffff:10.0.0.1%5D:81") == "10.0.0.1"
    assert address_of("unix:") == "unix:"
