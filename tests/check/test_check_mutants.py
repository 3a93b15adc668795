"""`headrace check` names what a pause loses: with each of the six pieces removed in turn, it blames nothing else."""

from collections.abc import Callable

import pytest

from headrace.check import CheckReport, render

Check = Callable[..., CheckReport]

LOOP = "for epoch in t.steps():"
REPORT = "t.report(loss=loss,"

MUTANTS = {
    "weights": (
        [("model=model, ", "")],
        "weights",
        "Sequential `model` is not tracked: the weights are those of a new model",
        "add model=model to t.track(...)",
    ),
    "moments": (
        [("optimizer=opt, ", "")],
        "optimizer moments",
        "AdamW `opt` is not tracked: its moments start from nothing",
        "add optimizer=opt to t.track(...)",
    ),
    "schedule position": (
        [("lr_scheduler=sched, ", "")],
        "schedule position",
        "CosineAnnealingLR `sched` is not tracked: the schedule restarts",
        "add lr_scheduler=sched to t.track(...)",
    ),
    "rng": (
        [(", noise=noise", "")],
        "random numbers",
        "Generator `noise` is not tracked: the random numbers repeat",
        "add generator=noise to t.track(...)",
    ),
    "step": (
        [(LOOP, "for epoch in range(1, t.max_steps + 1):"), (REPORT, "t.report(step=epoch, loss=loss,")],
        "step",
        "resumed after step 1, the script reports step 1 again",
        "loop over t.steps(), or start at t.step + 1; keep a count of your own in t.state, which is saved",
    ),
    "data position": (
        [("batches=batches, ", "")],
        "data position",
        "ResumableBatches `batches` is not tracked: the sampler starts its epoch again",
        "add batches=batches to t.track(...)",
    ),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_lost_piece_is_named_and_only_it(check: Check, mutant: str) -> None:
    changes, name, finding, remedy = MUTANTS[mutant]
    report = check(*changes)
    assert not report.passed
    assert report.nondeterminism is None
    assert [(found.name, found.finding, found.remedy) for found in report.missing] == [
        (name, finding, remedy)
    ]
    assert report.trajectory is not None, "what follows from it is shown as well"
    text = render(report)
    assert text.index(finding) < text.index("what follows")


def test_the_script_itself_passes(check: Check) -> None:
    report = check()
    assert report.passed, render(report)
    assert report.restores == 2
    assert "loss, luck and all state found are equal bit by bit" in render(report)
