"""Everything shown of a trial comes from the one report that counts, even if that is not the last one and the two
differ in the constraints: on a server, in every command and export, and in process."""

import asyncio
import csv
import io
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import headrace_command
from rpc_site import RpcSite

from headrace import optimize
from headrace.client import AsyncClient
from headrace.client.model import TrialInfo
from headrace.spec import StudySpec, parse_spec
from headrace.trial import Trial

LAST_MISSES = ((0.6, 0.9), (0.5, 0.8), (0.7, 0.1))
"""Reports as (loss, size). By `best`, the report of step 2 counts: its size is large enough, and that of the last
report is not."""
LAST_MEETS = ((0.6, 0.9), (0.2, 0.1), (0.7, 0.8))
"""By `best` the first one counts: the second one is better, but violates the constraint."""
SIZE = {"metric": "size", "at_least": 0.3}
X = {"x": {"type": "float", "low": 0.0, "high": 1.0}}
STUDY = {"space": X, "constraints": [SIZE], "policy": "run_all", "trials": 1, "steps": 3, "retries": 0}


def study(**objective: Any) -> StudySpec:
    return parse_spec({**STUDY, "objective": {"metric": "loss", "goal": "minimize", **objective}})


async def tell(site: RpcSite, name: str, spec: StudySpec, reports: tuple[tuple[float, float], ...]) -> None:
    async with AsyncClient(site.replicas[0].address) as client:
        made = await client.create_study(name, spec)
        asked = await made.ask()
        assert asked is not None
        for step, (loss, size) in enumerate(reports, start=1):
            await asked.report(step, loss=loss, size=size, other=step)


async def command(site: RpcSite, *arguments: str) -> str:
    env = {**os.environ, "HEADRACE_ADDRESS": site.replicas[0].address}
    ran = await asyncio.to_thread(partial(headrace_command, *arguments, env=env))
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def says_the_report_of_step_2(best: TrialInfo) -> None:
    assert (best.score, best.score_step, best.feasible) == (0.5, 2, True)
    assert best.counted_metrics == {"loss": 0.5, "size": 0.8, "other": 2}
    assert best.metrics == {"loss": 0.7, "size": 0.1, "other": 3}, "the last report stays what it is"


@pytest.mark.parametrize("objective", [{"scope": "best"}, {"keep": "best"}], ids=["scope", "keep"])
async def test_every_output_tells_the_report_that_counts(
    site: RpcSite, objective: dict[str, str], tmp_path: Path
) -> None:
    await tell(site, "s", study(**objective), LAST_MISSES)
    async with AsyncClient(site.replicas[0].address) as client:
        handle = client.study("s")
        best, listed = await handle.best(), await handle.trials()
    assert best is not None
    for trial in (best, *listed):
        says_the_report_of_step_2(trial)
    shown = " ".join((await command(site, "show", "s", "0")).split())
    assert "feasible yes" in shown
    assert "last size 0.1" in shown
    assert "misses" not in shown
    assert "misses" not in await command(site, "trials", "s")
    assert "misses" not in await command(site, "best", "s")
    await command(site, "report", "s", "--output", str(tmp_path / "s.html"))
    page = (tmp_path / "s.html").read_text()
    assert "trial 0 at step 2" in page
    assert "misses" not in page
    (row,) = csv.DictReader(io.StringIO(await command(site, "export", "s")))
    names = ("feasible", "counted.loss", "counted.size", "metric.loss", "metric.size")
    assert [row[name] for name in names] == ["true", "0.5", "0.8", "0.7", "0.1"]
    (same,) = json.loads(await command(site, "export", "s", "--format", "json"))
    assert [same[name] for name in names] == [True, 0.5, 0.8, 0.7, 0.1]
    told = json.loads(await command(site, "show", "s", "0", "--json"))
    assert (told["feasible"], told["counted_metrics"]["size"], told["metrics"]["size"]) == (True, 0.8, 0.1)


async def test_a_last_report_that_meets_the_constraints_lends_nothing_to_the_one_that_counts(
    site: RpcSite,
) -> None:
    await tell(site, "s", study(scope="best"), LAST_MEETS)
    async with AsyncClient(site.replicas[0].address) as client:
        best = await client.study("s").best()
    assert best is not None
    assert (best.score, best.score_step, best.feasible) == (0.6, 1, True)
    assert best.counted_metrics == {"loss": 0.6, "size": 0.9, "other": 1}


async def test_a_trial_of_which_no_report_counts_is_reported_with_its_last_one(site: RpcSite) -> None:
    await tell(site, "s", study(scope="best"), ((0.6, 0.2), (0.5, 0.2), (0.7, 0.1)))
    async with AsyncClient(site.replicas[0].address) as client:
        (trial,) = await client.study("s").trials()
    assert (trial.score, trial.feasible, trial.counted_metrics["size"]) == (None, False, 0.1)
    assert "misses size ≥ 0.3 with 0.1" in await command(site, "trials", "s")


async def test_several_objectives_are_all_of_the_last_report_whichever_checkpoint_is_kept(
    site: RpcSite,
) -> None:
    spec = parse_spec(
        {
            **STUDY,
            "objective": {"metric": "loss", "goal": "minimize", "keep": "best"},
            "further_objectives": [{"metric": "size", "goal": "maximize"}],
            "constraints": [],
        }
    )
    await tell(site, "s", spec, LAST_MISSES)
    async with AsyncClient(site.replicas[0].address) as client:
        (trial,) = await client.study("s").front()
    assert trial.objective_values == {"loss": 0.7, "size": 0.1}
    assert trial.counted_metrics == trial.metrics
    assert (trial.score, trial.score_step) == (0.7, 3)
    assert (trial.best_value, trial.best_step) == (0.5, 2)


def test_a_function_in_process_tells_the_report_that_counts() -> None:
    def reporting(t: Trial) -> None:
        for step in t.steps():
            loss, size = LAST_MISSES[step - 1]
            t.report(loss=loss, size=size, other=step)

    result = optimize(
        reporting, X, minimize="loss", trials=1, steps=3, scope="best", constraints=[SIZE], policy="run_all"
    )
    assert result.best is not None
    says_the_report_of_step_2(result.best)
    assert bool(result.dataframe().feasible.all())
    assert "misses" not in result.report()
