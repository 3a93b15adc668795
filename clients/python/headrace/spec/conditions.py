"""Problems in the conditions of a space: an unknown parent, a cycle, a condition that can never hold.

Conditions are conjunctions: a parameter exists if all of its own hold, and if its parents exist. So it can exist
if, for each parameter above it, one value meets all conditions on that parameter together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.bounds import numbers
from headrace.spec.domains import CategoricalDomain, Condition, Domain, FloatDomain
from headrace.spec.problems import Loc, Problem, Unknown

Space = Mapping[str, Domain]
_WALKED = 20_000
"""The most conditions that are combined with those of parents, over the whole space. In a larger space, this is
not checked.
"""


def condition_problems(
    name: str, domain: Domain, places: Mapping[str, int], space: Space
) -> Iterator[Problem]:
    """Problems in the conditions of one parameter. `places` has the positions of all names."""
    if len(domain.conditions) > numbers.CONDITIONS:
        yield Problem(
            loc=(name, "conditions"),
            message=f"has {len(domain.conditions)} entries",
            remedy=f"Use at most {numbers.CONDITIONS}; one condition may list several values.",
        )
        return
    for index, condition in enumerate(domain.conditions):
        at: tuple[str | int, ...] = (name, "conditions", index)
        parent = condition.parameter
        if parent not in places:
            unknown = Unknown(
                word=parent, known=[other for other in places if other != name], noun="parameter"
            )
            yield Problem(loc=(*at, "parameter"), value=parent, message="is not a parameter", unknown=unknown)
            continue
        if places[parent] >= places[name]:
            yield _backward(name, parent, space).under(*at)
        if parent in space and parent != name:
            for problem in _own_problems(condition, parent, space[parent]):
                yield problem.under(*at)
    yield from _contradictions(name, domain, space)


def impossible_problems(space: Space) -> Iterator[Problem]:
    """Parameters that can never exist, because their conditions and those of their parents contradict each other."""
    impossible: set[str] = set()
    left = _WALKED
    for name, domain in space.items():
        above = _above(domain, space, left)
        left -= sum(map(len, above.values()))
        if left < 0:
            return
        if not impossible.isdisjoint(above):
            impossible.add(name)  # like its parent, which is reported
            continue
        for parent, conditions in above.items():
            if parent in space and not can_hold(space[parent], conditions):
                impossible.add(name)
                asked = ", and ".join(condition.describe() for condition in conditions)
                yield Problem(
                    loc=(name, "conditions"),
                    message=f"can never hold: with those of its parents they ask that {parent} is {asked}",
                    remedy="Correct one of these conditions.",
                )
                break


def _above(domain: Domain, space: Space, most: int) -> dict[str, list[Condition]]:
    """All conditions that must hold for a parameter to exist, including its parents', by the parameter that they
    refer to.

    It stops once there are more than `most`.
    """
    found: dict[str, list[Condition]] = {}
    waiting = [domain]
    while waiting and most >= 0:
        for condition in waiting.pop().conditions:
            most -= 1
            parent = condition.parameter
            if parent not in found and parent in space:
                waiting.append(space[parent])
            found.setdefault(parent, []).append(condition)
    return found


def can_hold(domain: Domain, conditions: Sequence[Condition]) -> bool:
    """Whether some value of the domain meets all conditions."""
    listed = [condition.meanings for condition in conditions if condition.values]
    bounded = [condition for condition in conditions if not condition.values]
    values: Sequence[object]
    if listed:
        values = [value for _, value in frozenset.intersection(*listed)]
    elif isinstance(domain, CategoricalDomain):
        values = domain.values
    else:
        return _has_number(domain, bounded)
    return any(all(condition.holds(value) for condition in bounded) for value in values)


def first_place(count: int, reached: Callable[[int], bool]) -> int:
    """The first of `count` places that is reached, where all later ones are too; `count` if none is."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return low


def _has_number(domain: Domain, bounded: Sequence[Condition]) -> bool:
    """Whether a numeric domain has a value within all bounds."""
    assert not isinstance(domain, CategoricalDomain)
    if isinstance(domain, FloatDomain) and domain.step is None:
        return _meets(domain, bounded)
    count = domain.count
    assert count is not None
    place = first_place(count, lambda place: not any(one.too_low(domain.value_at(place)) for one in bounded))
    return place < count and not any(one.too_high(domain.value_at(place)) for one in bounded)


def _meets(domain: FloatDomain, bounded: Sequence[Condition]) -> bool:
    """Whether a continuous domain has a value within all bounds: between the greatest lower and the least upper
    bound.
    """
    low = max([domain.low, *(one.at_least for one in bounded if one.at_least is not None)])
    high = min([domain.high, *(one.at_most for one in bounded if one.at_most is not None)])
    above = max((one.above for one in bounded if one.above is not None), default=None)
    below = min((one.below for one in bounded if one.below is not None), default=None)
    least = low if above is None else max(low, above)
    most = high if below is None else min(high, below)
    is_open = (above is not None and above >= low) or (below is not None and below <= high)
    return least < most or (least == most and not is_open)


def _own_problems(condition: Condition, parent: str, domain: Domain) -> Iterator[Problem]:
    """Problems in one condition by itself."""
    bounds = condition.bounds
    if bounds and condition.values:
        yield Problem(
            loc=("values",),
            message="stands beside bounds",
            remedy=f"List the values of {parent} that count, or give bounds.",
        )
    elif bounds:
        yield from _bound_problems(condition, parent, domain)
    elif not condition.values:
        yield Problem(loc=("values",), message="is empty", remedy=f"List the values of {parent} that count.")
    elif isinstance(domain, FloatDomain) and domain.step is None:
        yield Problem(
            loc=("parameter",),
            value=parent,
            message="is continuous, so it hits no listed value",
            remedy=f'Compare it, as in `{{">=": 0.5}}`, or give {parent} a step.',
        )
    else:
        for index, value in enumerate(condition.values):
            if domain.admit(value) is None:
                compared = isinstance(value, str) and value.lstrip()[:1] in ("<", ">")
                yield Problem(
                    loc=("values", index),
                    value=value,
                    message=f"is not a value of {parent}",
                    remedy='Write a comparison as `{">=": 64}`.'
                    if compared
                    else f"Choose {domain.describe()}.",
                )


def _bound_problems(condition: Condition, parent: str, domain: Domain) -> Iterator[Problem]:
    loc: Loc = (next(iter(condition.bounds)),)
    if isinstance(domain, CategoricalDomain):
        other = next((one for one in domain.values if isinstance(one, bool | str)), None)
        if other is not None:
            yield Problem(
                loc=loc,
                value=other,
                message=f"cannot be compared: {parent} has values that are not numbers",
                remedy=f"List the values of {parent} that count.",
            )
            return
    if not can_hold(domain, [condition]):
        yield Problem(
            loc=loc,
            value=condition.bounds[str(loc[0])],
            message=f"can never hold: {parent} is {domain.describe()}",
            remedy=f"Correct the bound, or widen {parent}.",
        )


def _backward(name: str, parent: str, space: Space) -> Problem:
    """The problem of a condition on a parameter that does not precede this one. Every cycle has such a
    condition.
    """
    cycle = _cycle(name, parent, space)
    if cycle:
        way = cycle if len(cycle) <= 12 else [*cycle[:10], "…", name]
        return Problem(
            loc=("parameter",),
            value=parent,
            message=f"closes a cycle of conditions: {' → '.join(way)}",
            remedy="Remove one of these conditions.",
        )
    return Problem(
        loc=("parameter",),
        value=parent,
        message=f"comes after {name}",
        remedy=f"Move {parent} before {name}.",
    )


def _contradictions(name: str, domain: Domain, space: Space) -> Iterator[Problem]:
    """Conditions on the same parent that no single value meets."""
    before: dict[str, list[Condition]] = {}
    for index, condition in enumerate(domain.conditions):
        parent = condition.parameter
        both = [*before.get(parent, ()), condition]
        if len(both) > 1 and parent in space and not can_hold(space[parent], both):
            yield Problem(
                loc=(name, "conditions", index),
                message=f"contradicts the conditions on {parent} before it, so it never holds",
                remedy="Join them into one condition.",
            )
        else:
            before[parent] = both


def _cycle(name: str, parent: str, space: Space) -> list[str]:
    """The path from `name` through its parent back to itself, or nothing."""
    if parent == name:
        return [name, name]
    trail: dict[str, str] = {parent: name}
    waiting = [parent]
    while waiting:
        here = waiting.pop()
        for condition in space[here].conditions if here in space else ():
            if condition.parameter == name:
                way = [name]
                while here != name:
                    way.insert(1, here)
                    here = trail[here]
                return [*way, name]
            if condition.parameter not in trail:
                trail[condition.parameter] = here
                waiting.append(condition.parameter)
    return []
