"""Before a study is created, a real planner is asked for its transfer's plan. Otherwise nothing is created."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script

from headrace import AsyncClient, Client
from headrace.client import SearchProgress
from headrace.errors import HeadraceError, InvalidFieldError, StudyExistsError, UnreachableError
from headrace.ports import any_port
from headrace.spec import from_proto

PLAN: dict[str, Any] = {"model": "gpt3-125m", "cluster": "a100-4", "batch": 8, "target": "deepspeed"}


def spec(**plan: Any) -> dict[str, Any]:
    return {
        "objective": {"metric": "loss", "goal": "minimize"},
        "trial": {"callable": "train:train"},
        "space": {"lr": {"type": "float", "low": 1e-4, "high": 1.0}},
        "trials": 9,
        "steps": 9,
        "transfer": {"callable": "train:target", "plan": {**PLAN, **plan}, "resources": {"gpus": 4}},
    }


@pytest.fixture(scope="module")
def planner() -> Iterator[str]:
    """A planner's server in a process of its own."""
    command = [sys.executable, "-m", "headrace.cli", "planner", "--listen", "127.0.0.1:0", "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().rpartition(" ")[2].strip()
        server.terminate()


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_PLANNER", raising=False)


@pytest.mark.full
def test_a_planner_of_our_own_is_asked_and_leaves(fake: FakeStudyService, client: Client) -> None:
    seen: list[SearchProgress] = []
    client.create_study("x", spec(), on_progress=seen.append)
    assert seen
    assert "tuples solved" in str(seen[-1])
    answered = from_proto(fake.requests["CreateStudy"][0].spec)
    assert answered.plan is not None
    answer = answered.plan.answer
    assert answer is not None
    assert answer.degrees.devices == 4
    assert set(answer.files) == {"plan.json", "pipeline.py", "deepspeed.json", "lowering.md"}
    assert json.loads(answer.files["plan.json"])["iteration_s"] == answer.iteration_s
    living = [
        one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE
    ]  # of earlier tests
    assert [child for child in living if "tether" in " ".join(child.cmdline())] == []
    client.create_study("y", answered, planner="127.0.0.1:1")  # already answered: nobody is asked
    assert from_proto(fake.requests["CreateStudy"][1].spec) == answered


def test_a_name_that_is_taken_is_refused_before_a_planner_is_asked(
    fake: FakeStudyService, client: Client, script: Script
) -> None:
    fake.add(script)
    with pytest.raises(StudyExistsError, match="a study 'digits' exists already"):
        client.create_study("digits", spec(), planner="127.0.0.1:1")  # no planner at this address
    assert fake.requests["CreateStudy"] == []


@pytest.mark.parametrize(
    ("plan", "field", "says", "remedy"),
    [
        ({"model": "gpt3-125"}, "model", "not a known model", "gpt3-125m"),
        ({"model": {"hidden": 8}}, "model.", "", ""),
        ({"model": "llama3-70b"}, "cluster", "GiB short", "fits with batch"),
        ({"schedule": "interleaved"}, "chunks", "at least 2", "chunks: 2"),
        ({"cluster": "a100-8"}, "cluster", "is for 8 devices, and a target trial takes 4", "{gpus: 8}"),
    ],
)
def test_what_cannot_be_planned_creates_nothing(
    fake: FakeStudyService,
    client: Client,
    planner: str,
    plan: dict[str, Any],
    field: str,
    says: str,
    remedy: str,
) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        client.create_study("x", spec(**plan), planner=planner)
    found = refused.value.violations[0]
    assert found.field.startswith(f"transfer.plan.{field}")
    assert says in found.message
    assert remedy in found.remedy
    assert "--" not in found.remedy
    assert not fake.requests["CreateStudy"]


def test_an_address_where_nobody_plans_creates_nothing(
    fake: FakeStudyService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"127.0.0.1:{any_port()}"
    monkeypatch.setenv("HEADRACE_PLANNER", nobody)
    with pytest.raises(UnreachableError) as absent:
        client.create_study("x", spec())
    assert absent.value.message == f"transfer.plan: No Headrace planner answers at {nobody}."
    assert "or leave it out" in absent.value.remedy
    monkeypatch.setenv("HEADRACE_PLANNER", "no address")
    with pytest.raises(InvalidFieldError, match="HEADRACE_PLANNER: is not an address"):
        client.create_study("x", spec())
    assert not fake.requests["CreateStudy"]


def test_a_planner_that_does_not_start_is_one_error(
    fake: FakeStudyService, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named numpy' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(HeadraceError, match=r"no planner starts on this machine \(no module named numpy\)"):
        client.create_study("x", spec())
    assert not fake.requests["CreateStudy"]


@pytest.mark.full
async def test_the_async_client_asks_too_and_gives_up_when_cancelled(
    fake: FakeStudyService, planner: str
) -> None:
    begun = threading.Event()
    large = {"model": "megatron-1t", "cluster": "a100-3072", "batch": 6144}
    async with AsyncClient(fake.address) as client:
        asking = client.create_study("x", spec(**large), planner=planner, on_progress=lambda _: begun.set())
        waiting = asyncio.create_task(asking)
        assert await asyncio.to_thread(begun.wait, 30)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not fake.requests["CreateStudy"]
        await client.create_study("y", spec(), planner=planner)  # the one worker is free again
    assert from_proto(fake.requests["CreateStudy"][0].spec).open_plan is None
