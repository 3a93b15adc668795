"""The SDK's planner against a real server: `headrace up --planner`, the document's ten lines, `plan --address`."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import headrace_command
from plan_command import run

from headrace.cli import doctor
from headrace.client import AsyncClient, Client, Planner, SearchProgress
from headrace.errors import HeadraceError, InvalidFieldError, UnreachableError
from headrace.ports import any_port
from headrace_services.up.children import Options, children

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "plan-a-training-job.md"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A planner's server in a process of its own."""
    command = [sys.executable, "-m", "headrace.cli", "planner", "--listen", "127.0.0.1:0", "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        yield line.rsplit(" ", 1)[-1].strip()
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


def test_a_plan_with_progress_and_files(address: str, tmp_path: Path) -> None:
    seen: list[SearchProgress] = []
    with Planner(address) as planner:
        found = planner.plan("gpt3-13b", "a100-32", batch=64, target="megatron", on_progress=seen.append)
    assert seen
    degrees = found.degrees
    assert degrees["data"] * degrees["tensor"] * degrees["pipeline"] == 32
    assert found.record["iteration_s"] == found.iteration_s
    assert found.complete
    assert dict(found.shortlist[0]) == dict(degrees)
    assert len(found.shortlist) >= 2
    assert {path.name for path in found.write(tmp_path)} == {"megatron.args", "lowering.md"}
    assert "--tensor-model-parallel-size" in (tmp_path / "megatron.args").read_text()
    assert any("bytes a parameter" in note for note in found.notes)


def test_a_limit_and_a_description(address: str) -> None:
    blocks = [{"count": 24, "heads": 16}]
    model = {"vocabulary": 51200, "sequence": 1024, "hidden": 2048, "blocks": blocks}
    with Planner(address) as planner:
        assert not planner.plan("gpt3-13b", "a100-64", batch=64, budget=1).complete
        assert planner.plan(model, "a100-8", batch=16).record["model"] == "model"


def test_a_cancelled_search_frees_the_server(address: str) -> None:
    """One worker serves, so the next search gets an answer only because the cancelled one is gone."""
    with Planner(address, timeout_s=120) as planner:
        call = planner.search("megatron-1t", "a100-3072", batch=6144)
        next(iter(call))
        call.cancel()
        with pytest.raises(HeadraceError):
            call.result()
        assert planner.plan("gpt3-2.7b", "a100-16", batch=32).iteration_s > 0

        def enough(_: SearchProgress) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            planner.plan("megatron-1t", "a100-3072", batch=6144, on_progress=enough)
        assert planner.plan("gpt3-2.7b", "a100-16", batch=32).iteration_s > 0


async def test_the_async_client_plans_and_a_cancelled_call_frees_the_server(address: str) -> None:
    begun = threading.Event()
    async with AsyncClient() as client:
        large = client.plan(
            "megatron-1t", "a100-3072", planner=address, batch=6144, on_progress=lambda _: begun.set()
        )
        waiting = asyncio.create_task(large)
        assert await asyncio.to_thread(begun.wait, 60)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        found = await client.plan("gpt3-2.7b", "a100-16", planner=address, batch=32)
        degrees = found.degrees
        again = await client.simulate("gpt3-2.7b", "a100-16", degrees, planner=address, batch=32)
        assert again.iteration_s == pytest.approx(found.iteration_s)


def test_simulate_keeps_to_the_mode(address: str) -> None:
    degrees = {"data": 4, "tensor": 2, "optimizer": 4, "pipeline": 2, "micro_batches": 4}
    with Client("127.0.0.1:1") as client:
        found = client.simulate("gpt3-2.7b", "a100-16", degrees, planner=address, batch=32)
        assert found.degrees["tensor"] == 2
        with pytest.raises(InvalidFieldError, match="dapple"):
            client.simulate("gpt3-2.7b", "a100-16", degrees, planner=address, batch=32, mode="dapple")
        with pytest.raises(InvalidFieldError, match="mode"):
            client.simulate("gpt3-2.7b", "a100-16", degrees, planner=address, batch=32, mode="nobody")


def test_what_is_wrong_is_named(address: str) -> None:
    with Planner(address) as planner:
        with pytest.raises(InvalidFieldError, match="gpt4"):
            planner.plan("gpt4", "a100-16")
        with pytest.raises(InvalidFieldError, match="target"):
            planner.plan("gpt3-13b", "a100-32", batch=64, target="jax")
        with pytest.raises(HeadraceError, match="PlanQuestion"):
            planner.plan("gpt3-13b", "a100-32", batches=64)
    nobody = f"127.0.0.1:{any_port()}"
    for ask in (
        lambda planner: planner.plan("gpt3-13b", "a100-32"),
        lambda planner: planner.simulate("gpt3-13b", "a100-32", {"data": 2}),
    ):
        with Planner(nobody) as planner, pytest.raises(UnreachableError) as absent:
            ask(planner)
        assert absent.value.message == f"No Headrace planner answers at {nobody}."
        assert absent.value.remedy.startswith("Start one with `headrace planner`")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda p: p.simulate("gpt3-13b", "a100-32", {"data": "2"}), "data: cannot be asked: 'str' object"),
        (
            lambda p: p.simulate("gpt3-13b", "a100-32", {"date": 2}),
            "date: cannot be asked: .*PlanDegrees holds data,",
        ),
        (
            lambda p: p.plan("gpt3-13b", "a100-32", seconds="9"),
            "seconds: cannot be asked: must be real number",
        ),
        (lambda p: p.plan(None, "a100-32"), "model: cannot be asked: .*Give a name, or a description"),
        (lambda p: p.plan("gpt3-13b", {"nodes": {1}}), "cluster: cannot be asked: .*set"),
        (lambda p: p.plan("gpt3-13b", "a100-32", batch="x"), "batch: cannot be asked: 'str' object"),
    ],
)
def test_a_question_that_cannot_be_asked_names_its_field(ask: Callable[[Planner], object], says: str) -> None:
    with Planner("127.0.0.1:1") as planner, pytest.raises(InvalidFieldError, match=says):
        ask(planner)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_the_documents_lines_run_beside_headrace_up(tmp_path: Path) -> None:
    """A plan with progress, a cancelled search and a plan's files, in at most ten lines."""
    (lines,) = (
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "Planner" in text
    )
    assert len(lines.strip().splitlines()) <= 10
    port = any_port()
    options = ["--home", str(tmp_path / "home"), "--port", "0", "--planner", str(port), "--no-worker"]
    command = [sys.executable, "-m", "headrace.cli", "up", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            assert running.stdout is not None
            said: list[str] = []
            for line in running.stdout:
                said.append(line)
                if re.search(r" planner +serving ", line):
                    break
            told = {**os.environ, "HEADRACE_PLANNER": f"127.0.0.1:{port}"}
            ran = subprocess.run(
                [sys.executable, "-c", lines],
                env=told,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        finally:
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=60)
    assert ran.returncode == 0, ran.stderr[-2000:] + "".join(said)
    assert " tuples solved" in ran.stdout
    assert "--num-layers" in ran.stdout


def test_the_command_asks_a_server(address: str, tmp_path: Path) -> None:
    words = ["gpt3-13b", "a100-32", "--batch", "64"]
    here = json.loads(run(*words, "--json"))
    more = ["--address", address, "--target", "megatron", "--out", str(tmp_path), "--json"]
    there = json.loads(run(*words, *more))
    assert there["iteration_s"] == here["iteration_s"]
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "megatron.args", "lowering.md"}


def test_the_address_reaches_the_command_through_headrace(address: str) -> None:
    """`headrace` itself accepts --address anywhere on the line; the plan must still come from the server."""
    words = ["plan", "gpt3-13b", "a100-32", "--batch", "64", "--address", address]
    ran = headrace_command(*words)
    assert ran.returncode == 0, ran.stderr
    assert "micro_batches" in ran.stdout, "what only a plan from a server prints"
    assert headrace_command(*words[:-1], "127.0.0.1:1").returncode != 0


def test_up_starts_a_planner_where_it_is_asked_to(tmp_path: Path) -> None:
    names = [spec.name for spec in children(Options(home=tmp_path, ports=(7440,)))]
    assert "planner" not in names
    (spec,) = (
        one
        for one in children(Options(home=tmp_path, ports=(7440,), planner_port=7445))
        if one.name == "planner"
    )
    assert "127.0.0.1:7445" in spec.command


def test_doctor_asks_the_planner_that_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(doctor._planner())
    monkeypatch.setenv("HEADRACE_PLANNER", address)
    (found,) = doctor._planner()
    assert found.level is doctor.Level.OK
    monkeypatch.setenv("HEADRACE_PLANNER", "127.0.0.1:1")
    (found,) = doctor._planner()
    assert found.level is doctor.Level.FAIL
    assert found.text == "No Headrace planner answers at 127.0.0.1:1."
    assert "headrace planner" in found.remedy


def test_constants_that_calibration_wrote_are_read(tmp_path: Path) -> None:
    rows = Path(__file__).parents[2] / "benchmarks" / "planner" / "data" / "vtrain_multi_node.csv"
    out = tmp_path / "mine.json"
    run("calibrate", str(rows), "--folds", "2", "--out", str(out), "--json")
    words = ["gpt3-13b", "h100-32", "--batch", "64", "--json"]
    with_ = json.loads(run(*words, "--constants", str(out)))
    without = json.loads(run(*words))
    assert with_["calibrated"]
    assert not without["calibrated"]
    assert with_["iteration_s"] != without["iteration_s"]
    out.write_text("{}")
    with pytest.raises(InvalidFieldError):
        run(*words, "--constants", str(out))


def _gone() -> str:
    return f"127.0.0.1:{any_port()}"


def test_the_first_of_several_addresses_that_answers_is_used(address: str) -> None:
    """The first server is gone, for searches, simulations and the client's own calls alike."""
    several = f"{_gone()},{address}"
    with Planner(several) as planner:
        found = planner.plan("gpt3-2.7b", "a100-16", batch=32)
        assert planner.simulate("gpt3-2.7b", "a100-16", found.degrees, batch=32).iteration_s > 0
        assert planner.plan("gpt3-2.7b", "a100-16", batch=32).degrees == found.degrees
    with Planner(several) as planner:
        assert planner.simulate("gpt3-2.7b", "a100-16", found.degrees, batch=32).degrees == found.degrees
        with pytest.raises(InvalidFieldError):
            planner.plan("gpt3-2.7", "a100-16")
    with Client(address) as client:
        assert client.plan("gpt3-2.7b", "a100-16", batch=32, planner=several).degrees == found.degrees
    with Planner(f"{_gone()},{_gone()}") as planner:
        for ask in (planner.plan, lambda model, cluster: planner.simulate(model, cluster, found.degrees)):
            with pytest.raises(UnreachableError):
                ask("gpt3-2.7b", "a100-16")


@pytest.mark.full
def test_a_search_continues_at_the_next_server_when_its_own_dies(address: str) -> None:
    command = [sys.executable, "-m", "headrace.cli", "planner", "--listen", "127.0.0.1:0", "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        mine = first.stdout.readline().rsplit(" ", 1)[-1].strip()
        with Planner(f"{mine},{address}", timeout_s=120) as planner:
            call = planner.search("gpt3-175b", "a100-512", batch=512)
            next(iter(call))
            first.kill()
            assert call.result().iteration_s > 0


@pytest.mark.full
def test_a_cancelled_search_is_asked_nowhere_else(address: str) -> None:
    with Planner(f"{address},{address.replace('127.0.0.1', 'localhost')}", timeout_s=120) as planner:
        call = planner.search("megatron-1t", "a100-3072", batch=6144)
        next(iter(call))
        call.cancel()
        with pytest.raises(HeadraceError):
            call.result()
