"""A search space as a whole: which parameters exist in a configuration, and whether one belongs to it.

A parameter may name conditions on parameters before it. It is *active* in a configuration when every condition
holds, and a condition holds when its parent is active and has one of the listed values, or is within the bounds. A
configuration names exactly the active parameters, each with a value of its domain.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from headrace.bounds import numbers
from headrace.spec import names
from headrace.spec.conditions import Space, condition_problems, impossible_problems
from headrace.spec.domains import Condition, Domain
from headrace.spec.problems import Problem, Unknown


def active(space: Space, assignment: Mapping[str, object]) -> tuple[str, ...]:
    """The parameters that exist given the values of earlier ones, in the order of the space."""
    found: dict[str, None] = {}
    for name, domain in space.items():
        if all(c.parameter in found and c.holds(assignment.get(c.parameter)) for c in domain.conditions):
            found[name] = None
    return tuple(found)


def draw(space: Space, choose: Callable[[str, Domain], Any]) -> dict[str, Any]:
    """A configuration whose active parameters are chosen one by one, parents first."""
    chosen: dict[str, Any] = {}
    for name, domain in space.items():
        if all(c.parameter in chosen and c.holds(chosen[c.parameter]) for c in domain.conditions):
            chosen[name] = choose(name, domain)
    return chosen


def needed_parents(space: Space) -> list[frozenset[str]]:
    """For each position in the space and for the end: the earlier parameters that conditions from there on refer
    to.
    """
    names = list(space)
    needed: list[frozenset[str]] = [frozenset()]
    for name in reversed(names):
        parents = {condition.parameter for condition in space[name].conditions}
        needed.append((needed[-1] | parents) - {name})
    return needed[::-1]


def admitted(space: Space, assignment: Mapping[str, object]) -> dict[str, Any]:
    """A valid configuration as the domains write it, in the order of the space."""
    return {name: domain.admit(assignment[name]) for name, domain in space.items() if name in assignment}


def on_grids(space: Space) -> dict[str, Domain]:
    """The space with the numbers of its conditions as the parents' grids write them, so that they compare as equal."""
    found = dict(space)
    for name, domain in space.items():
        written = tuple(
            one.as_written_by(space[one.parameter]) if one.parameter in space else one
            for one in domain.conditions
        )
        if written != domain.conditions:
            found[name] = domain.model_copy(update={"conditions": written})
    return found


def breadth(space: Space) -> int:
    """The number of checks of one configuration: the parameters and their conditions."""
    return len(space) + sum(len(domain.conditions) for domain in space.values())


def space_problems(declared: Collection[str], space: Space) -> Iterator[Problem]:
    """Problems of the names and the conditions. `space` lacks the parameters that are invalid in themselves."""
    if not declared:
        yield Problem(loc=(), message="is empty", remedy="Name at least one parameter to search over.")
    if len(declared) > numbers.PARAMETERS:
        yield Problem(
            loc=(),
            message=f"has {len(declared)} parameters",
            remedy=f"Search over at most {numbers.PARAMETERS} of them.",
        )
        return
    yield from filter(None, (names.PARAMETER.problem(name, name) for name in declared))
    places = {name: place for place, name in enumerate(declared)}
    found = False
    for name, domain in space.items():
        for problem in condition_problems(name, domain, places, space):
            found = True
            yield problem
    if not found:  # otherwise the same would be reported twice
        yield from impossible_problems(space)


def assignment_problems(
    assignment: Mapping[str, object], declared: Collection[str], space: Space
) -> Iterator[Problem]:
    """Why a configuration does not belong to the space. Parameters that depend on invalid ones are not checked."""
    for name in assignment:
        if name not in declared:
            unknown = Unknown(word=name, known=declared, noun="parameter")
            yield Problem(loc=(name,), message="is not a parameter", unknown=unknown)
    chosen: dict[str, object] = {}
    uncertain = {name for name in declared if name not in space}
    for name, domain in space.items():
        unmet = None
        if domain.conditions:
            if uncertain and any(condition.parameter in uncertain for condition in domain.conditions):
                uncertain.add(name)
                continue
            unmet = _unmet(domain.conditions, chosen)
        if name not in assignment:
            if unmet is None:
                uncertain.add(name)
                yield Problem(
                    loc=(name,), message="is missing", remedy=f"Give it a value: {domain.describe()}."
                )
            continue
        given = assignment[name]
        if unmet is not None:
            yield Problem(
                loc=(name,),
                value=given,
                message=f"is set, but exists only where {unmet.parameter} is {unmet.describe()}",
                remedy="Remove it.",
            )
            continue
        value = domain.admit(given)
        if value is None:
            uncertain.add(name)
            yield Problem(
                loc=(name,),
                value=given,
                message="is outside its domain",
                remedy=f"Choose {domain.describe()}.",
            )
            continue
        chosen[name] = value


def _unmet(conditions: Sequence[Condition], chosen: Mapping[str, object]) -> Condition | None:
    """The first condition that does not hold."""
    for condition in conditions:
        if condition.parameter not in chosen or not condition.holds(chosen[condition.parameter]):
            return condition
    return None
