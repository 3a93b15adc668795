"""Keys of other tuners in a study file get a hint."""

import re

import pytest
from spec_samples import assert_refused
from study_file_samples import MINIMAL, added, minimal

from headrace.spec import StudySpec, elsewhere
from headrace.spec.file import _words
from headrace.spec.yaml import read_yaml

SECOND = "the others as `further_objectives: [{metric: NAME, goal: …}]`"
HINTS = [
    (added("direction: maximize"), "direction", "`objective: {metric: NAME, goal: …}`"),
    (added("mode: max"), "mode", "`objective: {metric: NAME, goal: …}`"),
    (minimal("goal: maximize", "goal: maximize, mode: min"), "objective.mode", "`goal: minimize`"),
    (added("report_timeout_s: 5"), "report_timeout_s", "under `trial`, as in `trial: {report_timeout_s: …}`"),
    (added("trial_timeout_s: 5"), "trial_timeout_s", "under `trial`, as in `trial: {trial_timeout_s: …}`"),
    (added("grace_s: 5"), "grace_s", "under `trial`"),
    (added("env: {A: b}"), "env", "under `trial`"),
    (added("eta: 3"), "eta", "under `policy`, as in `policy: {eta: …}`"),
    (added("rungs: [1, 9]"), "rungs", "under `policy`"),
    (added("cpus: 2"), "cpus", "under `resources`"),
    (added("gpu: 1"), "gpu", "`resources: {gpus: 1}`"),
    (added("stop: {a: 1}"), "stop", "`steps`"),
    (added("fail_fast: true"), "fail_fast", "`retries`"),
    (added("time_budget_s: 3"), "time_budget_s", "until: {hours: 2}"),
    (added("policy: {kind: asha, grace: 3}"), "policy.grace", "`min_steps`"),
    (added("policy: {kind: pbt, retries: 3}"), "policy.retries", "at the top, as `retries: …`"),
    (added("policy: {kind: asha, points: 3}"), "policy.points", "under `sampler`"),
    (added("pruner: median"), "pruner", "`policy: {kind: asha}`"),
    (added("n_jobs: 2"), "n_jobs", "`parallel`"),
    (added("num_samples: 2"), "num_samples", "`trials`"),
    (added("max_t: 9"), "max_t", "`steps`"),
    (minimal("float", "loguniform"), "space.x.type", "`type: float` with `log: true`"),
    (minimal("float", "uniform"), "space.x.type", "`type: float`"),
    (minimal("float", "choice"), "space.x.type", "`type: categorical` with `values"),
    (minimal("low: 0", "low: 0, q: 1"), "space.x.q", "`step`"),
    (added("policy: {kind: asha, reduction_factor: 3}"), "policy.reduction_factor", "`eta`"),
    (added("policy: {kind: sha}"), "policy.kind", "`successive_halving`"),
    (added("policy: ahsa"), "policy.kind", "`asha`"),
    (minimal("{metric: loss, goal: maximize}", "[loss, size]"), "objective", SECOND),
    (minimal("{metric: loss, goal: maximize}", "[{metric: loss, goal: maximize}]"), "objective", SECOND),
    (added("objectives: [{metric: a, goal: minimize}]"), "objectives", "`further_objectives: [{metric"),
    (added("sampler: tpee"), "sampler.kind", "`tpe`"),
    (
        minimal("float, low: 0, high: 1", "categorical, values: [null, 1]"),
        "space.x.values[0]",
        "such as none",
    ),
    (added("policy: ASHA"), "policy.kind", "`asha`"),
    (added("sampler: TPE"), "sampler.kind", "`tpe`"),
    (added("sampler: TPESampler"), "sampler.kind", "`tpe`"),
    (added("sampler: mobster"), "sampler.kind", "`multi_fidelity`"),
    (minimal("maximize", "max"), "objective.goal", "`maximize`"),
    (added("enqueue: {x: 0.5}"), "enqueue", "[{parameter: value}, …]"),
]


@pytest.mark.parametrize(("text", "path", "remedy"), HINTS)
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

    data, _ = read_yaml(added("trial: {}"))
    data["trial"] = {"callable": train}
    says = "workers import the function by name | top level of a file"
    assert_refused(data, "trial.callable", says)


def test_a_policy_and_a_sampler_may_be_a_word(load):
    spec = load(MINIMAL + "policy: run_all\nsampler: tpe\n").spec
    assert (spec.policy.kind, spec.sampler.kind) == ("run_all", "tpe")


def test_a_wrong_kind_hides_no_other_error(faults):
    """The nearest kind is checked instead: its keys, and the budget that follows from its rungs."""
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
    keys = {"name", *_words(StudySpec)}
    for word, remedy in elsewhere.TOP.items():
        assert word not in keys
        for named in re.findall(r"`([a-z_]+)`", remedy):
            assert named in keys, remedy
