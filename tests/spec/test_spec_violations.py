"""Every way to get a study wrong, with the exact path, the value and a remedy."""

import numpy as np
import pytest
from spec_samples import DELETE, SOUND, assert_says, spoiled, violations

from headrace.spec import parse_named_spec

NAN, INF = float("nan"), float("inf")
INT = {"type": "int", "low": 1, "high": 2}


def when(parameter, **condition):
    return [{"parameter": parameter, **condition}]


def values(*values):
    return {"space__optimizer__values": list(values), "space__momentum__conditions": []}


def policy(kind, **fields):
    return {"policy": {"kind": kind, **fields}}


def sampler(kind, **fields):
    return {"sampler": {"kind": kind, **fields}}


def command(*args, **changes):
    return {"template__callable": DELETE, "template__command": {"args": list(args)}, **changes}


# (changes to the valid study, path at fault, parts of the message and of the remedy)
BAD = [
    # the top level
    ({"max_trial": 3}, "max_trial", "not a known key | `max_trials`"),
    ({"zzz": 3}, "zzz", "not a known key | Known keys: objective, space"),
    ({"max_trials": DELETE}, "max_trials", "is required | Add it"),
    ({"max_trials": 0}, "max_trials", "must be at least 1 | Choose a number from 1 to 1000000."),
    ({"max_trials": 1_000_001}, "max_trials", "at most 1000000 | Choose"),
    ({"max_steps": 2**40 + 1}, "max_steps", "at most 1099511627776 | Choose"),
    ({"max_trials": "27"}, "max_trials", "whole number | without quotes"),
    ({"max_trials": 2.5}, "max_trials", "whole number | without a fraction"),
    ({"max_trials": True}, "max_trials", "whole number"),
    ({"max_trials": None}, "max_trials", "whole number"),
    ({"max_steps": 0, "policy": {"kind": "run_all"}}, "max_steps", "at least 1 | from 1 to 1099511627776"),
    ({"max_steps": 2**63, "policy": {"kind": "run_all"}}, "max_steps", "at most"),
    ({"max_parallel": -1}, "max_parallel", "at least 0"),
    ({"max_retries": -1}, "max_retries", "at least 0 | from 0 to 1000000"),
    ({"max_early_failures": 0}, "max_early_failures", "at least 1 | from 1 to 1000000"),
    ({"seed": -1}, "seed", "at least 0"),
    ({"seed": 2**63}, "seed", "at most"),
    ({"checkpoints_kept": -1}, "checkpoints_kept", "at least 0"),
    # the objective
    ({"objective": DELETE}, "objective", "is required | Add it"),
    ({"objective": 3}, "objective", "must be a mapping | key: value"),
    ({"objective__metric": "val loss"}, "objective.metric", "invalid metric name 'val loss': use | val-loss"),
    ({"objective__metric": ""}, "objective.metric", "invalid metric name | val_loss"),
    ({"objective__metric": "lo\nss"}, "objective.metric", r"invalid metric name 'lo\nss' | lo-ss"),
    ({"objective__metric": 3}, "objective.metric", "must be a text | quotes"),
    ({"objective__metric": "é"}, "objective.metric", "invalid metric name | val_loss"),
    ({"objective__goal": "minimise"}, "objective.goal", "not a known choice | minimize, maximize"),
    ({"objective__goal": DELETE}, "objective.goal", "is required"),
    ({"objective__metrics": "x"}, "objective.metrics", "not a known key | `metric`"),
    # the space
    ({"space": {}, "baseline": DELETE}, "space", "is empty | at least one"),
    ({"space": 3, "baseline": DELETE}, "space", "must be a mapping"),
    ({"space__lr__type": DELETE}, "space.lr.type", "is required | float, int, categorical"),
    ({"space__lr__type": "real"}, "space.lr.type", "not a known kind | float, int, categorical"),
    ({"space__lr": 0.1}, "space.lr", "must be a mapping"),
    ({"space__lr__low": DELETE}, "space.lr.low", "is required"),
    ({"space__lr__low": "small"}, "space.lr.low", "must be a number | 1e-4"),
    ({"space__lr__low": True}, "space.lr.low", "must be a number"),
    ({"space__lr__low": NAN}, "space.lr.low", "finite | no place here"),
    ({"space__lr__high": INF}, "space.lr.high", "finite"),
    ({"space__lr__high": 10**400}, "space.lr.high", "finite"),
    ({"space__lr__low": 0.5}, "space.lr.low", "above high, which is 0.1 | Swap"),
    ({"space__lr__low": 0.1}, "space.lr.low", "equals high | type: categorical, values: [0.1]"),
    ({"space__lr__low": 0}, "space.lr.low", "above 0 where log | log to false"),
    ({"space__lr__step": 0.01}, "space.lr.step", "combined with log | Remove step"),
    ({"space__lr__logs": True}, "space.lr.logs", "not a known key | `log`"),
    ({"space__lr__log": "yes"}, "space.lr.log", "true or false"),
    ({"space__lr__log": 1}, "space.lr.log", "true or false"),
    ({"space__momentum__step": 2.0}, "space.momentum.step", "larger than the interval | smaller"),
    ({"space__momentum__step": 0}, "space.momentum.step", "above 0 | Leave it out"),
    ({"space__momentum__step": 1e-300}, "space.momentum.step", "too finely"),
    ({"space__depth__low": 10}, "space.depth.low", "above high, which is 9"),
    ({"space__depth__low": "1"}, "space.depth.low", "whole number"),
    ({"space__depth__low": 1.5}, "space.depth.low", "whole number"),
    ({"space__depth__low": True}, "space.depth.low", "whole number"),
    ({"space__depth__low": NAN}, "space.depth.low", "whole number"),
    ({"space__depth__high": 2**63}, "space.depth.high", "at most"),
    ({"space__depth__low": -(2**63) - 1}, "space.depth.low", "at least"),
    ({"space__depth__step": 9}, "space.depth.step", "larger than the interval, which is 8 wide"),
    ({"space__depth__step": 0}, "space.depth.step", "above 0"),
    ({"space__depth__log": True}, "space.depth.step", "combined with log"),
    (values(), "space.optimizer.values", "is empty"),
    (values("sgd", "adam", "sgd"), "space.optimizer.values[2]", "twice | Remove the duplicate"),
    (values("sgd", 1, 1.0), "space.optimizer.values[2]", "twice"),
    (values("sgd", None), "space.optimizer.values[1]", "must be a number, a text | none"),
    (values("sgd", NAN), "space.optimizer.values[1]", "finite"),
    (values("sgd", 2**63), "space.optimizer.values[1]", "64 bits"),
    (values("sgd", "a\x00"), "space.optimizer.values[1]", "NUL"),
    (values("sgd", [1]), "space.optimizer.values[1]", "must be a number, a text"),
    ({"space__optimizer__values": "sgd"}, "space.optimizer.values", "must be a list | [a, b"),
    (
        {"space__2x": INT, "baseline": DELETE},
        "space.2x",
        "invalid parameter name '2x': use letters | For example: x.",
    ),
    ({"space__": INT, "baseline": DELETE}, "space.", "invalid parameter name '' | learning_rate"),
    # the policy
    ({"policy__kind": "zzzz"}, "policy.kind", "not a known kind | run_all, asha"),
    ({"policy__kind": DELETE}, "policy.kind", "is required | run_all, asha"),
    ({"policy__eta": 1}, "policy.eta", "at least 2 | from 2 to 1000000"),
    ({"policy__eta": 3.5}, "policy.eta", "whole number"),
    ({"policy__etas": 3}, "policy.etas", "not a known key | `eta`"),
    ({"policy__variant": "promote"}, "policy.variant", "not a known choice | promotion, stopping"),
    ({"policy__rungs": [1, 3, 3, 27]}, "policy.rungs[2]", "does not exceed | increasing"),
    ({"policy__rungs": [1, 9, 3, 27]}, "policy.rungs[2]", "which is 9 | increasing"),
    ({"policy__rungs": [0, 3, 27]}, "policy.rungs[0]", "at least 1"),
    ({"policy__rungs": [1, 3, 9]}, "policy.rungs[2]", "full budget is 27 | End the list with 27"),
    ({"policy__min_steps": 1}, "policy.min_steps", "combined with rungs | Remove one of the two: the first"),
    (policy("asha", min_steps=28), "policy.min_steps", "more than the full budget of 27"),
    (policy("asha", min_steps=0), "policy.min_steps", "at least 1"),
    ({"policy__brackets": 5}, "policy.brackets", "more than there are rungs, which is 4 | at most 4"),
    ({"policy__brackets": 0}, "policy.brackets", "at least 1"),
    (policy("run_all", eta=3), "policy.eta", "not a known key | kind"),
    *(
        (policy(kind, min_steps=28), "policy.min_steps", "more than the full budget of 27 | at most 27")
        for kind in ("auto", "successive_halving", "hyperband", "pasha")
    ),
    *(
        (policy(kind, interval=3, rungs=[9, 27]), "policy.interval", "with rungs | Remove")
        for kind in ("median", "rung_median")
    ),
    ({"policy__variant": "stopping", "policy__price_pauses": True}, "policy.price_pauses", "never pauses"),
    ({"policy__variant": "stopping", "policy__effort": 0.1}, "policy.effort", "never pauses | Remove it"),
    (
        {"policy__variant": "stopping", "policy__arrival": "optimistic"},
        "policy.arrival",
        "never pauses | Remove it",
    ),
    (policy("auto", effort=-0.1), "policy.effort", "a share | 0 (none) to 1 (all)"),
    (policy("auto", brackets=2), "policy.brackets", "not a known key"),
    ({"policy__effort": 1.5}, "policy.effort", "a share | 0 (none) to 1 (all)"),
    ({"policy__arrival": "hopeful"}, "policy.arrival", "not a known choice | cautious, optimistic"),
    (policy("median", completed_only=True), "policy.completed_only", "variant vizier | Remove"),
    (policy("median", price_pauses=True), "policy.price_pauses", "not a known key"),
    (policy("successive_halving", cohort=0), "policy.cohort", "at least 1"),
    (policy("pasha", epsilon=-0.1), "policy.epsilon", "0 or more | estimated"),
    (policy("pbt", quantile=0.9), "policy.quantile", "above 0 and at most 0.5 | 0.25 is usual"),
    (policy("rung_median", tolerance=1.0), "policy.tolerance", "below 1 | 5%"),
    (policy("median", grace_steps=28), "policy.grace_steps", "no trial would ever | at most 27"),
    (
        {**policy("median", interval=1), "max_steps": 1000},
        "policy.interval",
        "more than 256 rungs in 1000 steps | at least 4",
    ),
    (policy("median", rungs=[3, 9]), "policy.rungs[1]", "full budget is 27 | End the list"),
    # the sampler
    (sampler("zzzz"), "sampler.kind", "not a known kind | random, grid, sobol, tpe, gp"),
    (sampler("tpe", startup_trials=-1), "sampler.startup_trials", "at least 1 | from 1 to 1000000"),
    (sampler("grid", points={"lr": 3}), "sampler.points.momentum", "continuous | how many"),
    (sampler("grid", points={"lr": 0, "momentum": 1}), "sampler.points.lr", "at least 1"),
    (
        sampler("grid", points={"lr": 1, "momentum": 1, "rl": 1}),
        "sampler.points.rl",
        "is not a parameter | `lr`",
    ),
    (
        sampler("grid", points={"lr": 1, "momentum": 1, "optimizer": 1}),
        "sampler.points.optimizer",
        "is not needed | Remove",
    ),
    # the template
    ({"template__callable": "train"}, "template.callable", "`module:function` | train:train"),
    (
        {"template__callable": "train.py:main"},
        "template.callable",
        "names a file | Did you mean `train:main`?",
    ),
    ({"template__callable": "train:main()"}, "template.callable", "`module:function`"),
    ({"template__callable": "a b:c"}, "template.callable", "`module:function`"),
    ({"template__callable": DELETE}, "template.callable", "required where | Name the function"),
    ({"template__command": {"args": ["run"]}}, "template.command", "combined with callable"),
    ({"template__working_dir": "here"}, "template.working_dir", "absolute | Write the whole path"),
    ({"template__working_dir": DELETE}, "template.working_dir", "is required"),
    ({"template__env": {"A=B": "c"}}, "template.env.A=B", "cannot be set"),
    ({"template__env": {"HEADRACE_X": "c"}}, "template.env.HEADRACE_X", "cannot be set"),
    ({"template__env": {"A": 3}}, "template.env.A", "must be a text"),
    ({"template__grace": -1}, "template.grace", "0 or more | such as 30"),
    ({"template__grace": "30s"}, "template.grace", "must be a number"),
    ({"template__grace": 1e12}, "template.grace", "at most"),
    ({"template__report_timeout": 0}, "template.report_timeout", "above 0"),
    (
        command("run", "--lr={learning_rate}"),
        "template.command.args[1]",
        "names `learning_rate` | Known placeholders",
    ),
    (command("run", "--lr={lr"), "template.command.args[1]", "brace without its partner | {{"),
    (command(), "template.command.args", "is empty"),
    (command("run", template__python="py"), "template.python", "no meaning"),
    (
        command("run", space__seed={"type": "int", "low": 1, "high": 5}, baseline=DELETE),
        "space.seed",
        "placeholder {seed} | Rename",
    ),
    # resources
    ({"resources": {"gpus": -1}}, "resources.gpus", "at least 0"),
    ({"resources": {"gpu_memory_bytes": 5}}, "resources.gpu_memory_bytes", "without a GPU"),
    ({"resources": {"gpus": 1, "gpu_memory_bytes": 2**63}}, "resources.gpu_memory_bytes", "at most"),
    ({"resources": {"gpu": 1}}, "resources.gpu", "not a known key | `gpus`"),
    (
        {"resources": {"labels": {"my zone": "a"}}},
        "resources.labels.my zone",
        "invalid label name 'my zone': use | my-zone.",
    ),
    ({"resources": {"labels": {"zone": 3}}}, "resources.labels.zone", "must be a text"),
    # configurations
    ({"baseline__lr": 1.0}, "baseline.lr", "outside its domain | from 1e-05 to 0.1"),
    ({"baseline__depth": 4}, "baseline.depth", "outside its domain | in steps of 2"),
    ({"baseline__depth": True}, "baseline.depth", "outside its domain"),
    ({"baseline__depth": 3.5}, "baseline.depth", "outside its domain"),
    ({"baseline__optimizer": "adagrad", "baseline__momentum": DELETE}, "baseline.optimizer", "outside"),
    ({"baseline__lrr": 1.0}, "baseline.lrr", "is not a parameter | `lr`"),
    ({"baseline__zzz": 1}, "baseline.zzz", "is not a parameter | Known parameters: optimizer"),
    ({"baseline__lr": DELETE}, "baseline.lr", "is missing | Give it a value: a number from 1e-05 to 0.1"),
    ({"baseline__momentum": DELETE}, "baseline.momentum", "is missing"),
    ({"baseline__optimizer": "adam"}, "baseline.momentum", "exists only where optimizer is 'sgd' | Remove"),
    ({"baseline__lr": None}, "baseline.lr", "must be a number"),
    ({"baseline__lr": INF}, "baseline.lr", "finite"),
    (
        {"enqueued": [SOUND["baseline"], {**SOUND["baseline"], "lr": 5}]},
        "enqueued[1].lr",
        "outside its domain",
    ),
    ({"enqueued": [SOUND["baseline"]] * 3, "max_trials": 2}, "enqueued", "only 2 | Raise"),
    ({"enqueued": 3}, "enqueued", "must be a list"),
    # what ends or ranks a study, or comes before it
    ({"warm_start": {"study": "X Y"}}, "warm_start.study", "invalid study name 'X Y': use lower-case"),
    (
        {"further_objectives": [{"metric": "size", "goal": "minimize"}]},
        "further_objectives",
        "a policy that stops trials | make the others constraints",
    ),
    ({"constraints": [{"metric": "size"}]}, "constraints[0]", "has no bound | at_most and at_least"),
    ({"until": {"hours": 0.0}}, "until.hours", "above 0 and at most 100000 | such as 2 or 0.5"),
    # sizes that no real study has and that would keep a scheduler busy
    (
        {"space": {f"p{k}": INT for k in range(1001)}, "baseline": DELETE},
        "space",
        "has 1001 parameters | at most 1000",
    ),
    ({"policy__rungs": list(range(1, 28)) * 10}, "policy.rungs", "has 270 levels | at most 256"),
    ({"policy__brackets": 65}, "policy.brackets", "at most 64"),
    (
        {
            "space": {
                **{f"p{k}": {"type": "categorical", "values": [0, 1]} for k in range(15)},
                "child": {**INT, "conditions": [{"parameter": f"p{k}", "values": [1]} for k in range(15)]},
            },
            "sampler": {"kind": "grid"},
            "baseline": DELETE,
        },
        "sampler.kind",
        "too many branches | random sampler",
    ),
]


# (the conditions of momentum, path below them, parts of the message and of the remedy)
CONDITIONS = [
    (when("optimiser", values=["sgd"]), "[0].parameter", "is not a parameter | `optimizer`"),
    (when("depth", values=[3]), "[0].parameter", "comes after momentum | Move depth before momentum"),
    (when("momentum", values=[0.1]), "[0].parameter", "cycle of conditions: momentum → momentum"),
    (
        when("optimizer", values=["sgd", "adagrad"]),
        "[0].values[1]",
        "not a value of optimizer | one of 'sgd', 'adam'",
    ),
    (when("optimizer", values=[]), "[0].values", "is empty"),
    (when("lr", values=[0.01]), "[0].parameter", 'is continuous | Compare it, as in `{">=": 0.5}`'),
    (when("optimizer", values=["sgd"]) + when("optimizer", values=["adam"]), "[1]", "never holds | Join"),
    (
        when("optimizer", at_least=1),
        "[0].at_least",
        "optimizer has values that are not numbers | List the values",
    ),
    (when("lr", above=0.1), "[0].above", "can never hold: lr is a number from 1e-05 to 0.1 | widen lr"),
    (when("lr", at_most=1e-6), "[0].at_most", "can never hold"),
    (when("lr", above=1e-3, below=1e-3), "[0].above", "can never hold"),
    (when("optimizer", values=["sgd"], below=3), "[0].values", "stands beside bounds | or give bounds"),
    (when("lr", below=True), "[0].below", "must be a number"),
    (when("optimizer", values=["sgd"]) * 33, "", "has 33 entries | at most 32"),
    (when("lr", at_least=1e-3) + when("lr", below=1e-3), "[1]", "never holds | Join"),
]


def test_the_sound_study_is_sound():
    assert violations(SOUND) == {}


@pytest.mark.parametrize(("changes", "path", "says"), BAD)
def test_bad(changes, path, says):
    found = violations(spoiled(**changes))
    assert list(found) == [path]
    assert_says(found[path], says)


@pytest.mark.parametrize(("conditions", "place", "says"), CONDITIONS)
def test_bad_conditions(conditions, place, says):
    path = f"space.momentum.conditions{place}"
    found = violations(spoiled(space__momentum__conditions=conditions))
    assert list(found) == [path]
    assert_says(found[path], says)


def test_numpys_numbers_are_numbers() -> None:
    given = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {
            "x": {"type": "float", "low": np.float32(0), "high": np.int64(1)},
            "y": {"type": "categorical", "values": [np.int64(1), np.float64(2), np.bool_(True)]},
        },
        "trials": np.int64(3),
        "steps": np.int32(9),
        "until": {"hours": np.float32(2)},
    }
    plain = {
        **given,
        "space": {
            "x": {"type": "float", "low": 0, "high": 1},
            "y": {"type": "categorical", "values": [1, 2.0, True]},
        },
        "trials": 3,
        "steps": 9,
        "until": {"hours": 2},
    }
    assert repr(parse_named_spec(given)) == repr(parse_named_spec(plain))
