"""The metrics that a worker exposes to Prometheus."""

import asyncio
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace_worker.daemon import Daemon


async def test_a_worker_shows_its_trials_its_outbox_and_its_session(
    site: Site, scheduler: ScriptedScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler.acks = False
    started = Daemon(replace(site.settings, metrics_listen="127.0.0.1:0"))
    site.daemons.append((started, asyncio.create_task(started.run())))
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("report(1)\nreport(9)"), milestone=9))
    await stream.get("report", 2)
    printed = ""

    def address() -> str:
        nonlocal printed
        printed += capsys.readouterr().out
        return printed.partition("metrics at ")[2].partition("\n")[0]

    await until(address)
    with await asyncio.to_thread(urllib.request.urlopen, address(), timeout=10) as answer:
        text = answer.read().decode()
    shown = {
        sample.name.removeprefix("headrace_worker_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    expected = {"connected": 1, "slots": 2, "slots_failed": 0, "trials": 1, "outbox_messages": 2}
    expected |= {"logs_pending": 0, "in_trouble": 0}
    assert expected.items() <= shown.items()
    assert "studies/" not in text
