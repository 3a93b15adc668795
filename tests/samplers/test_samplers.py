"""What every sampler must do, and the special features of random draws and of the grid."""

import itertools
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spec import (
    CategoricalDomain,
    Condition,
    FloatDomain,
    Goal,
    GridSampler,
    IntDomain,
    Objective,
    RandomSampler,
    StudySpec,
    check_assignment,
)
from headrace_services.scheduler.samplers import make_sampler

SPACE = {
    "optimizer": CategoricalDomain(values=("sgd", "adam", True, 1.5)),
    "lr": FloatDomain(low=1e-5, high=0.1, log=True),
    "momentum": FloatDomain(
        low=0, high=0.99, conditions=(Condition(parameter="optimizer", values=("sgd",)),)
    ),
    "nesterov": CategoricalDomain(
        values=(True, False),
        conditions=(Condition(parameter="optimizer", values=("sgd", 1.5)),),
    ),
    "warmup": IntDomain(low=1, high=3, conditions=(Condition(parameter="nesterov", values=(True,)),)),
    "depth": IntDomain(low=2, high=8, step=3),
    "drop": FloatDomain(low=0, high=0.3, step=0.1),
}
POINTS = {"lr": 2, "momentum": 2}


def spec(space=SPACE, sampler=None, seed=0):
    return StudySpec(
        objective=Objective(metric="loss", goal=Goal.MINIMIZE),
        space=space,
        sampler=sampler or RandomSampler(),
        max_trials=10,
        max_steps=9,
        seed=seed,
    )


@pytest.fixture(params=["random", "grid"])
def any_spec(request):
    return spec(sampler=RandomSampler() if request.param == "random" else GridSampler(points=POINTS))


class TestEverySampler:
    def test_proposals_belong_to_the_space(self, any_spec):
        sampler = make_sampler(any_spec)
        for number in range(min(200, sampler.size or 200)):
            params = sampler.suggest(number)
            assert check_assignment(any_spec, params, field="params") == params
            assert list(params) == [name for name in SPACE if name in params]

    def test_types_are_plain(self, any_spec):
        sampler = make_sampler(any_spec)
        kinds = {"lr": float, "momentum": float, "nesterov": bool, "warmup": int, "depth": int, "drop": float}
        for number in range(40):
            for name, value in sampler.suggest(number).items():
                assert type(value) is kinds.get(name, type(value))
                assert type(value) in (bool, int, float, str)

    def test_the_number_alone_decides(self, any_spec):
        forwards, backwards = make_sampler(any_spec), make_sampler(any_spec)
        numbers = list(range(40))
        ahead = [forwards.suggest(number) for number in numbers]
        assert ahead == [backwards.suggest(number) for number in reversed(numbers)][::-1]
        assert ahead == [forwards.suggest(number) for number in numbers]

    def test_exhaustion(self, any_spec):
        sampler = make_sampler(any_spec)
        if sampler.size is None:
            assert sampler.suggest(10**9) is not None
        else:
            assert sampler.suggest(sampler.size - 1) is not None
            assert sampler.suggest(sampler.size) is None
            assert sampler.suggest(-1) is None


class TestRandom:
    def test_seeds_differ(self):
        one, two = make_sampler(spec(seed=1)), make_sampler(spec(seed=2))
        assert [one.suggest(n) for n in range(5)] != [two.suggest(n) for n in range(5)]

    def test_the_numbers_never_change(self):
        """Past trials must be reproducible; a change of these numbers changes the meaning of a seed."""
        space = {
            "a": FloatDomain(low=0, high=1),
            "b": FloatDomain(low=1e-4, high=1, log=True),
            "c": IntDomain(low=1, high=1000, log=True),
            "d": CategoricalDomain(values=("x", "y", "z")),
        }
        assert make_sampler(spec(space, seed=7)).suggest(3) == PINNED

    def test_a_parameter_that_does_not_exist_shifts_no_other(self):
        bare = {"optimizer": SPACE["optimizer"], "lr": SPACE["lr"]}
        one, all_ = make_sampler(spec(bare)), make_sampler(spec())
        for number in range(30):
            assert one.suggest(number)["lr"] == all_.suggest(number)["lr"]

    def test_shares(self):
        sampler = make_sampler(spec())
        drawn = [sampler.suggest(number) for number in range(3000)]
        for choice in ("sgd", "adam"):
            assert sum(p["optimizer"] == choice for p in drawn) / 3000 == pytest.approx(0.25, abs=0.03)
        logs = [math.log10(p["lr"]) for p in drawn]
        assert statistics.mean(logs) == pytest.approx(-3, abs=0.1)
        assert sum(value < -4 for value in logs) / 3000 == pytest.approx(0.25, abs=0.03)
        assert {p["depth"] for p in drawn} == {2, 5, 8}
        assert len({p["drop"] for p in drawn}) == 4

    def test_log_integers_reach_both_ends(self):
        sampler = make_sampler(spec({"n": IntDomain(low=1, high=4, log=True)}))
        drawn = [sampler.suggest(number)["n"] for number in range(2000)]
        assert set(drawn) == {1, 2, 3, 4}
        # 1 covers [0.5, 1.5) of [0.5, 4.5) in the logarithm
        assert drawn.count(1) / 2000 == pytest.approx(math.log(3) / math.log(9), abs=0.03)

    @settings(max_examples=60)
    @given(
        low=st.floats(allow_nan=False, allow_infinity=False),
        high=st.floats(allow_nan=False, allow_infinity=False),
        number=st.integers(0, 2**40),
    )
    def test_any_interval(self, low, high, number):
        low, high = sorted((low, high))
        if low == high:
            return
        sampler = make_sampler(spec({"x": FloatDomain(low=low, high=high)}))
        assert low <= sampler.suggest(number)["x"] <= high
        if low > 0:
            sampler = make_sampler(spec({"x": FloatDomain(low=low, high=high, log=True)}))
            assert low <= sampler.suggest(number)["x"] <= high

    @pytest.mark.parametrize("log", [False, True])
    def test_all_of_int64(self, log):
        low = 1 if log else -(2**63)
        sampler = make_sampler(spec({"n": IntDomain(low=low, high=2**63 - 1, log=log)}))
        drawn = [sampler.suggest(number)["n"] for number in range(200)]
        assert all(low <= value < 2**63 for value in drawn)
        assert len(set(drawn)) > 150


PINNED = {"a": 0.84588954125817, "b": pytest.approx(0.002167625776006494, rel=1e-12), "c": 219, "d": "x"}


def brute_force(space, axes):
    """Every configuration of a space: all products, minus those that conditions exclude."""
    seen = []
    for values in itertools.product(*axes.values()):
        chosen = {}
        for name, value in zip(axes, values, strict=True):
            conditions = space[name].conditions
            if all(c.parameter in chosen and c.holds(chosen[c.parameter]) for c in conditions):
                chosen[name] = value
        key = [(name, type(value), value) for name, value in chosen.items()]
        if key not in seen:
            seen.append(key)
    return [{name: value for name, _, value in key} for key in seen]


class TestGrid:
    def test_every_point_once_and_the_last_fastest(self):
        space = {"a": IntDomain(low=1, high=2), "b": CategoricalDomain(values=("x", "y", "z"))}
        sampler = make_sampler(spec(space, GridSampler()))
        assert sampler.size == 6
        assert [tuple(sampler.suggest(n).values()) for n in range(6)] == [
            (1, "x"), (1, "y"), (1, "z"), (2, "x"), (2, "y"), (2, "z"),
        ]  # fmt: skip

    def test_conditions_give_no_point_twice(self):
        sampler = make_sampler(spec(sampler=GridSampler(points=POINTS)))
        axes = {
            "optimizer": ("sgd", "adam", True, 1.5),
            "lr": (1e-5, 0.1),
            "momentum": (0.0, 0.99),
            "nesterov": (True, False),
            "warmup": (1, 2, 3),
            "depth": (2, 5, 8),
            "drop": tuple(0.0 + 0.1 * k if k < 3 else 0.3 for k in range(4)),
        }
        expected = brute_force(SPACE, axes)
        assert sampler.size == len(expected)
        assert [sampler.suggest(number) for number in range(sampler.size)] == expected

    @settings(max_examples=80)
    @given(data=st.data())
    def test_against_brute_force(self, data):
        space, axes = {}, {}
        for place in range(data.draw(st.integers(1, 4))):
            conditions = []
            if place and data.draw(st.booleans()):
                parent = f"p{data.draw(st.integers(0, place - 1))}"
                values = data.draw(
                    st.lists(st.sampled_from(axes[parent]), min_size=1, max_size=2, unique=True)
                )
                conditions.append(Condition(parameter=parent, values=values))
            count = data.draw(st.integers(1, 3))
            if data.draw(st.booleans()):
                domain = IntDomain(low=0, high=2 * count, step=2, conditions=conditions)
                axes[f"p{place}"] = tuple(range(0, 2 * count + 1, 2))
            else:
                axes[f"p{place}"] = tuple("abc"[:count])
                domain = CategoricalDomain(values=axes[f"p{place}"], conditions=conditions)
            space[f"p{place}"] = domain
        sampler = make_sampler(spec(space, GridSampler()))
        assert [sampler.suggest(n) for n in range(sampler.size)] == brute_force(space, axes)

    @pytest.mark.parametrize(
        ("domain", "points", "values"),
        [
            (FloatDomain(low=0, high=1), 3, [0.0, 0.5, 1.0]),
            (FloatDomain(low=0, high=1), 1, [0.5]),
            (FloatDomain(low=1e-4, high=1, log=True), 3, [1e-4, 1e-2, 1.0]),
            (FloatDomain(low=0, high=1, step=0.4), None, [0.0, 0.4, 0.8]),
            (IntDomain(low=1, high=100), 4, [1, 34, 67, 100]),
            (IntDomain(low=1, high=1000, log=True), 4, [1, 10, 100, 1000]),
            (IntDomain(low=1, high=3), 9, [1, 2, 3]),
            (IntDomain(low=1, high=5, log=True), 4, [1, 2, 3, 5]),
            (IntDomain(low=-(2**63), high=2**63 - 1), 2, [-(2**63), 2**63 - 1]),
            (IntDomain(low=4, high=4), None, [4]),
        ],
    )
    def test_points(self, domain, points, values):
        sampler = make_sampler(spec({"x": domain}, GridSampler(points={"x": points} if points else {})))
        assert sampler.size == len(values)
        assert [sampler.suggest(n)["x"] for n in range(sampler.size)] == pytest.approx(values)

    @given(low=st.floats(1e-9, 1e9), factor=st.floats(1.01, 1e9), points=st.integers(2, 9))
    def test_ends_are_exact(self, low, factor, points):
        domain = FloatDomain(low=low, high=low * factor, log=True)
        sampler = make_sampler(spec({"x": domain}, GridSampler(points={"x": points})))
        drawn = [sampler.suggest(number)["x"] for number in range(points)]
        assert (drawn[0], drawn[-1]) == (domain.low, domain.high)
        assert drawn == sorted(drawn)

    def test_a_huge_grid_is_counted_and_not_built(self):
        space = {f"n{k}": IntDomain(low=1, high=10**9) for k in range(5)}
        space["child"] = IntDomain(low=1, high=2, conditions=(Condition(parameter="n0", values=(5,)),))
        sampler = make_sampler(spec(space, GridSampler()))
        below = 10**36
        assert sampler.size == 10**45 + below
        assert sampler.suggest(sampler.size - 1)["n4"] == 10**9
        assert "child" in sampler.suggest(4 * below)
        assert sampler.suggest(6 * below)["n0"] == 6
