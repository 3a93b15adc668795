"""Between the models of a spec and its protobuf messages.

Both directions go field by field. What an unset message field means is decided here: an absent sampler is random,
an absent policy is `auto`, and 0 means what `spec.proto` says. `from_proto` builds plain data and leaves every
judgement to `spec_of`, so a client in any language gets the same violations with the same paths.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec.code import OnCodeChange
from headrace.spec.convert_plan import plan_data, plan_to_proto, trial_plan_data, trial_plan_to_proto
from headrace.spec.convert_policy import listed_rungs, policy_data, policy_to_proto
from headrace.spec.convert_resources import (
    elastic_data,
    elastic_to_proto,
    resources_data,
    resources_to_proto,
)
from headrace.spec.convert_sampler import (
    constraint_data,
    constraint_to_proto,
    objective_data,
    objective_to_proto,
    sampler_data,
    sampler_to_proto,
    warm_start_data,
    warm_start_to_proto,
)
from headrace.spec.convert_surrogate import gate_data, gate_to_proto, surrogate_data, surrogate_to_proto
from headrace.spec.convert_values import Scalar
from headrace.spec.convert_values import params_to_proto as params_to_proto
from headrace.spec.convert_values import value_from_proto as value_from_proto
from headrace.spec.convert_values import value_to_proto as value_to_proto
from headrace.spec.domains import CategoricalDomain, Condition, Domain, FloatDomain, IntDomain
from headrace.spec.scalars import check_value, value_to_json
from headrace.spec.study import StudySpec, spec_of
from headrace.spec.template import TrialTemplate
from headrace.spec.transfer import Transfer
from headrace.v1 import spec_pb2 as pb

ON_CODE_CHANGE: Final = {
    OnCodeChange.WARN: pb.ON_CODE_CHANGE_WARN,
    OnCodeChange.PAUSE: pb.ON_CODE_CHANGE_PAUSE,
    OnCodeChange.REFUSE: pb.ON_CODE_CHANGE_REFUSE,
}


def params_from_proto(message: pb.ParameterAssignment, *, field: str = "parameters") -> dict[str, Scalar]:
    """A configuration from a message; raises `InvalidFieldError` where a value is not set."""
    params = {name: value_from_proto(message.values[name]) for name in sorted(message.values)}
    missing = [name for name, value in params.items() if value is None]
    if missing:
        raise InvalidFieldError(
            Violation(
                field=f"{field}.{name}", message="has no value", remedy="Set one of the kinds of value."
            )
            for name in missing
        )
    return {name: value for name, value in params.items() if value is not None}


def params_to_json(params: Mapping[str, Scalar]) -> dict[str, Any]:
    """A configuration as JSON that JSONB gives back with every value's type."""
    return {name: value_to_json(value) for name, value in params.items()}


def params_from_json(data: Mapping[str, Any]) -> dict[str, Scalar]:
    """The configuration that `params_to_json` wrote."""
    return {name: check_value(value) for name, value in data.items()}


def to_proto(spec: StudySpec) -> pb.StudySpec:
    """The spec as a message."""
    message = pb.StudySpec(
        objective=objective_to_proto(spec.objective),
        space=[_parameter(name, domain) for name, domain in spec.space.items()],
        sampler=sampler_to_proto(spec.sampler),
        policy=policy_to_proto(spec.policy),
        resources=resources_to_proto(spec.resources),
        max_trials=spec.max_trials,
        max_parallel=spec.max_parallel,
        max_steps=spec.max_steps,
        max_retries=spec.max_retries,
        max_early_failures=spec.max_early_failures,
        seed=spec.seed,
        enqueued=[params_to_proto(assignment) for assignment in spec.enqueued],
        checkpoints_kept=spec.checkpoints_kept,
        weight=spec.weight,
        priority=spec.priority,
        after=spec.after or "",
        further_objectives=[objective_to_proto(objective) for objective in spec.further_objectives],
        constraints=[constraint_to_proto(constraint) for constraint in spec.constraints],
        bubbles=spec.bubbles,
    )
    if spec.template is not None:
        message.template.CopyFrom(_template(spec.template))
    if spec.baseline is not None:
        message.baseline.CopyFrom(params_to_proto(spec.baseline))
    if spec.elastic is not None:
        message.elastic.CopyFrom(elastic_to_proto(spec.elastic))
    if spec.fuse is not None:
        message.fuse.CopyFrom(pb.Fuse(most=spec.fuse.most, apart=spec.fuse.apart, auto=spec.fuse.auto))
    if spec.surrogate is not None:
        message.surrogate.CopyFrom(surrogate_to_proto(spec.surrogate))
    if spec.gate is not None:
        message.gate.CopyFrom(gate_to_proto(spec.gate))
    if spec.transfer is not None:
        message.transfer.CopyFrom(_transfer(spec.transfer))
    if spec.warm_start is not None:
        message.warm_start.CopyFrom(warm_start_to_proto(spec.warm_start))
    if spec.until is not None:
        until = spec.until
        message.until.CopyFrom(
            pb.Until(value=until.value, hours=until.hours, no_improvement=until.no_improvement or 0)
        )
    if spec.on_code_change is not OnCodeChange.WARN:  # so the message of any other study is as it was
        message.on_code_change = ON_CODE_CHANGE[spec.on_code_change]
    if spec.extended is not None:
        message.extended.CopyFrom(pb.Extended(trials=spec.extended.trials, steps=spec.extended.steps))
    return message


def from_proto(message: pb.StudySpec, *, stored: bool = False) -> StudySpec:
    """The spec that a message describes; raises `InvalidFieldError` with all violations otherwise.

    With `stored` it is the spec of a study that exists: each field is checked, but not the rules between them, since an
    older release may have accepted what a newer one refuses.
    """
    repeats = _repeated_names(message.space)
    if repeats:
        raise InvalidFieldError(repeats)
    data: dict[str, Any] = {
        "objective": objective_data(message.objective),
        "space": {parameter.name: _domain_data(parameter) for parameter in message.space},
        "resources": resources_data(message.resources),
        "max_trials": message.max_trials,
        "max_parallel": message.max_parallel,
        "max_retries": message.max_retries,
        "max_early_failures": message.max_early_failures or 3,
        "seed": message.seed,
        "enqueued": [_values(assignment) for assignment in message.enqueued],
        "checkpoints_kept": message.checkpoints_kept,
        "weight": message.weight or 1.0,
        "priority": message.priority,
        "further_objectives": [objective_data(objective) for objective in message.further_objectives],
        "constraints": [constraint_data(constraint) for constraint in message.constraints],
        "bubbles": message.bubbles,
    }
    if message.max_steps or not listed_rungs(message.policy):
        data["max_steps"] = message.max_steps
    if (sampler := sampler_data(message.sampler)) is not None:
        data["sampler"] = sampler
    if (policy := policy_data(message.policy)) is not None:
        data["policy"] = policy
    if message.HasField("template"):
        data["template"] = _template_data(message.template)
    if message.HasField("baseline"):
        data["baseline"] = _values(message.baseline)
    if message.HasField("elastic"):
        data["elastic"] = elastic_data(message.elastic)
    if message.HasField("fuse"):
        data["fuse"] = {
            "most": message.fuse.most,
            "apart": list(message.fuse.apart),
            "auto": message.fuse.auto,
        }
        if message.fuse.auto and not message.fuse.most:
            del data["fuse"]["most"]
    if message.HasField("surrogate"):
        data["surrogate"] = surrogate_data(message.surrogate)
    if message.HasField("gate"):
        data["gate"] = gate_data(message.gate)
    if message.after:
        data["after"] = message.after
    if message.HasField("transfer"):
        data["transfer"] = _transfer_data(message.transfer)
    if message.HasField("warm_start"):
        data["warm_start"] = warm_start_data(message.warm_start)
    if message.HasField("until"):
        data["until"] = _until_data(message.until)
    if message.on_code_change != pb.ON_CODE_CHANGE_UNSPECIFIED:
        known = {number: choice for choice, number in ON_CODE_CHANGE.items()}
        data["on_code_change"] = known.get(message.on_code_change, str(message.on_code_change))
    if message.HasField("extended"):
        data["extended"] = {"trials": message.extended.trials, "steps": list(message.extended.steps)}
    return spec_of(data, stored=stored)


def _until_data(message: pb.Until) -> dict[str, Any]:
    return {
        "value": message.value if message.HasField("value") else None,
        "hours": message.hours if message.HasField("hours") else None,
        "no_improvement": message.no_improvement or None,
    }


def _parameter(name: str, domain: Domain) -> pb.Parameter:
    message = pb.Parameter(name=name, conditions=[_condition(condition) for condition in domain.conditions])
    match domain:
        case FloatDomain():
            message.float.CopyFrom(
                pb.FloatDomain(low=domain.low, high=domain.high, log=domain.log, step=domain.step or 0.0)
            )
        case IntDomain():
            message.int.CopyFrom(
                pb.IntDomain(low=domain.low, high=domain.high, log=domain.log, step=domain.step)
            )
        case CategoricalDomain():
            message.categorical.CopyFrom(
                pb.CategoricalDomain(values=[value_to_proto(value) for value in domain.values])
            )
    return message


def _condition(condition: Condition) -> pb.Condition:
    return pb.Condition(
        parameter=condition.parameter,
        values=[value_to_proto(value) for value in condition.values],
        **condition.bounds,
    )


def _template(template: TrialTemplate) -> pb.TrialTemplate:
    message = pb.TrialTemplate(working_dir=template.working_dir, env=template.env, python=template.python)
    if template.callable is not None:
        message.callable = template.callable
    if template.command is not None:
        message.command.CopyFrom(pb.CommandLine(args=template.command.args))
    if template.grace is not None:
        message.grace.FromTimedelta(template.grace)
    if template.report_timeout is not None:
        message.report_timeout.FromTimedelta(template.report_timeout)
    if template.timeout is not None:
        message.timeout.FromTimedelta(template.timeout)
    if not template.prestart:
        message.prestart = False
    if template.plan is not None:
        message.plan.CopyFrom(trial_plan_to_proto(template.plan))
    if template.code is not None:
        message.code.CopyFrom(pb.Code(**template.code.model_dump()))
    message.requirements = template.requirements
    return message


def _transfer(transfer: Transfer) -> pb.Transfer:
    return pb.Transfer(
        callable=transfer.callable,
        top=transfer.top,
        eager=transfer.eager or 0.0,
        steps=transfer.steps or 0,
        resources=resources_to_proto(transfer.resources),
        plan=None if transfer.plan is None else plan_to_proto(transfer.plan),
    )


def _transfer_data(message: pb.Transfer) -> dict[str, Any]:
    numbers = {name: value for name in ("top", "eager", "steps") if (value := getattr(message, name))}
    plan = {"plan": plan_data(message.plan)} if message.HasField("plan") else {}
    return {"callable": message.callable, **numbers, "resources": resources_data(message.resources), **plan}


def _repeated_names(space: Iterable[pb.Parameter]) -> list[Violation]:
    seen: set[str] = set()
    repeats: list[Violation] = []
    for index, parameter in enumerate(space):
        if parameter.name in seen:
            repeats.append(
                Violation(
                    field=f"space[{index}].name",
                    value=show_value(parameter.name),
                    message="is the name of an earlier parameter",
                    remedy="Give every parameter a name of its own.",
                )
            )
        seen.add(parameter.name)
    return repeats


def _domain_data(message: pb.Parameter) -> dict[str, Any]:
    conditions = [_condition_data(condition) for condition in message.conditions]
    match message.WhichOneof("domain"):
        case "float":
            number = message.float
            return {
                "type": "float",
                "low": number.low,
                "high": number.high,
                "log": number.log,
                "step": number.step if number.step else None,
                "conditions": conditions,
            }
        case "int":
            whole = message.int
            return {
                "type": "int",
                "low": whole.low,
                "high": whole.high,
                "log": whole.log,
                "step": whole.step if whole.step else 1,
                "conditions": conditions,
            }
        case "categorical":
            values = [value_from_proto(value) for value in message.categorical.values]
            return {"type": "categorical", "values": values, "conditions": conditions}
        case _:
            return {"conditions": conditions}


def _condition_data(message: pb.Condition) -> dict[str, Any]:
    given = {field.name: value for field, value in message.ListFields()}  # of the bounds those that are set
    return given | {
        "parameter": message.parameter,
        "values": [value_from_proto(value) for value in message.values],
    }


def _template_data(message: pb.TrialTemplate) -> dict[str, Any]:
    data: dict[str, Any] = {
        "working_dir": message.working_dir,
        "env": dict(message.env),
        "python": message.python,
    }
    match message.WhichOneof("program"):
        case "callable":
            data["callable"] = message.callable
        case "command":
            data["command"] = {"args": list(message.command.args)}
    if message.HasField("grace"):
        data["grace"] = _seconds(message.grace)
    if message.HasField("report_timeout"):
        data["report_timeout"] = _seconds(message.report_timeout)
    if message.HasField("timeout"):
        data["timeout"] = _seconds(message.timeout)
    if message.HasField("prestart"):
        data["prestart"] = message.prestart
    if message.HasField("plan"):
        data["plan"] = trial_plan_data(message.plan)
    if message.HasField("code"):
        data["code"] = {field.name: value for field, value in message.code.ListFields()}
    data["requirements"] = message.requirements
    return data


def _seconds(message: Duration) -> timedelta | float:
    """The duration, to the microsecond; one that Python cannot hold as a number, for validation to refuse."""
    if not 0 <= message.seconds <= 10**10:
        return float(message.seconds)
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _values(message: pb.ParameterAssignment) -> dict[str, Any]:
    return {name: value_from_proto(message.values[name]) for name in sorted(message.values)}
