"""Study files, and mappings with their keys: a spec with friendlier names.

The file says `trials`, `steps`, `trial` and `when` where the spec says `max_trials`, `max_steps`, `template` and
`conditions`: the fields of the models define these words (`Written`). Reading has three steps: YAML to plain
data, the file's words to the spec's names, and the spec's own checks. Violations use the words that the user
wrote.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from headrace.errors import InvalidFieldError
from headrace.spec import elsewhere, file_conditions, file_kinds, file_plans, file_sizes, names, shape
from headrace.spec.domains import FloatDomain, SpecModel
from headrace.spec.problems import Loc, Problem, did_you_mean
from headrace.spec.resources import WHOLE
from headrace.spec.study import StudySpec, plain_loc, spec_of, spec_problems
from headrace.spec.template import TrialTemplate
from headrace.spec.yaml import read_yaml
from headrace.userfile import MIB, UserFile, UserFileError

STUDY_FILE: Final = UserFile(largest_bytes=MIB, remedy="Give the path of a study file in YAML.")

_TOP: Final = shape.words(StudySpec)
_TRIAL: Final = shape.words(TrialTemplate)
_DOMAIN: Final = shape.words(FloatDomain)
_PLACES: Final = tuple(
    field
    for field in shape.fields(StudySpec).values()
    if field.models and field.holds is shape.Holds.ONE and field.word
)
"""The mappings to which a key may belong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """A study file as read: its absolute path, the study's name and the spec."""

    path: Path
    name: str
    spec: StudySpec


def load_study_file(path: str | Path) -> StudyFile:
    """Read a study file; raises `InvalidFieldError` with every violation that it has."""
    where = _resolved(path)
    text = STUDY_FILE.text(Path(path))
    if where.suffix == ".py":
        remedy = f"Give a study file in YAML that names it, as in `trial: {{callable: {where.stem}:train}}`."
        raise UserFileError(Path(path), None, "is a Python script, not a study file", remedy)
    name, spec = parse_study_text(text, folder=where.parent, file=str(path))
    return StudyFile(path=where, name=name, spec=spec)


def parse_study_text(text: str, *, folder: Path, file: str = "") -> tuple[str, StudySpec]:
    """The name and the spec in a study file's text; relative folders in it start from `folder`. Syntax errors
    name `file`.
    """
    data, problems = read_yaml(text, file)
    if not isinstance(data, Mapping):
        problem = Problem(
            loc=(), message="the study file is not a mapping", remedy="Write it as `key: value` pairs."
        )
        raise InvalidFieldError([*(p.violation() for p in problems), problem.violation()])
    named = dict(data)
    name = named.pop("name", None)
    problems += _name_problems(name, missing="name" not in data)
    return str(name), _parsed(named, folder, problems)


def parse_spec(data: Any) -> StudySpec:
    """The spec that a mapping describes, under the keys of a study file or under the spec's own (`max_trials`).

    A relative `working_dir` starts from the current folder. Raises `InvalidFieldError` with all violations.
    """
    return parse_named_spec(data)[1]


def parse_named_spec(data: Any) -> tuple[str | None, StudySpec]:
    """As `parse_spec`, with the study's name if the mapping has one."""
    if not isinstance(data, Mapping) or not _has_keys_of_file(data):
        return None, spec_of(data)
    named = dict(data)
    name = named.pop("name", None)
    problems = _name_problems(name, missing=False) if "name" in data else []
    return name, _parsed(named, Path.cwd(), problems)


def _has_keys_of_file(data: Mapping[Any, Any]) -> bool:
    """Whether a mapping uses the keys of a study file: it has such a key, or none that only a spec has."""
    space = data.get("space")
    domains = space.values() if isinstance(space, Mapping) else ()
    keys = {key for domain in domains if isinstance(domain, Mapping) for key in domain}.union(data)
    if not keys.isdisjoint({"name", *_TOP, *_DOMAIN}):
        return True
    return keys.isdisjoint({*_TOP.values(), *_DOMAIN.values()}) and not isinstance(space, list)


def _parsed(named: Mapping[str, Any], folder: Path, problems: list[Problem]) -> StudySpec:
    plain = _renamed(named, _TOP, (), problems, extra=("name",))
    _spell_out_trial(plain, folder, problems)
    _spell_out_space(plain, problems)
    paths = _spell_out_resources(plain, problems)
    _spell_out_elastic(plain)
    _spell_out_transfer(plain, folder, problems)
    file_kinds.spell_out(plain, problems)
    problems += (empty := _empty_rungs(plain))
    spec: StudySpec | None = None
    try:
        spec = StudySpec.model_validate(plain)
    except ValidationError as error:
        reported = {problem.loc for problem in problems}
        if empty:
            reported.add(("steps",))  # which would follow from the rungs
        found = (_friendly(problem, plain, paths) for problem in spec_problems(error))
        problems += [problem for problem in found if problem.loc not in reported]
    if problems or spec is None:
        raise InvalidFieldError(problem.violation() for problem in problems)
    return spec


def _resolved(path: str | Path) -> Path:
    try:
        return Path(path).resolve()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # circular links, or a NUL: opening the file reports it
        return Path(path).absolute()


def _name_problems(name: object, *, missing: bool) -> list[Problem]:
    if missing:
        return [
            Problem(loc=("name",), message="is required", remedy="Name the study, such as `name: digits`.")
        ]
    found = names.STUDY.problem(name, "name")
    return [found] if found else []


def _renamed(
    data: Mapping[str, Any],
    table: Mapping[str, str],
    loc: Loc,
    problems: list[Problem],
    *,
    extra: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The data under the spec's names. The spec's own spelling of a renamed key is unknown in a file."""
    plain: dict[str, Any] = {}
    for key, value in data.items():
        if key in table.values():
            friendly = next(mine for mine, theirs in table.items() if theirs == key)
            problems.append(
                Problem(loc=(*loc, key), message="is not a known key", remedy=f"Did you mean `{friendly}`?")
            )
            if table is _TOP:
                plain.setdefault(key, value)  # so that it does not also count as missing
        elif table is _TOP and key not in _words(StudySpec):
            remedy = _key_instead((), str(key), [*extra, *_words(StudySpec)])
            problems.append(Problem(loc=(*loc, key), message="is not a known key", remedy=remedy))
        else:
            plain[table.get(key, key)] = value
    return plain


def _spell_out_trial(plain: dict[str, Any], folder: Path, problems: list[Problem]) -> None:
    template = plain.get("template")
    if not isinstance(template, Mapping):
        return
    template = _renamed(template, _TRIAL, ("trial",), problems)
    if template.pop("plan", None) is not None:
        remedy = _key_instead(("trial",), "plan", _words(TrialTemplate))
        problems.append(Problem(loc=("trial", "plan"), message="is not a known key", remedy=remedy))
    directory = template.get("working_dir", ".")
    if isinstance(directory, str):
        with suppress(OSError, RuntimeError, ValueError):  # the spec's checks report what is wrong
            template["working_dir"] = str((folder / Path(directory).expanduser()).resolve())
    if "command" in template:
        template["command"] = {"args": template["command"]}
    if isinstance(template.get("env"), Mapping):
        template["env"] = {name: _env_text(value) for name, value in template["env"].items()}
    plain["template"] = template


def _spell_out_resources(plain: dict[str, Any], problems: list[Problem]) -> file_sizes.Paths:
    """A share of a GPU, written as a fraction: `gpus: 0.25`; and sizes by a parameter."""
    resources = plain.get("resources")
    if not isinstance(resources, Mapping):
        return {}
    plain["resources"], paths = file_sizes.spell_out(
        _share_spelt_out(resources, "gpus"), plain.get("space"), problems
    )
    return paths


def _spell_out_elastic(plain: dict[str, Any]) -> None:
    """Shares of a GPU in the table of grants: `slots: 0.5`."""
    elastic = plain.get("elastic")
    rows = elastic.get("grants") if isinstance(elastic, Mapping) else None
    if isinstance(elastic, Mapping) and isinstance(rows, list | tuple):
        spelt = [_share_spelt_out(row, "slots") if isinstance(row, Mapping) else row for row in rows]
        plain["elastic"] = {**elastic, "grants": spelt}


def _spell_out_transfer(plain: dict[str, Any], folder: Path, problems: list[Problem]) -> None:
    """A share of a GPU in the resources of a transfer's trials, and the files that describe their plan."""
    transfer = plain.get("transfer")
    if not isinstance(transfer, Mapping):
        return
    spelt = {**transfer}
    if isinstance(resources := transfer.get("resources"), Mapping):
        spelt["resources"] = _share_spelt_out(resources, "gpus")
    if isinstance(plan := transfer.get("plan"), Mapping):
        spelt["plan"] = file_plans.spell_out(plan, folder, problems)
    plain["transfer"] = spelt


def _share_spelt_out(written: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A fraction below 1 as `gpu_milli`."""
    share = written.get(key)
    if not isinstance(share, float) or not 0 < share < 1 or "gpu_milli" in written:
        return written
    rest = {name: value for name, value in written.items() if name != key}
    return {**rest, "gpu_milli": round(share * WHOLE)}


def _empty_rungs(plain: Mapping[str, Any]) -> list[Problem]:
    """The problem of an empty list of rungs. (The canonical JSON of a spec has one if the rungs follow from
    min_steps.)
    """
    policy = plain.get("policy")
    if not isinstance(policy, Mapping) or policy.get("rungs") != []:
        return []
    remedy = "List at least one, or leave rungs out and give the budget in steps."
    return [Problem(loc=("policy", "rungs"), value=[], message="is empty", remedy=remedy)]


def _env_text(value: object) -> object:
    """Numbers and booleans of the environment as text; a shell has no other types."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _spell_out_space(plain: dict[str, Any], problems: list[Problem]) -> None:
    if isinstance(plain.get("space"), list):  # the form in canonical JSON
        problems.append(
            Problem(
                loc=("space",), message="must be a mapping", remedy="Write it as `name: {type: …}` pairs."
            )
        )
        del plain["space"]
    if not isinstance(plain.get("space"), Mapping):
        return
    space: dict[str, Any] = {}
    for name, domain in plain["space"].items():
        if isinstance(domain, Mapping):
            domain = _renamed(domain, _DOMAIN, ("space", name), problems)
            when = domain.get("conditions")
            if isinstance(when, Mapping):
                at = ("space", name, "when")
                domain["conditions"] = file_conditions.spelt_out(when, at, problems)
            elif "conditions" in domain:
                del domain["conditions"]
                problems.append(
                    Problem(
                        loc=("space", name, "when"),
                        value=when,
                        message="must be a mapping",
                        remedy="Write it as `when: {parameter: [value, …]}`.",
                    )
                )
        space[name] = domain
    plain["space"] = space


def _friendly(problem: Problem, plain: Mapping[str, Any], paths: file_sizes.Paths) -> Problem:
    """The problem, with the path and the suggestions in the user's words."""
    loc = problem.loc
    remedy = problem.remedy
    if problem.message == "is not a known key" and loc:
        remedy = _key_instead(loc[:-1], str(loc[-1]), _friendly_keys(_tagged(loc[:-1], plain)))
    elif problem.message == "is not a known kind":
        remedy = elsewhere.hint(loc, str(problem.value)) or remedy
    elif loc[:1] == ("space",) and isinstance(space := plain.get("space"), Mapping):
        remedy = elsewhere.space_hint(loc[1:], space) or remedy
    elif loc == ("max_steps",) and problem.message == "is required":
        remedy = (
            "Give the full budget, such as `steps: 27`; without it, it is the last of the policy's `rungs`."
        )
    elif loc == ("objective",) and isinstance(plain.get("objective"), list | tuple):
        remedy = elsewhere.SEVERAL
    elif loc == ("enqueued",) and problem.message == "must be a list":
        remedy = "Write it as [{parameter: value}, …], one mapping a trial."
    if loc[:1] == ("resources",):
        loc = ("resources", *file_sizes.written(loc[1:], paths))
    return replace(problem, loc=_friendly_loc(loc, plain), remedy=remedy)


def _key_instead(loc: Loc, key: str, known: Sequence[str]) -> str:
    """What to write instead of an unknown key: our word for another tuner's key, its right place, or the nearest
    key.
    """
    if hint := elsewhere.hint((*loc, key), key):
        return hint
    here = loc[0] if loc else ""
    if here and key in _words(StudySpec):
        return f"It belongs at the top, as `{key}: …`."
    for place in _PLACES:
        if (
            place.name != here
            and key != "kind"
            and any(key in _words(model) for model in place.models.values())
        ):
            return f"It belongs under `{place.word}`, as in `{place.word}: {{{key}: …}}`."
    return did_you_mean(key, known, noun="key")


def _friendly_loc(loc: Loc, plain: Mapping[str, Any]) -> Loc:
    match loc:
        case ("space", str() as name, "conditions", int() as index, *rest):
            domain = plain["space"][name]
            conditions = domain["conditions"] if isinstance(domain, Mapping) else domain.conditions
            condition = conditions[index]
            parent = condition["parameter"] if isinstance(condition, Mapping) else condition.parameter
            return ("space", name, "when", parent, *(part for part in rest if isinstance(part, int)))
        case _:
            return shape.written(StudySpec, loc)


def _friendly_keys(loc: Loc) -> list[str]:
    """The keys of a study file at a pydantic path."""
    models = [*shape.models_at(StudySpec, loc).values()]
    return _words(models[0]) if len(models) == 1 else []


def _words(model: type[SpecModel]) -> list[str]:
    return [field.word for field in shape.fields(model).values() if field.word]


def _tagged(loc: Loc, plain: Mapping[str, Any]) -> Loc:
    """The path in pydantic's form, with the tag of the union that it leads into."""
    match loc:
        case ("space", str() as name):
            return (*loc, str(plain["space"][name].get("type")))
        case ("policy" | "sampler" as field,):
            return (*loc, str(plain[field].get("kind")))
        case _:
            return plain_loc(loc)
