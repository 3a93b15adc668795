"""The models of a spec as a tree: which field holds which models, and its word in a study file.

Only this module reads annotations. `convert` walks the tree in parallel with a message, `file` in parallel with
what a user wrote, and the path of a problem is followed down the tree.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from headrace.spec.domains import SpecModel, Written
from headrace.spec.problems import Loc


class Holds(Enum):
    """How a field holds values."""

    ONE = auto()
    LIST = auto()
    BY_NAME = auto()


Models = Mapping[str, type[SpecModel]]
"""The models of a union by their tags; a single model has the tag ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a model."""

    name: str
    word: str | None
    """Its word in a study file. None: nobody writes it. Empty: its value is written in place of the whole model."""
    required: bool
    holds: Holds
    models: Models
    """The models of its value, or of each value. None if values are plain."""


@cache
def fields(model: type[SpecModel]) -> Mapping[str, Field]:
    """The fields of a model, by name."""
    found: dict[str, Field] = {}
    for name, info in model.model_fields.items():
        words = [extra.word for extra in info.metadata if isinstance(extra, Written)]
        holds, models = _held(info.annotation)
        found[name] = Field(
            name=name,
            word=words[0] if words else name,
            required=info.is_required(),
            holds=holds,
            models=models if len(models) < 2 else {tag(model): model for model in models.values()},
        )
    return found


def words(model: type[SpecModel]) -> dict[str, str]:
    """The fields that have a different word in a study file, by that word."""
    return {
        field.word: field.name for field in fields(model).values() if field.word not in (None, "", field.name)
    }


@cache
def tag_field(model: type[SpecModel]) -> str | None:
    """The field that distinguishes the model from the others in its union: its annotation allows only one value."""
    for name, info in model.model_fields.items():
        if get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1:
            return name
    return None


@cache
def tag(model: type[SpecModel]) -> str:
    """The value of that field; empty if there is none."""
    name = tag_field(model)
    return "" if name is None else str(model.model_fields[name].default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One part of a path, and what is below it."""

    part: str | int
    field: Field | None = None
    """The field named by the part."""
    is_mark: bool = False
    """Whether pydantic added it: the tag of a union, or the mark of a key. No user wrote it."""
    models: Models
    """The models that may follow. None if unknown, and before the entry of a list or of a mapping."""


def steps(root: type[SpecModel], loc: Loc) -> Iterator[Step]:
    """Each part of a path, which may or may not have pydantic's marks."""
    holds, models = Holds.ONE, {"": root}
    for part in loc:
        if part == "[key]":
            yield Step(part=part, is_mark=True, models={})
        elif holds is not Holds.ONE:
            holds = Holds.ONE
            yield Step(part=part, models=models)
        elif len(models) > 1 and part in models:
            models = {"": models[str(part)]}
            yield Step(part=part, is_mark=True, models=models)
        else:
            named = (fields(model).get(str(part)) for model in models.values())
            field = next((one for one in named if one is not None), None)
            holds, models = (field.holds, dict(field.models)) if field else (Holds.ONE, {})
            yield Step(part=part, field=field, models=models if holds is Holds.ONE else {})


def models_at(root: type[SpecModel], loc: Loc) -> Models:
    """The models at a path; none if it does not lead to a model."""
    models: Models = {"": root}
    for step in steps(root, loc):
        models = step.models
    return models


def unmarked(root: type[SpecModel], loc: Loc) -> Loc:
    """A path without the parts that pydantic added."""
    return tuple(step.part for step in steps(root, loc) if not step.is_mark)


def written(root: type[SpecModel], loc: Loc) -> Loc:
    """A path in the words of a study file."""
    named = (
        step.part if step.field is None or step.field.word is None else step.field.word
        for step in steps(root, loc)
    )
    return tuple(part for part in named if part != "")


def _held(annotation: Any) -> tuple[Holds, Models]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _held(inner[0])
    if origin in (Union, UnionType):
        held = [_held(one) for one in inner if one is not NoneType]
        models = [model for _, found in held for model in found.values()]
        return held[0][0], {model.__name__: model for model in models} if len(models) > 1 else held[0][1]
    if origin is tuple:
        return Holds.LIST, _held(inner[0])[1]
    if origin is dict:
        return Holds.BY_NAME, _held(inner[1])[1]
    is_model = isinstance(annotation, type) and issubclass(annotation, SpecModel)
    return Holds.ONE, {"": annotation} if is_model else {}
