"""Policies and samplers of installed packages: found by name, refused with a reason, checked against the contract."""

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import plugin_packages as packages
import pytest
import typer
from typer.testing import CliRunner

from headrace import InvalidFieldError, load_study_file, optimize
from headrace.client.model import StudyState, TerminationReason
from headrace.in_process.loop import CannotPauseError
from headrace.spec import OwnPolicy, from_proto, parse_spec, to_proto
from headrace_services.scheduler.core import plugins
from headrace_services.scheduler.plugins import Action, RungResult
from headrace_services.scheduler.plugins.testing import check_policy, check_sampler
from headrace_services.scheduler.samplers import require_own
from headrace_services.scheduler.samplers.own import OwnLearner
from headrace_services.scheduler.simulator.command import simulate

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_policy"
Install = Callable[..., None]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages on the path. Nothing of it is left afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    plugins.factory.cache_clear()
    yield folder
    plugins.factory.cache_clear()
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture
def install(site: Path) -> Install:
    def one(package: str, source: str, **points: str) -> None:
        packages.install(site, package, source, **points)
        importlib.invalidate_caches()

    return one


@pytest.fixture
def example(site: Path) -> None:
    """The example package, as pip installs it."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(site), str(EXAMPLE)]
    subprocess.run(command, check=True, timeout=120)
    importlib.invalidate_caches()


def spec_of(**changes: Any) -> Any:
    return parse_spec(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0, "high": 1}},
            "trials": 6,
            "steps": 9,
            **changes,
        }
    )


def own(name: str, **more: Any) -> dict[str, Any]:
    return {"kind": "own", "name": name, **more}


def test_a_report_over_several_rungs_is_one_look_of_the_example() -> None:
    found = importlib.util.spec_from_file_location("own_patience", EXAMPLE / "patience.py")
    assert found is not None
    assert found.loader is not None
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    policy = example.make_policy(spec_of(policy=own("patience", interval=1)), {"looks": 2})
    policy.joined(0, 0, {"x": 0.5})
    said = []
    for rungs, step in ((range(6), 6), ([6], 7), ([7], 8)):
        for rung in rungs:
            policy.record(
                RungResult(trial=0, bracket=0, rung=rung, milestone=rung + 1, step=step, value=1.0, arrival=1)
            )
        said.append(policy.verdict(0, 0, max(rungs)).action)
    assert said == [Action.CONTINUE, Action.CONTINUE, Action.STOP]


@pytest.mark.full
@pytest.mark.usefixtures("example")
def test_the_example_package_keeps_the_contract_and_runs_everywhere(tmp_path: Path) -> None:
    check_policy("patience", {"looks": 1}, histories=20)
    check_policy("patience", histories=20)
    check_sampler("mutate", {"share": 0.5}, trials=12)
    file = load_study_file(EXAMPLE / "study.yaml")
    require_own(file.spec)

    app = typer.Typer()
    app.command()(simulate)
    said = CliRunner().invoke(app, [str(EXAMPLE / "study.yaml"), "--workers", "2"], catch_exceptions=False)
    assert said.exit_code == 0
    assert "own" in said.output

    def train(t: Any) -> None:
        for step in t.steps():
            t.report(loss=t["x"] ** 2 + t["y"] ** 2 + max(0, 4 - step))

    result = optimize(
        train,
        {name: {"type": "float", "low": -5, "high": 5} for name in "xy"},
        trials=20,
        steps=9,
        minimize="loss",
        policy=own("patience", options={"looks": 2}, interval=1),
        sampler=own("mutate", options={"share": 0.5}),
    )
    assert {one.step for one in result.trials} == {6}, "it last improved at step 4"
    assert {one.reason for one in result.trials} == {TerminationReason.STOPPED_EARLY}
    assert "no improvement for 2 looks" in result.trials[0].detail
    best = result.best
    assert best is not None
    inherited = [
        one for one in result.trials[1:] if any(one.params[name] in seen(result, one, name) for name in "xy")
    ]
    assert len(inherited) > 8, "most of them have a parameter of one before"


def seen(result: Any, trial: Any, name: str) -> set[float]:
    return {one.params[name] for one in result.trials[: trial.number]}


def test_the_name_and_the_options_travel_and_are_stored() -> None:
    spec = spec_of(
        policy=own("patience", options={"looks": 2, "share": 0.5, "word": "a", "flag": True}, interval=3),
        sampler=own("mutate", options={"share": 1}),
    )
    assert from_proto(to_proto(spec)) == spec
    assert parse_spec(spec.model_dump(mode="json")) == spec
    assert isinstance(spec.policy, OwnPolicy)
    assert spec.rungs() == (3, 6, 9)
    assert [type(value) for value in spec.policy.options.values()] == [int, float, str, bool]


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"policy": {"kind": "own"}}, "policy.name", "is required"),
        ({"policy": own("no name")}, "policy.name", "invalid plugin name"),
        ({"policy": own("a", options={"list": [1]})}, "policy.options.list", "got"),
        ({"policy": own("a", setting=2)}, "policy.setting", "not a known key"),
        ({"sampler": own("a", options=3)}, "sampler.options", "mapping"),
        ({"policy": {"kind": "patience", "options": {}}}, "policy.kind", "not a known kind"),
    ],
)
def test_what_nobody_could_run_is_refused_with_the_spec(
    changes: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(InvalidFieldError, match=said) as caught:
        spec_of(**changes)
    assert [one.field for one in caught.value.violations] == [field]


def refused(**changes: Any) -> Any:
    with pytest.raises(InvalidFieldError) as caught:
        require_own(spec_of(**changes))
    [violation] = caught.value.violations
    return violation


def test_an_unknown_name_says_what_is_installed(install: Install) -> None:
    assert "not a policy of any installed package" in refused(policy=own("patience")).message
    install("waiting", packages.WAITS, policies="waits = waiting:make")
    violation = refused(policy=own("patience"))
    assert (violation.field, violation.value) == ("policy.name", "'patience'")
    assert "Installed are waits" in violation.remedy
    assert "headrace.samplers" in refused(sampler=own("hill")).remedy


def test_a_name_that_is_taken_twice_names_both_packages(install: Install) -> None:
    install("one", packages.WAITS, policies="waits = one:make")
    install("two", packages.WAITS, policies="waits = two:make")
    assert "several packages: one and two" in refused(policy=own("waits")).message


def test_a_name_of_ours_is_no_plugins(install: Install) -> None:
    """A package cannot replace one of our policies: ours are kinds, and a package's are names."""
    install("one", packages.WAITS, policies="asha = one:make")
    require_own(spec_of(policy="asha"))
    assert spec_of(policy=own("asha")).policy.kind == "own"


@pytest.mark.parametrize(
    ("source", "field", "said"),
    [
        ("import a_module_that_is_not_there", "name", "cannot be imported .*ModuleNotFoundError: No module"),
        ("raise RuntimeError('no licence')", "name", "cannot be imported .*RuntimeError: no licence"),
        ("import sys; sys.exit(3)", "name", "cannot be imported .*SystemExit: 3"),
        ("make = 3", "name", "which is no function"),
        (
            "def make(spec, options): raise ValueError('looks must be 1')",
            "options",
            "ValueError: looks must be 1",
        ),
        ("import sys\ndef make(spec, options): sys.exit(3)", "options", "SystemExit: 3"),
        ("def make(spec, options): return 5", "name", "gave a int without ladder, record"),
        (
            packages.WAITS.replace("ladder=spec.rungs()", "ladder=(1, spec.max_steps)"),
            "name",
            r"has the rungs \(1, 9\), but the study has",
        ),
    ],
)
def test_a_package_that_is_broken_is_reported_with_its_reason(
    install: Install, source: str, field: str, said: str
) -> None:
    install("broken", source, policies="broken = broken:make")
    violation = refused(policy=own("broken"))
    assert violation.field == f"policy.{field}"
    with pytest.raises(InvalidFieldError, match=said):
        require_own(spec_of(policy=own("broken")))
    require_own(spec_of(policy="asha"))


def test_what_is_fixed_is_found_without_a_restart(install: Install, site: Path) -> None:
    install("mended", "raise RuntimeError", policies="mended = mended:make")
    refused(policy=own("mended"))
    (site / "mended.py").write_text(packages.WAITS)
    importlib.invalidate_caches()
    require_own(spec_of(policy=own("mended")))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (packages.FORGETFUL, "asked twice"),
        (packages.SIDED, "decided otherwise"),
        (packages.BROKEN, "of the plugin"),
    ],
)
def test_the_suite_finds_a_policy_that_breaks_the_contract(install: Install, source: str, said: str) -> None:
    install("wrong", source, policies="wrong = wrong:make")
    with pytest.raises((AssertionError, ZeroDivisionError), match=said):
        check_policy("wrong")


@pytest.mark.parametrize(
    ("source", "said"),
    [(packages.STUBBORN, "the study's seed changes nothing"), (packages.OUTSIDE, "outside its domain")],
)
def test_the_suite_finds_a_sampler_that_breaks_the_contract(install: Install, source: str, said: str) -> None:
    install("wrong", source, samplers="wrong = wrong:make")
    with pytest.raises((AssertionError, InvalidFieldError), match=said):
        check_sampler("wrong")


def losses(t: Any) -> Iterator[float]:
    for step in range(1, 10):
        yield t["x"] + 1 / step


def report(t: Any) -> None:
    for step in t.steps():
        t.report(value=t["x"] + 1 / step)


def test_a_policy_that_pauses_needs_a_generator_in_process(install: Install) -> None:
    install("waiting", packages.WAITS, policies="waits = waiting:make")
    space = {"x": {"type": "float", "low": 0, "high": 1}}
    policy = own("waits", rungs=[3, 9])
    result = optimize(losses, space, trials=5, steps=9, policy=policy, sampler="random")
    assert {one.step for one in result.trials} == {3}
    assert result.study.state is StudyState.COMPLETED
    with pytest.raises(CannotPauseError, match=r"paused trial 0 at step 3.*generator"):
        optimize(report, space, trials=5, steps=9, policy=policy, sampler="random")


def test_a_policy_that_raises_in_process_is_not_charged_to_the_function(install: Install) -> None:
    install("broken", packages.BROKEN, policies="broken = broken:make")
    space = {"x": {"type": "float", "low": 0, "high": 1}}
    with pytest.raises(ZeroDivisionError, match="of the plugin"):
        optimize(report, space, trials=5, steps=9, policy=own("broken", rungs=[3, 9]), sampler="random")


def test_a_sampler_that_leaves_the_space_is_replaced_by_random_draws(install: Install) -> None:
    install("outside", packages.OUTSIDE, samplers="outside = outside:make")
    space = {"x": {"type": "float", "low": 0, "high": 1}}
    result = optimize(lambda t: t["x"], space, trials=4, sampler=own("outside"))
    at_random = optimize(lambda t: t["x"], space, trials=4, sampler="random")
    assert [one.params for one in result.trials] == [one.params for one in at_random.trials]


def test_the_numbers_of_numpy_are_plain_values_and_nothing_else_is_taken(install: Install) -> None:
    source = """
import numpy as np

class One:
    def __init__(self, value):
        self.value = value

    def suggest(self, number, results, pending, generator):
        return {"x": self.value}

def make(spec, options):
    kinds = {"float32": np.float32(0.5), "bool": np.True_, "array": np.zeros(2), "none": None}
    return One(kinds[options["kind"]])
"""
    install("plain", source, samplers="plain = plain:make")

    def proposed(kind: str) -> Any:
        spec = spec_of(sampler=own("plain", options={"kind": kind}))
        return OwnLearner(spec, spec.sampler).suggest(0, ()).params["x"]

    assert [type(proposed(kind)) for kind in ("float32", "bool")] == [float, bool]
    for kind in ("array", "none"):
        with pytest.raises(TypeError, match="for parameter 'x'; let it propose a bool"):
            proposed(kind)


@pytest.mark.parametrize(
    ("source", "error"), [(packages.WAITS, CannotPauseError), (packages.BROKEN, ZeroDivisionError)]
)
def test_a_defect_that_the_function_catches_ends_the_study_anyway(
    install: Install, source: str, error: type[Exception]
) -> None:
    install("caught", source, policies="caught = caught:make")

    def careless(t: Any) -> None:
        for _ in t.steps():
            with suppress(Exception):
                t.report(value=1.0)

    space = {"x": {"type": "float", "low": 0, "high": 1}}
    with pytest.raises(error):
        optimize(careless, space, trials=5, steps=9, policy=own("caught", rungs=[3, 9]), sampler="random")
