"""`headrace check` on several ranks: it names the rank and the object, and blames nothing else."""

from collections.abc import Callable

import pytest

from headrace.check import CheckReport, render

Check = Callable[..., CheckReport]

GANG = """
import random
import torch
from headrace import trial

def train(t):
    torch.set_num_threads(1)
    model = torch.nn.Linear(3, 1)
    noise = random.Random(f"{t.seed}/{t.rank}")
    order = trial.ResumableBatches(12, 4, seed=t.seed + t.rank)
    t.track(model=model, noise=noise, order=order)
    for epoch in t.steps():
        for batch in order.take(2):
            with torch.no_grad():
                model.weight += 0.01
            draw = noise.random() + sum(batch)
        t.report(loss=model.weight.sum(), draw=draw)
"""
ALL = "t.track(model=model, noise=noise, order=order)"
FORGOT = """own = {} if t.rank == 1 else {"noise": noise}
    t.track(model=model, order=order, **own)"""
RANK_0S = ALL.replace("noise=noise", "noise=trial.shared(noise)")


@pytest.mark.full
def test_a_gang_passes_with_each_rank_drawing_its_own_numbers(check: Check) -> None:
    report = check(source=GANG, ranks=2)
    assert report.passed, render(report)
    assert "2 restores, each in new processes of a gang of 2 ranks" in render(report)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("mutant", "finding", "remedy"),
    [
        (
            FORGOT,
            "Random `noise` is not tracked: the random numbers repeat",
            "add generator=noise to t.track(...)",
        ),
        (
            RANK_0S,
            "Random `noise` is tracked with shared(...), and is not as rank 0's, which every rank is given",
            "write noise=noise in t.track(...), so that each rank saves its own",
        ),
    ],
    ids=["rank 1 forgot its generator", "rank 1 loads rank 0's"],
)
def test_the_rank_and_the_object_are_named(check: Check, mutant: str, finding: str, remedy: str) -> None:
    report = check((ALL, mutant), source=GANG, ranks=2)
    found = [(one.name, one.ranks, one.finding, one.remedy) for one in report.missing]
    assert found == [("random numbers", (1,), finding, remedy)]
    assert report.trajectory is not None
    assert report.trajectory.what == "draw of rank 1"
    assert f"1. random numbers on rank 1: {finding}" in render(report)


@pytest.mark.full
def test_what_every_rank_loses_is_told_once(check: Check) -> None:
    report = check((ALL, ALL.replace("model=model, ", "")), source=GANG, ranks=2)
    assert [(one.name, one.ranks) for one in report.missing] == [("weights", ())]


def test_a_rank_that_fails_in_the_resumed_run_is_named(check: Check) -> None:
    breaks = "if t.resumed and t.rank == 1:\n        raise ValueError('no such rank')\n    "
    report = check((ALL, breaks + ALL), source=GANG, ranks=2)
    (missing,) = report.missing
    assert missing.finding == "the resumed process fails: on rank 1: ValueError: no such rank"
