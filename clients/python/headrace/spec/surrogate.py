"""Surrogates: the trials of a study train a small copy of a model, and a gate first checks that the copy
represents it.

The trial's function calls `t.model(make_model)` or `bundle.model(make_model)`, and gets the copy. The copy uses
maximal update parametrization, so that its best hyperparameters are those of the model.

The gate is an ordinary study, `NAME-gate`, with one trial whose function belongs to the library. The actual
study starts `after` it. With `scale: auto`, a pilot study precedes the gate (`headrace.spec.pilot`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, PlainValidator, model_validator

from headrace.bounds import numbers
from headrace.spec.domains import CategoricalDomain, Domain, SpecModel
from headrace.spec.function import CALLABLE
from headrace.spec.pilot import AUTO, Pilot, pilot_problems
from headrace.spec.problems import ABSENT, Problem, Unknown, fault, reject
from headrace.spec.resources import Processes, Resources
from headrace.spec.scalars import Flag, Text, integer_within
from headrace.spec.template import TrialTemplate

SUFFIX: Final = "-gate"
GATE: Final = "headrace_torch.hydro.gate_trial:run"
"""The function of a gate's trial."""
WORST_SLOPE: Final = "worst_slope"
"""The metric that it reports: how steeply the change of some activation depends on the width; 0 is best."""
GATE_STEPS: Final = 2
"""It reports its findings in the first step, and fails or completes in the second."""
PLOT: Final = "coordinate_check.svg"
"""The plot in its checkpoint."""


def _function(value: str) -> str:
    if not CALLABLE.fullmatch(value):
        raise fault(
            "is not of the form `module:function`",
            "Write the module as Python imports it, a colon and the function, such as train:make_model.",
        )
    return value


Function = Annotated[Text, AfterValidator(_function)]
Size = Annotated[int, PlainValidator(integer_within(1, numbers.STEPS))]


_SIZES: Final = ("width", "scale", "pilot", "scale_by")


def _scale(value: Any) -> int:
    if isinstance(value, str):
        raise fault("must be a whole number or auto", "Write scale: 8, or scale: auto.")
    return _whole(value)


_whole = integer_within(1, numbers.STEPS)


class Surrogate(SpecModel):
    """Which model is made smaller, and by how much.

    `scale_by` replaces the size in a pilot's study: it names the parameter with each trial's scale.
    """

    model: Function
    width: Size | None = None
    scale: Annotated[int, PlainValidator(_scale)] | None = None
    pilot: Pilot | None = None
    scale_by: Text | None = None
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    inputs: Function | None = None
    accept: tuple[Text, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _automatic(cls, data: Any) -> Any:
        """`scale: auto` is a pilot with default settings, unless there is a mapping `pilot`."""
        if not isinstance(data, Mapping) or data.get("scale") != AUTO:
            return data
        return {**data, "scale": None, "pilot": data.get("pilot") or {}}

    @model_validator(mode="after")
    def _sound(self) -> Self:
        said = [name for name in _SIZES if getattr(self, name) is not None]
        if not said:
            reject(
                [
                    Problem(
                        loc=("width",),
                        message="is required where there is no scale",
                        remedy="Say how wide the copy is, width: 64, or how many times narrower, scale: 8 or auto.",
                    )
                ]
            )
        if len(said) > 1:
            first, other = said[:2]
            reject(
                [
                    Problem(
                        loc=(other,),
                        value=self.scale if other == "scale" else ABSENT,
                        message=f"cannot be combined with {first}",
                        remedy="Keep one of them.",
                    )
                ]
            )
        return self


class Gate(SpecModel):
    """How the surrogate is checked. The client fills in `key`, and the scheduler `study`."""

    off: Flag = False
    widths: tuple[Size, ...] = ()
    key: Text = ""
    study: Text = ""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.widths and len(set(self.widths)) < 2:
            reject(
                [
                    Problem(
                        loc=("widths",),
                        value=list(self.widths),
                        message="has fewer than two widths",
                        remedy="The check compares widths: name two at least, better four, each twice the last.",
                    )
                ]
            )
        return self


def _switch(value: Any) -> Any:
    """`true` is a gate with default settings, `false` is none."""
    if isinstance(value, bool):
        return {"off": not value}
    if not isinstance(value, Mapping | Gate):
        raise fault(
            "must be true, false or a mapping", "Write gate: false, or gate: {widths: [64, 128, 256]}."
        )
    return value


GateOrSwitch = Annotated[Gate, BeforeValidator(_switch)]


def gate_name(name: str) -> str:
    """The name of the gate for a study of this name."""
    return f"{name}{SUFFIX}"


def gate_fields(template: TrialTemplate, resources: Resources) -> dict[str, Any]:
    """The fields in which a gate differs from its study."""
    smallest = resources.each[0]
    return {
        "objective": {"metric": WORST_SLOPE, "goal": "minimize"},
        "policy": {"kind": "run_all"},
        "template": {
            **template.model_dump(),
            "callable": GATE,
            "report_timeout": None,
            "timeout": None,
            "prestart": False,
        },
        "resources": {
            **smallest.model_dump(),
            "gpus": min(1, smallest.gpus),
            "processes": Processes.ONE,
            "by": None,
        },
        "max_trials": 1,
        "max_steps": GATE_STEPS,
        "max_retries": 0,
    }


def surrogate_problems(
    known: Mapping[str, Any], declared: Sequence[str], space: Mapping[str, Domain]
) -> Iterator[Problem]:
    """Conflicts between `surrogate`, `gate` and the study's other valid fields."""
    surrogate: Surrogate | None = known.get("surrogate")
    if surrogate is None:
        if known.get("gate") is not None and "surrogate" in known:
            yield Problem(
                loc=("gate",),
                message="has nothing to check, for the study has no surrogate",
                remedy="Leave gate out, or add surrogate: {model: train:make_model, width: 64}.",
            )
        return
    template: TrialTemplate | None = known.get("template")
    if "template" in known and (template is None or template.callable is None):
        yield Problem(
            loc=("surrogate",),
            message="needs a trial that is a callable, which asks for its model",
            remedy="Name a function: trial: {callable: train:train}.",
        )
    for place, name in enumerate(surrogate.accept):
        if name not in declared:
            unknown = Unknown(word=name, known=declared, noun="parameter")
            yield Problem(
                loc=("surrogate", "accept", place),
                value=name,
                message="is not a parameter",
                unknown=unknown,
            )
    is_gate = template is not None and template.callable == GATE
    if surrogate.pilot is not None and not is_gate:
        yield from pilot_problems(surrogate.pilot, known, declared)
    if surrogate.scale_by is not None and not _says_scales(space.get(surrogate.scale_by)):
        yield Problem(
            loc=("surrogate", "scale_by"),
            value=surrogate.scale_by,
            message="is not a parameter whose values are whole numbers from 1 on",
            remedy="Say how small the copy is, such as scale: 8, or let a pilot find it: scale: auto.",
        )


def _says_scales(domain: Domain | None) -> bool:
    return (
        isinstance(domain, CategoricalDomain)
        and not domain.conditions
        and all(type(one) is int and one >= 1 for one in domain.values)
    )
