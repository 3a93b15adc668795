"""`keep: best` in a gang: its ranks save at the same reports, whatever each of them reports."""

from pathlib import Path

import torch
from gang_threads import run_gang

from headrace.trial import Trial, read_checkpoint
from headrace.trial.ranks import RanksError
from headrace.trial.runtime import KeepBest

KEEP = KeepBest(maximize=False)


def model() -> torch.nn.Module:
    made = torch.nn.Linear(1, 1)
    with torch.no_grad():
        made.weight.zero_()
        made.bias.zero_()
    return made


def test_all_ranks_save_where_rank_0_reports_its_best(tmp_path: Path) -> None:
    losses = [[3.0, 1.0, 2.0, 2.0], [1.0, 2.0, 3.0, 0.5]]  # by rank: rank 1 has a different best

    def body(t: Trial) -> None:
        t.track(net=model())
        for step in t.steps():
            t.state["step"] = step
            t.report(loss=losses[t.rank][step - 1])
            if step == 4:
                break

    found, folder = run_gang(tmp_path, 2, body, stop=9, milestone=9, keep_best=KEEP)
    assert found == [None, None]
    assert folder is not None
    assert read_checkpoint(folder).state == {"step": 2}
    assert len(list(tmp_path.glob("step-*"))) == 2  # of steps 1 and 2


def test_a_rank_that_waits_for_rank_0_without_success_says_so(tmp_path: Path) -> None:
    def body(t: Trial) -> None:
        t.track(net=model())
        if t.rank:
            t.report(loss=1.0, step=1)

    found, _ = run_gang(tmp_path, 2, body, milestone=9, keep_best=KEEP, patience_s=0.2)
    assert isinstance(found[1], RanksError)
    assert "rank 0 has not reached a report of rank 1" in str(found[1])
