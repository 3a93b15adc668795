"""A spec comes back equal from protobuf and from JSON, with bools, integers and floats distinct."""

import json
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from spec_samples import SOUND, assert_says
from tiers import drawn

from headrace.bounds import numbers
from headrace.errors import InvalidFieldError
from headrace.spec import (
    AshaArrival,
    AshaPolicy,
    AshaVariant,
    AutoPolicy,
    CategoricalDomain,
    CommandLine,
    Condition,
    FloatDomain,
    Goal,
    GridSampler,
    HyperbandPolicy,
    IntDomain,
    MedianPolicy,
    Objective,
    PashaPolicy,
    RandomSampler,
    Resources,
    RunAllPolicy,
    RungMedianPolicy,
    StudySpec,
    SuccessiveHalvingPolicy,
    TrialTemplate,
    Until,
    from_proto,
    params_from_json,
    params_from_proto,
    params_to_json,
    params_to_proto,
    parse_spec,
    to_proto,
)
from headrace.spec.conditions import impossible_problems
from headrace.spec.extended import Extended
from headrace.spec.space import draw
from headrace.v1 import spec_pb2 as pb

INT64 = st.integers(-(2**63), 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,10}", fullmatch=True)
SCALARS = st.one_of(st.booleans(), INT64, FINITE, TEXT)


def typed(value):
    """A form in which 1, 1.0 and True differ."""
    match value:
        case dict():
            return {key: typed(item) for key, item in value.items()}
        case list() | tuple():
            return [typed(item) for item in value]
        case _:
            return type(value), value


def through_jsonb(value):
    """What Postgres does to JSON: keys in its own order, numbers as decimals without an exponent."""

    class Decimals(float):
        pass

    def write(item):
        match item:
            case dict():
                keys = sorted(item, key=lambda key: (len(key.encode()), key.encode()))
                return "{" + ", ".join(f"{json.dumps(key)}: {write(item[key])}" for key in keys) + "}"
            case list():
                return "[" + ", ".join(map(write, item)) + "]"
            case bool() | None | str():
                return json.dumps(item)
            case _:
                return format(Decimal(json.dumps(item)), "f")

    return json.loads(write(value))


NUMBER = "number"
"""The parameter from 0 to 1 with which each space starts."""


@st.composite
def domains(draw_, parents):
    conditions = []
    for name in draw_(st.lists(st.sampled_from(sorted(parents)), max_size=2, unique=True)) if parents else []:
        values = draw_(
            st.lists(st.sampled_from(parents[name].values), min_size=1, max_size=2, unique_by=repr)
        )
        conditions.append(Condition(parameter=name, values=values))
    if draw_(st.booleans()):
        sides = {"above": 0.25, "at_least": 0.5, "below": 1.0, "at_most": 0.75}
        given_ = draw_(st.lists(st.sampled_from(sorted(sides)), min_size=1, max_size=4, unique=True))
        conditions.append(Condition(parameter=NUMBER, **{side: sides[side] for side in given_}))
    match draw_(st.sampled_from(["float", "log", "step", "int", "int_log", "categorical"])):
        case "float":
            low, high = sorted(draw_(st.lists(FINITE, min_size=2, max_size=2, unique_by=lambda x: x + 0.0)))
            return FloatDomain(low=low, high=high, conditions=conditions)
        case "log":
            low = draw_(st.floats(1e-300, 1e200))
            return FloatDomain(
                low=low, high=low * draw_(st.floats(1.5, 1e50)), log=True, conditions=conditions
            )
        case "step":
            low = draw_(st.floats(-1e6, 1e6))
            step = draw_(st.floats(1e-3, 1e3))
            return FloatDomain(low=low, high=low + 2 * step + 1, step=step, conditions=conditions)
        case "int":
            low, high = sorted((draw_(INT64), draw_(INT64)))
            step = draw_(st.integers(1, min(high - low, 2**63 - 1))) if high > low else 1
            return IntDomain(low=low, high=high, step=step, conditions=conditions)
        case "int_log":
            low, high = sorted((draw_(st.integers(1, 2**63 - 1)), draw_(st.integers(1, 2**63 - 1))))
            return IntDomain(low=low, high=high, log=True, conditions=conditions)
        case _:
            values = []
            for value in draw_(st.lists(SCALARS, min_size=1, max_size=5)):
                clash = any(
                    isinstance(value, bool) == isinstance(other, bool) and value == other for other in values
                )
                if not clash:
                    values.append(value)
            return CategoricalDomain(values=values, conditions=conditions)


def choose(draw_, domain):
    match domain:
        case CategoricalDomain():
            return draw_(st.sampled_from(domain.values))
        case IntDomain(log=True):
            return draw_(st.integers(domain.low, domain.high))
        case IntDomain():
            return domain.value_at(draw_(st.integers(0, domain.count - 1)))
        case FloatDomain(step=None):
            return draw_(st.floats(domain.low, domain.high))
        case _:
            return domain.value_at(draw_(st.integers(0, domain.count - 1)))


@st.composite
def specs(draw_):
    space, parents = {NUMBER: FloatDomain(low=0.0, high=1.0)}, {}
    for name in draw_(
        st.lists(NAMES.filter(lambda name: name != NUMBER), min_size=1, max_size=5, unique=True)
    ):
        space[name] = draw_(domains(parents))
        if isinstance(space[name], CategoricalDomain):
            parents[name] = space[name]
    assume(not list(impossible_problems(space)))
    max_steps = draw_(st.integers(1, 10**12))
    rungs = sorted({*draw_(st.lists(st.integers(1, max_steps), max_size=4)), max_steps})
    variant = draw_(st.sampled_from(AshaVariant))
    eta = draw_(st.integers(2, numbers.ETA))
    policy = draw_(
        st.sampled_from(
            [
                RunAllPolicy(),
                AutoPolicy(eta=eta, rungs=rungs, effort=draw_(st.floats(0, 1))),
                AutoPolicy(min_steps=draw_(st.integers(1, max_steps)), price_pauses=draw_(st.booleans())),
                AshaPolicy(variant=variant, eta=eta, rungs=rungs, brackets=draw_(st.integers(1, len(rungs)))),
                AshaPolicy(
                    eta=eta, arrival=draw_(st.sampled_from(AshaArrival)), effort=draw_(st.floats(0, 1))
                ),
                AshaPolicy(variant=variant, eta=eta, min_steps=draw_(st.integers(1, max_steps))),
                SuccessiveHalvingPolicy(eta=eta, rungs=rungs, cohort=draw_(st.integers(1, numbers.TRIALS))),
                HyperbandPolicy(eta=eta, rungs=rungs, price_pauses=draw_(st.booleans())),
                PashaPolicy(eta=eta, epsilon=draw_(st.none() | st.just(0.0) | st.floats(0, 1e300))),
                MedianPolicy(rungs=rungs, variant="vizier", completed_only=draw_(st.booleans())),
                MedianPolicy(rungs=rungs, min_peers=draw_(st.none() | st.integers(1, numbers.TRIALS))),
                RungMedianPolicy(tolerance=draw_(st.floats(0, 0.99)), grace_steps=max_steps),
            ]
        )
    )
    points = {
        name: draw_(st.integers(1, 100))
        for name, domain in space.items()
        if isinstance(domain, FloatDomain) and domain.step is None
    }
    seconds = st.none() | st.integers(1, 10**12).map(lambda us: timedelta(microseconds=us))
    program = draw_(
        st.sampled_from(
            [
                {"callable": "a.b:c"},
                {
                    "command": CommandLine(
                        args=("run", "{trial}", "{{x}}", draw_(TEXT).replace("{", "").replace("}", ""))
                    )
                },
            ]
        )
    )
    template = TrialTemplate(
        **program,
        working_dir="/" + draw_(TEXT),
        env=draw_(st.dictionaries(NAMES.map("E".__add__), TEXT, max_size=2)),
        grace=draw_(seconds),
        report_timeout=draw_(seconds),
        timeout=draw_(seconds),
        prestart=draw_(st.booleans()),
    )
    gpus = draw_(st.integers(0, 8))
    max_trials = draw_(st.integers(3, numbers.TRIALS))
    configurations = [draw(space, lambda _, domain: choose(draw_, domain)) for _ in range(3)]
    return StudySpec(
        objective=Objective(metric=draw_(NAMES), goal=draw_(st.sampled_from(Goal))),
        space=space,
        sampler=draw_(st.sampled_from([RandomSampler(), GridSampler(points=points)])),
        policy=policy,
        template=None if "trial" in space or "seed" in space else draw_(st.sampled_from([None, template])),
        resources=Resources(
            gpus=gpus,
            gpu_memory_bytes=draw_(st.integers(0, numbers.BYTES)) if gpus else 0,
            exclusive=bool(gpus) and draw_(st.booleans()),
            labels=draw_(st.dictionaries(NAMES, TEXT, max_size=2)),
        ),
        max_trials=max_trials,
        max_parallel=draw_(st.integers(0, numbers.COUNT)),
        max_steps=max_steps,
        max_retries=draw_(st.integers(0, numbers.COUNT)),
        max_early_failures=draw_(st.integers(1, numbers.COUNT)),
        seed=draw_(st.integers(0, 2**63 - 1)),
        baseline=draw_(st.sampled_from([None, configurations[0]])),
        enqueued=draw_(st.sampled_from([[], configurations[1:]])),
        checkpoints_kept=draw_(st.integers(0, numbers.COUNT)),
        until=draw_(
            st.none()
            | st.builds(
                Until,
                value=FINITE,
                hours=st.none() | st.floats(1e-6, numbers.HOURS),
                no_improvement=st.none() | st.integers(1, numbers.TRIALS),
            )
        ),
        extended=draw_(st.none() | st.builds(Extended, trials=st.integers(1, max_trials))),
    )


ROUND_TRIP = settings(max_examples=drawn(first=40, full=150), suppress_health_check=[HealthCheck.too_slow])


@ROUND_TRIP
@given(specs())
def test_through_protobuf(spec):
    message = pb.StudySpec.FromString(to_proto(spec).SerializeToString())
    back = from_proto(message)
    assert back == spec
    assert typed(back.model_dump()) == typed(spec.model_dump())
    assert list(back.space) == list(spec.space)
    assert to_proto(back) == message


@ROUND_TRIP
@given(specs())
def test_through_json_and_jsonb(spec):
    dumped = spec.model_dump(mode="json")
    for back in (parse_spec(json.loads(json.dumps(dumped))), parse_spec(through_jsonb(dumped))):
        assert back == spec
        assert typed(back.model_dump()) == typed(spec.model_dump())
        assert list(back.space) == list(spec.space)
        assert back.model_dump(mode="json") == dumped


@given(st.dictionaries(NAMES, SCALARS, max_size=5))
def test_configurations(params):
    assert typed(params_from_proto(params_to_proto(params))) == typed(params)
    assert typed(params_from_json(through_jsonb(params_to_json(params)))) == typed(params)


def test_large_floats_stay_floats():
    params = {"a": 1e16, "b": -1e300, "c": 1.0, "d": 10**16, "e": True, "f": "1"}
    assert typed(params_from_json(through_jsonb(params_to_json(params)))) == typed(params)
    # Without care a float comes back as an integer, which the spec guards against.
    assert type(through_jsonb({"a": 1e16})["a"]) is int


def test_durations_keep_their_microseconds():
    spec = parse_spec(
        {**SOUND, "template": {**SOUND["template"], "grace": 1.000001, "report_timeout": 86400.5}}
    )
    assert spec.template.grace == timedelta(seconds=1, microseconds=1)
    assert from_proto(to_proto(spec)) == spec
    assert parse_spec(spec.model_dump(mode="json")) == spec


def test_what_unset_fields_mean():
    message = to_proto(parse_spec({**SOUND, "policy": {"kind": "asha"}, "template": None}))
    message.ClearField("policy")
    message.ClearField("sampler")
    spec = from_proto(message)
    assert spec.policy == AutoPolicy()
    assert spec.sampler == RandomSampler()
    assert spec.template is None


def test_an_unset_variant_is_promotion_and_0_brackets_are_1():
    message = to_proto(parse_spec(SOUND))
    message.policy.asha.variant = pb.ASHA_VARIANT_UNSPECIFIED
    message.policy.asha.brackets = 0
    message.max_steps = 0
    spec = from_proto(message)
    assert spec.policy.variant is AshaVariant.PROMOTION
    assert spec.policy.brackets == 1
    assert spec.max_steps == 27


def corrupted(change):
    message = to_proto(parse_spec(SOUND))
    change(message)
    return message


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        (lambda m: m.objective.ClearField("goal"), "objective.goal", "is required"),
        (
            lambda m: setattr(m.objective, "goal", 77),
            "objective.goal",
            "not a known choice | minimize, maximize",
        ),
        (lambda m: m.objective.ClearField("metric"), "objective.metric", "invalid metric name ''"),
        (lambda m: m.space[1].ClearField("float"), "space.lr.type", "is required | float, int, categorical"),
        (lambda m: m.space.add(name="lr"), "space[4].name", "earlier parameter | a name of its own"),
        (
            lambda m: m.space[0].categorical.values.add(),
            "space.optimizer.values[2]",
            "must be a number, a text",
        ),
        (lambda m: m.policy.asha.ClearField("eta"), "policy.eta", "at least 2"),
        (lambda m: m.sampler.best_of.SetInParent(), "sampler.study", "invalid study name ''"),
        (lambda m: setattr(m.policy.asha, "variant", 9), "policy.variant", "not a known choice"),
        (lambda m: setattr(m, "max_steps", -1), "max_steps", "at least 1"),
        (lambda m: m.template.ClearField("callable"), "template.callable", "is required"),
        (lambda m: m.template.grace.FromSeconds(-5), "template.grace", "0 or more | such as 30"),
        (lambda m: m.template.grace.FromSeconds(300_000_000_000), "template.grace", "at most"),
        (lambda m: m.baseline.values["lr"].Clear(), "baseline.lr", "must be a number, a text | none"),
        (lambda m: setattr(m.space[1].float, "low", float("nan")), "space.lr.low", "finite"),
    ],
)
def test_bad_messages(change, path, says):
    with pytest.raises(InvalidFieldError) as raised:
        from_proto(corrupted(change))
    assert_says({violation.field: violation for violation in raised.value.violations}[path], says)


def test_a_value_that_is_not_set():
    message = pb.ParameterAssignment()
    message.values["lr"].SetInParent()
    with pytest.raises(InvalidFieldError) as raised:
        params_from_proto(message, field="parameters[2]")
    assert raised.value.violations[0].field == "parameters[2].lr"


def test_an_empty_message_names_all_that_is_missing():
    with pytest.raises(InvalidFieldError) as raised:
        from_proto(pb.StudySpec())
    fields = {violation.field for violation in raised.value.violations}
    assert {"objective.metric", "objective.goal", "space", "max_trials", "max_steps"} <= fields
