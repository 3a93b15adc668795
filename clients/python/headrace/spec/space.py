"""A search space as a whole: which parameters exist in a configuration, and whether one belongs to it.

A parameter may name conditions on parameters before it. It is *active* in a configuration when every condition
holds, and a condition holds when its parent is active and takes one of the listed values. A configuration names
exactly the active parameters, each with a value of its domain.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from headrace.spec import names
from headrace.spec.domains import Domain, FloatDomain
from headrace.spec.problems import Problem, did_you_mean
from headrace.spec.scalars import same_value

Space = Mapping[str, Domain]
MAX_PARAMETERS: Final = 1000
MAX_CONDITIONS: Final = 32


def active(space: Space, assignment: Mapping[str, object]) -> tuple[str, ...]:
    """The parameters that exist given the values of those before them, in the order of the space."""
    found: list[str] = []
    for name, domain in space.items():
        if all(c.parameter in found and c.holds(assignment.get(c.parameter)) for c in domain.conditions):
            found.append(name)
    return tuple(found)


def draw(space: Space, choose: Callable[[str, Domain], Any]) -> dict[str, Any]:
    """A configuration whose active parameters are chosen one after the other, parents first."""
    chosen: dict[str, Any] = {}
    for name, domain in space.items():
        if all(c.parameter in chosen and c.holds(chosen[c.parameter]) for c in domain.conditions):
            chosen[name] = choose(name, domain)
    return chosen


def needed_parents(space: Space) -> list[frozenset[str]]:
    """For each place in the space, and the end: the parameters before it that conditions from there on refer to."""
    names = list(space)
    needed: list[frozenset[str]] = [frozenset()]
    for name in reversed(names):
        parents = {condition.parameter for condition in space[name].conditions}
        needed.append((needed[-1] | parents) - {name})
    return needed[::-1]


def admitted(space: Space, assignment: Mapping[str, object]) -> dict[str, Any]:
    """A sound configuration as the domains write it, in the order of the space."""
    return {name: domain.admit(assignment[name]) for name, domain in space.items() if name in assignment}


def space_problems(declared: Iterable[str], space: Space) -> list[Problem]:
    """What is wrong with the names and the conditions. `space` lacks the parameters that are unsound in themselves."""
    order = list(declared)
    problems: list[Problem] = []
    if not order:
        return [Problem(loc=(), message="is empty", remedy="Name at least one parameter to search over.")]
    if len(order) > MAX_PARAMETERS:
        return [
            Problem(
                loc=(),
                message=f"has {len(order)} parameters",
                remedy=f"Search over at most {MAX_PARAMETERS} of them.",
            )
        ]
    problems += filter(None, (names.PARAMETER.problem(name, name) for name in order))
    for name, domain in space.items():
        problems += _condition_problems(name, domain, order, space)
    return problems


def assignment_problems(
    assignment: Mapping[str, object], declared: Iterable[str], space: Space
) -> list[Problem]:
    """Why a configuration does not belong to the space; parameters that hang on unsound ones are left alone."""
    order = list(declared)
    problems = [
        Problem(loc=(name,), message="is not a parameter", remedy=did_you_mean(name, order, noun="parameter"))
        for name in assignment
        if name not in order
    ]
    chosen: dict[str, object] = {}
    uncertain = set(order) - set(space)
    for name, domain in space.items():
        if any(condition.parameter in uncertain for condition in domain.conditions):
            uncertain.add(name)
            continue
        unmet = [
            c for c in domain.conditions if c.parameter not in chosen or not c.holds(chosen[c.parameter])
        ]
        if unmet:
            if name in assignment:
                condition = unmet[0]
                choices = " or ".join(map(repr, condition.values))
                problems.append(
                    Problem(
                        loc=(name,),
                        value=assignment[name],
                        message=f"is set, but exists only where {condition.parameter} is {choices}",
                        remedy="Remove it.",
                    )
                )
            continue
        if name not in assignment:
            uncertain.add(name)
            problems.append(
                Problem(loc=(name,), message="is missing", remedy=f"Give it a value: {domain.describe()}.")
            )
            continue
        value = domain.admit(assignment[name])
        if value is None:
            uncertain.add(name)
            problems.append(
                Problem(
                    loc=(name,),
                    value=assignment[name],
                    message="is outside its domain",
                    remedy=f"Choose {domain.describe()}.",
                )
            )
            continue
        chosen[name] = value
    return problems


def _condition_problems(name: str, domain: Domain, order: list[str], space: Space) -> list[Problem]:
    problems: list[Problem] = []
    if len(domain.conditions) > MAX_CONDITIONS:
        return [
            Problem(
                loc=(name, "conditions"),
                message=f"has {len(domain.conditions)} entries",
                remedy=f"Use at most {MAX_CONDITIONS}; one condition may list several values.",
            )
        ]
    for index, condition in enumerate(domain.conditions):
        at: tuple[str | int, ...] = (name, "conditions", index)
        parent = condition.parameter
        if parent not in order:
            problems.append(
                Problem(
                    loc=(*at, "parameter"),
                    value=parent,
                    message="is not a parameter",
                    remedy=did_you_mean(
                        parent, (other for other in order if other != name), noun="parameter"
                    ),
                )
            )
            continue
        cycle = _cycle(name, parent, space)
        if cycle:
            problems.append(
                Problem(
                    loc=(*at, "parameter"),
                    value=parent,
                    message=f"closes a cycle of conditions: {' → '.join(cycle)}",
                    remedy="Remove one of these conditions.",
                )
            )
        elif order.index(parent) > order.index(name):
            problems.append(
                Problem(
                    loc=(*at, "parameter"),
                    value=parent,
                    message=f"comes after {name}",
                    remedy=f"Move {parent} before {name}.",
                )
            )
        if parent in space and parent != name:
            problems += [
                problem.under(*at) for problem in _value_problems(condition.values, parent, space[parent])
            ]
    return problems + _contradictions(name, domain)


def _value_problems(values: tuple[object, ...], parent: str, domain: Domain) -> list[Problem]:
    if not values:
        return [
            Problem(loc=("values",), message="is empty", remedy=f"List the values of {parent} that count.")
        ]
    if isinstance(domain, FloatDomain) and domain.step is None:
        return [
            Problem(
                loc=("parameter",),
                value=parent,
                message="is continuous, so it hits no listed value",
                remedy=f"Give {parent} a step, or make it int or categorical.",
            )
        ]
    return [
        Problem(
            loc=("values", index),
            value=value,
            message=f"is not a value of {parent}",
            remedy=f"Choose {domain.describe()}.",
        )
        for index, value in enumerate(values)
        if domain.admit(value) is None
    ]


def _contradictions(name: str, domain: Domain) -> list[Problem]:
    """Conditions on the same parent that no value meets together."""
    return [
        Problem(
            loc=(name, "conditions", index),
            message=f"contradicts another condition on {later.parameter}, so it never holds",
            remedy="Join the two into one list of values.",
        )
        for index, later in enumerate(domain.conditions)
        for earlier in domain.conditions[:index]
        if later.parameter == earlier.parameter
        and not any(same_value(a, b) for a in later.values for b in earlier.values)
    ]


def _cycle(name: str, parent: str, space: Space) -> list[str]:
    """The way from `name` through its parent back to itself, or nothing."""
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
