"""Words of other tuners in a study file get a hint."""

import re

import pytest
from study_file_samples import MINIMAL

from headrace.errors import InvalidFieldError
from headrace.spec import (
    elsewhere,
    parse_spec,
)
from headrace.spec.file import _friendly_keys


@pytest.mark.parametrize(
    ("text", "path", "remedy"),
    [
        (MINIMAL + "direction: maximize\n", "direction", "`objective: {metric: NAME, goal: …}`"),
        (MINIMAL + "mode: max\n", "mode", "`objective: {metric: NAME, goal: …}`"),
        (
            MINIMAL.replace("goal: maximize", "goal: maximize, mode: min"),
            "objective.mode",
            "`goal: minimize`",
        ),
        (
            MINIMAL + "report_timeout_s: 5\n",
            "report_timeout_s",
            "under `trial`, as in `trial: {report_timeout_s: …}`",
        ),
        (MINIMAL + "grace_s: 5\n", "grace_s", "under `trial`"),
        (MINIMAL + "env: {A: b}\n", "env", "under `trial`"),
        (MINIMAL + "eta: 3\n", "eta", "under `policy`, as in `policy: {eta: …}`"),
        (MINIMAL + "rungs: [1, 9]\n", "rungs", "under `policy`"),
        (MINIMAL + "cpus: 2\n", "cpus", "under `resources`"),
        (MINIMAL + "gpu: 1\n", "gpu", "`resources: {gpus: 1}`"),
        (MINIMAL + "stop: {a: 1}\n", "stop", "`steps`"),
        (MINIMAL + "fail_fast: true\n", "fail_fast", "`retries`"),
        (MINIMAL + "time_budget_s: 3\n", "time_budget_s", "until: {hours: 2}"),
        (MINIMAL + "policy: {kind: asha, grace: 3}\n", "policy.grace", "`min_steps`"),
        (MINIMAL + "policy: {kind: pbt, retries: 3}\n", "policy.retries", "at the top, as `retries: …`"),
        (MINIMAL + "policy: {kind: asha, points: 3}\n", "policy.points", "under `sampler`"),
        (MINIMAL + "pruner: median\n", "pruner", "`policy: {kind: asha}`"),
        (MINIMAL + "n_jobs: 2\n", "n_jobs", "`parallel`"),
        (MINIMAL + "num_samples: 2\n", "num_samples", "`trials`"),
        (MINIMAL + "max_t: 9\n", "max_t", "`steps`"),
        (MINIMAL.replace("float", "loguniform"), "space.x.type", "`type: float` with `log: true`"),
        (MINIMAL.replace("float", "uniform"), "space.x.type", "`type: float`"),
        (MINIMAL.replace("float", "choice"), "space.x.type", "`type: categorical` with `values"),
        (MINIMAL.replace("low: 0", "low: 0, q: 1"), "space.x.q", "`step`"),
        (MINIMAL + "policy: {kind: asha, reduction_factor: 3}\n", "policy.reduction_factor", "`eta`"),
        (MINIMAL + "policy: {kind: sha}\n", "policy.kind", "`successive_halving`"),
        (MINIMAL + "policy: ahsa\n", "policy.kind", "`asha`"),
        (
            MINIMAL.replace("objective: {metric: loss, goal: maximize}", "objective: [loss, size]"),
            "objective",
            "the others as `further_objectives: [{metric: NAME, goal: …}]`",
        ),
        (
            MINIMAL.replace("{metric: loss, goal: maximize}", "[{metric: loss, goal: maximize}]"),
            "objective",
            "the others as `further_objectives: [{metric: NAME, goal: …}]`",
        ),
        (
            MINIMAL + "objectives: [{metric: a, goal: minimize}]\n",
            "objectives",
            "`further_objectives: [{metric",
        ),
        (MINIMAL + "sampler: tpee\n", "sampler.kind", "`tpe`"),
        (
            MINIMAL.replace("float, low: 0, high: 1", "categorical, values: [null, 1]"),
            "space.x.values[0]",
            "a word for it, such as none",
        ),
        (MINIMAL + "policy: ASHA\n", "policy.kind", "`asha`"),
        (MINIMAL + "sampler: TPE\n", "sampler.kind", "`tpe`"),
        (MINIMAL + "sampler: TPESampler\n", "sampler.kind", "`tpe`"),
        (MINIMAL + "sampler: mobster\n", "sampler.kind", "`multi_fidelity`"),
        (MINIMAL.replace("maximize", "max"), "objective.goal", "`maximize`"),
        (MINIMAL.replace("steps: 9\n", ""), "steps", "last of the policy's `rungs`"),
        (MINIMAL + "enqueue: {x: 0.5}\n", "enqueue", "[{parameter: value}, …]"),
    ],
)
def test_words_of_other_tuners_get_a_hint(faults, text, path, remedy):
    found = faults(text)
    assert list(found) == [path]
    assert remedy in found[path].remedy


SPACE = MINIMAL.replace("1}}", "1}, y: Y}")


@pytest.mark.parametrize(
    ("written", "path", "remedy"),
    [
        ("32", "space.y", "Leave a constant to the script, or write `{type: categorical, values: [32]}`."),
        ("true", "space.y", "values: [true]"),
        ("[1, 2]", "space.y", "`{type: categorical, values: [a, b, …]}`"),
        ("[0.5, 1]", "space.y", "`{type: float, low: 0.5, high: 1}`"),
        ("[sgd, adam]", "space.y", "Write the choices"),
        (
            "{lr: {type: float, low: 0, high: 1}}",
            "space.y.type",
            "Spaces do not nest: write `y.lr: {type: …}`",
        ),
        ("{type: categorical, values: [[64, 32], [8]]}", "space.y.values[0]", "Name each choice with a text"),
    ],
)
def test_what_no_space_holds_gets_an_alternative(faults, written, path, remedy):
    assert remedy in faults(SPACE.replace("Y}", f"{written}}}"))[path].remedy


def test_a_function_is_to_be_named():
    def train(t):
        del t

    data = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0, "high": 1}},
        "trials": 3,
        "steps": 9,
        "trial": {"callable": train},
    }
    with pytest.raises(InvalidFieldError) as raised:
        parse_spec(data)
    (found,) = raised.value.violations
    assert found.field == "trial.callable"
    assert "workers import the function by name" in found.message
    assert "top level of a file" in found.remedy


def test_a_policy_and_a_sampler_may_be_a_word(load):
    spec = load(MINIMAL + "policy: run_all\nsampler: tpe\n").spec
    assert (spec.policy.kind, spec.sampler.kind) == ("run_all", "tpe")


def test_a_wrong_kind_hides_no_other_error(faults):
    """The nearest kind is looked at in its place: its keys, and the budget that follows from its rungs."""
    text = MINIMAL.replace("steps: 9\n", "").replace("type: float", "type: flaot, lgo: true")
    found = faults(
        text + "policy: {kind: ashaa, rungs: [9, 3], etaa: 3}\nsampler: {kind: tppe, startup: 3}\n"
    )
    assert set(found) == {
        "policy.kind",
        "policy.rungs[1]",
        "policy.etaa",
        "sampler.kind",
        "sampler.startup",
        "space.x.type",
        "space.x.lgo",
    }
    assert "`asha`" in found["policy.kind"].remedy
    assert set(faults(MINIMAL + "policy: {kind: zzzz, etaa: 3}\n")) == {"policy.kind"}, "nothing is near"


def test_the_hints_name_keys_and_types_that_exist():
    keys = {"name", *_friendly_keys(())}
    for word, remedy in elsewhere.TOP.items():
        assert word not in keys
        for named in re.findall(r"`([a-z_]+)`", remedy):
            assert named in keys, remedy
