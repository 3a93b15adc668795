"""A kind that does not exist, such as `policy: ashaa`, is replaced by the nearest one for further checks.

So its other keys are checked too, as is everything that depends on them (the budget from the rungs), and all
errors are reported at once.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from headrace.spec import elsewhere
from headrace.spec.problems import Problem, nearest
from headrace.spec.study import known_keys

_MOST: Final = 3
"""The most kinds that are guessed; one guess takes milliseconds."""
_MEANT: Final = re.compile(r"Did you mean `(\w+)`\?")


def spell_out(plain: dict[str, Any], problems: list[Problem]) -> None:
    """Replaces a kind that does not exist by the one that is meant, and records the problem. A kind without a
    similar one stays: the spec's own checks report it.
    """
    for key in ("policy", "sampler"):
        if isinstance(plain.get(key), str):
            plain[key] = {"kind": plain[key]}
    for loc, found, remedy in islice(_wrong(plain), _MOST):
        guess = _MEANT.match(remedy)
        if guess is None:
            continue
        *parents, tag = loc
        problems.append(Problem(loc=loc, message="is not a known kind", remedy=remedy, value=found[tag]))
        holder = plain
        for parent in parents[:-1]:
            holder[parent] = holder = dict(holder[parent])
        holder[parents[-1]] = {**found, tag: guess[1]}


def _wrong(plain: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any], str]]:
    """Every mapping with a kind that does not exist, the path of the kind, and what to write instead."""
    space = plain.get("space")
    domains = space.items() if isinstance(space, Mapping) else ()
    for loc, found in (
        (("policy", "kind"), plain.get("policy")),
        (("sampler", "kind"), plain.get("sampler")),
        *((("space", name, "type"), domain) for name, domain in domains),
    ):
        kind = found.get(loc[-1]) if isinstance(found, Mapping) else None
        if isinstance(kind, str) and kind not in (kinds := known_keys((*loc[:-1], "?"))):
            yield loc, found, elsewhere.hint(loc, kind) or nearest(kind, kinds)
