"""Sizes by a parameter as study files write them: `gpus: {by: batch_size, 64: 1, 256: 2}`.

The spec has one table, `resources.by`, for GPUs and CPU slots. `spell_out` builds it, and maps each path in the
table to what the user wrote.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.spec.problems import Loc, Problem
from headrace.spec.yaml import read_yaml

_KEYS: Final = ("gpus", "cpus")
_BY, _FROM, _ELSE = "by", "from", "else"
_WHOLE: Final = 1000

Paths = dict[Loc, Loc]
"""Maps a path below `resources` to the place where the user wrote it: the longest prefix applies."""


def spell_out(
    resources: Mapping[str, Any], space: object, problems: list[Problem]
) -> tuple[dict[str, Any], Paths]:
    """The resources with one table under `by`, and the paths of its contents. Adds problems to `problems`."""
    plain = dict(resources)
    tables = {key: dict(plain[key]) for key in _KEYS if isinstance(plain.get(key), Mapping)}
    for key in tables:
        del plain[key]
    found = {key: _rows(key, table, problems) for key, table in tables.items()}
    if not found or None in found.values():
        return plain, {}
    if _BY in plain:
        problems.append(
            Problem(
                loc=("resources", _BY),
                message=f"stands beside a table under {next(iter(tables))}",
                remedy="Keep one of the two.",
            )
        )
        return plain, {}
    if len(found) == 2 and not _agree(tables, problems):
        return plain, {}
    first = next(iter(tables))
    under = (_FROM,) if _FROM in tables[first] else ()
    by = {"parameter": tables[first][_BY], "from_value": bool(under), "rows": []}
    paths: Paths = {("by",): (first,), ("by", "parameter"): (first, _BY)}
    domain = space.get(by["parameter"]) if isinstance(space, Mapping) else None
    for place, written in enumerate(found[first] or ()):
        size: dict[str, Any] = {}
        for key in tables:
            size |= _number(key, (found[key] or {})[written])
            paths["by", "rows", place, key] = (key, *under, str(written))
        paths["by", "rows", place] = (first, *under, str(written))
        by["rows"].append({"value": _value(written, domain), **size})
    if _ELSE in tables[first]:
        by["otherwise"] = {}
        for key in tables:
            by["otherwise"] |= _number(key, tables[key][_ELSE])
            paths["by", "otherwise", key] = (key, _ELSE)
        paths["by", "otherwise"] = (first, _ELSE)
    return {**plain, _BY: by}, paths


def written(loc: Loc, paths: Paths) -> Loc:
    """The path as the user wrote it."""
    for length in range(len(loc), 0, -1):
        if loc[:length] in paths:
            return paths[loc[:length]]
    return loc


def _rows(key: str, table: dict[Any, Any], problems: list[Problem]) -> dict[Any, Any] | None:
    """The numbers by value or by threshold; None if it is not a table."""
    example = f"`{key}: {{by: batch_size, 64: 1, 256: 2}}`"
    rows = {value: number for value, number in table.items() if value not in (_BY, _FROM, _ELSE)}
    if not isinstance(table.get(_BY), str):
        remedy = f"Name the parameter that the number depends on, as in {example}."
        problems.append(Problem(loc=("resources", key, _BY), message="is required", remedy=remedy))
        return None
    if _FROM not in table:
        return rows
    if not isinstance(table[_FROM], Mapping):
        remedy = f"Write thresholds as `{key}: {{by: width, from: {{1: 1, 512: 2}}}}`."
        problems.append(
            Problem(
                loc=("resources", key, _FROM), value=table[_FROM], message="must be a mapping", remedy=remedy
            )
        )
        return None
    if rows:
        problems.append(
            Problem(
                loc=("resources", key, str(next(iter(rows)))),
                message="stands beside `from`",
                remedy="List either thresholds under `from`, or values without it.",
            )
        )
        return None
    return dict(table[_FROM])


def _agree(tables: Mapping[str, dict[Any, Any]], problems: list[Problem]) -> bool:
    """Whether GPUs and CPUs depend on the same values of the same parameter."""
    gpus, cpus = tables["gpus"], tables["cpus"]
    same = gpus[_BY] == cpus[_BY] and gpus.keys() == cpus.keys()
    if same and _FROM in gpus:
        same = gpus[_FROM].keys() == cpus[_FROM].keys()
    if not same:
        problems.append(
            Problem(
                loc=("resources", "cpus"),
                message="has other values than gpus",
                remedy=f"Go by {gpus[_BY]} with the same values, or give one number of cpus.",
            )
        )
    return same


def _number(key: str, number: object) -> dict[str, Any]:
    if key == "gpus" and isinstance(number, float) and 0 < number < 1:
        return {"gpu_milli": round(number * _WHOLE)}
    return {key: number}


def _value(written: object, domain: object) -> object:
    """The value that a key represents. YAML keys are strings here; a key that is a string value of the parameter
    stays one.
    """
    if not isinstance(written, str):
        return written
    values = domain.get("values") if isinstance(domain, Mapping) else getattr(domain, "values", None)
    if isinstance(values, list | tuple) and written in values:
        return written
    read, problems = read_yaml(written, "")
    return read if not problems and isinstance(read, bool | int | float) else written
