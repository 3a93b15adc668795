"""Hydra's overrides as a search space: each notation, and each that cannot be searched over."""

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from headrace.errors import InvalidFieldError
from headrace.hydra.space import Sweep, sweep_of
from headrace.hydra.study import study_name
from headrace.spec import check_study_id
from headrace.spec.template import CommandLine


def read(*lines: str) -> Sweep:
    return sweep_of(OverridesParser.create().parse_overrides(list(lines)))


def said(*lines: str) -> str:
    with pytest.raises(InvalidFieldError) as caught:
        read(*lines)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "domain"),
    [
        ("lr=interval(1e-4,1e-1)", {"type": "float", "low": 1e-4, "high": 1e-1}),
        ("lr=tag(log,interval(1e-4,1e-1))", {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}),
        ("lr=interval(1,10)", {"type": "float", "low": 1.0, "high": 10.0}),
        ("lr=int(interval(1,10))", {"type": "int", "low": 1, "high": 10}),
        ("lr=range(1,10)", {"type": "int", "low": 1, "high": 9, "step": 1}),
        ("lr=range(1,10,4)", {"type": "int", "low": 1, "high": 9, "step": 4}),
        ("lr=range(9,0,-3)", {"type": "int", "low": 3, "high": 9, "step": 3}),
        ("lr=range(0,1,0.25)", {"type": "float", "low": 0.0, "high": 0.75, "step": 0.25}),
        ("lr=tag(log,range(1,9))", {"type": "int", "low": 1, "high": 8, "log": True}),
        ("lr=1,2,4", {"type": "categorical", "values": [1, 2, 4]}),
        ("lr=choice(1e-3,1e-4)", {"type": "categorical", "values": [1e-3, 1e-4]}),
        ("lr=true,false", {"type": "categorical", "values": [True, False]}),
        ("lr=sgd,adam,sgd", {"type": "categorical", "values": ["sgd", "adam"]}),
        ("lr=choice([64,64],[32],{a:1})", {"type": "categorical", "values": ["[64,64]", "[32]", "{a:1}"]}),
        ("lr=choice('1',2)", {"type": "categorical", "values": ["'1'", 2]}),
        ("++lr=0.3 lr=0.1,0.2", {"type": "categorical", "values": [0.1, 0.2]}),
    ],
)
def test_a_notation_has_its_domain(line: str, domain: dict[str, Any]) -> None:
    assert read(*line.split()).space == {"lr": domain}


@pytest.mark.parametrize(
    "line",
    ["lr=choice('1','a b',\"it's\")", "lr=choice([1,'x y'],{a:{b:2}})", "lr=true,1.5,x,'null',b-c/d.e"],
)
def test_hydra_reads_each_choice_back_from_the_command_line(line: str) -> None:
    parser = OverridesParser.create()
    (given,) = parser.parse_overrides([line])
    sweep = read(line)
    command = CommandLine(args=sweep.args)
    written = [command.fill({"lr": value}, trial=0, seed=0) for value in sweep.space["lr"]["values"]]
    assert [parser.parse_overrides(one)[0].value() for one in written] == [
        Override._convert_value(value) for value in given.sweep_iterator()
    ]


def test_names_lose_what_only_hydra_needs() -> None:
    sweep = read("+model.lr=1,2", "db/engine=a,b", "seed=range(0,3)", "src@dst=a,b")
    assert sweep.keys == {
        "model.lr": "+model.lr",
        "db.engine": "db/engine",
        "cfg.seed": "seed",
        "src.dst": "src@dst",
    }


def test_other_overrides_are_passed_on_as_written_and_the_last_of_a_key_counts() -> None:
    sweep = read("epochs=3", "lr=1,2", "~old", "+old={a:{b:1}}", "lr=3,4", "d=range(3,4)", "++epochs=5")
    assert sweep.args == ("++epochs=5", "lr={lr}", "~old", "+old={{a:{{b:1}}}}", "d=3")
    assert read("lr=1,2", "x=1,2", "++lr=0.7").space.keys() == {"x"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["lr=tag(slow,interval(1,2))"], "lr: has the unknown tag slow"),
        (["lr=tag(log,choice(1,2))"], "lr: has the tag log, but choices have no order"),
        (["lr=tag(log,range(1,9,2))"], "lr: has the tag log, but a grid has even steps"),
        (["lr=range(1,1)"], "lr: has no values (got 'lr=range(1,1)')"),
        (["lr=range(0,1,1e-9)"], "lr: has more than 10000 values"),
        (["hydra.job.name=a,b"], "hydra.job.name: is a setting of Hydra, which is the same for all trials"),
        (["a.b=1,2", "a/b=x,y"], "a.b: has the same name in the study as a.b (got 'a/b=x,y')"),
        (["a" * 200 + "=1,2"], "invalid parameter name"),
    ],
)
def test_what_cannot_be_searched_over_is_named(lines: list[str], words: str) -> None:
    assert words in said(*lines)


def test_all_problems_are_named_at_once() -> None:
    assert len(said("a=tag(x,interval(1,2))", "b=range(1,1)", "c=1,2").splitlines()) == 2


@pytest.mark.parametrize("job", ["train", "My.Train_v2", "2nd", "日本", "a" * 100])
def test_a_job_of_any_name_gives_a_valid_study_name(job: str) -> None:
    name = study_name(job, "20261130-212233")
    assert check_study_id(name) == name
