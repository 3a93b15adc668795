"""A year of small studies: whether retention times keep the tables and their indexes at a constant size.

On each simulated day a number of studies, inserted with SQL, end, and the janitor makes its round. The retention
times simulate the clock: on day `d` everything that ended on an earlier day is as old as it would be. Postgres
vacuums by itself, and as much more often as the days are shorter.

    python benchmarks/scheduler/bench_year.py --studies 20 --trials 20

Writes `year.json` into `--out`.
"""

import argparse
import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmark_site import postgres, write_record
from sqlalchemy.ext.asyncio import AsyncEngine

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "scheduler"))
from bench_deletion import spec
from past_studies import past_study

from headrace.ages import KINDS, Ages
from headrace_services.scheduler.engine.janitor import Janitor
from headrace_services.scheduler.store import leftovers
from headrace_services.scheduler.store.database import open_engine
from headrace_services.scheduler.store.migrate import migrate

DAYS = 365
AGES = {"events": 7, "reports": 14, "leases": 14, "checkpoints": 14, "studies": 60, "tombstones": 30}
DAY_S = 86_400.0


def ages_on(day: int) -> Ages:
    """The retention times for what ended `DAYS - day` days before this day's end, by the real clock."""
    ahead = timedelta(days=DAYS - day)
    return Ages(**{kind: ahead + timedelta(days=AGES[kind]) if kind in AGES else None for kind in KINDS})


async def year(engine: AsyncEngine, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let a year pass."""
    found: list[dict[str, Any]] = []
    small = spec(9, 9)
    for day in range(1, DAYS + 1):
        ago_s = (DAYS - day + 0.5) * DAY_S
        async with engine.begin() as conn:
            for number in range(options.studies):
                await past_study(conn, f"day-{day}-{number}", small, ago_s=ago_s, trials=options.trials)
            await conn.exec_driver_sql(
                "UPDATE tombstone SET time = clock_timestamp() - %s * interval '1 day'"
                " WHERE time > clock_timestamp() - interval '10 seconds'",
                (DAYS - day,),
            )
        done = await Janitor(engine, ages_on(day), rest=0).clean()
        assert done is not None
        await asyncio.sleep(options.pause)
        if day % 15 == 0 or day == DAYS:
            async with engine.connect() as conn:
                sizes = {one.table: one.size_bytes for one in await leftovers.table_sizes(conn)}
                indexes = await conn.exec_driver_sql(
                    "SELECT sum(pg_indexes_size(oid)) FROM pg_class WHERE relkind = 'r'"
                    " AND relnamespace = 'public'::regnamespace"
                )
                studies = await conn.exec_driver_sql("SELECT count(*) FROM study")
                found.append(
                    {
                        "day": day,
                        "studies": studies.scalar_one(),
                        "bytes": sum(sizes.values()),
                        "index_bytes": int(indexes.scalar_one()),
                        "longest_ms": round(done.longest_s * 1e3, 1),
                        "tables": {table: size for table, size in sizes.items() if size > 1 << 16},
                    }
                )
            print({key: value for key, value in found[-1].items() if key != "tables"}, flush=True)
    return found


def main() -> None:
    """Run it and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--studies", type=int, default=20, help="that end each day")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.3, help="seconds of a day left to Postgres")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    began = time.monotonic()
    with postgres() as url:
        found = asyncio.run(_run(url, options))
    # Everything with a retention time of its own has reached its size after the longest one.
    steady = [one for one in found if one["day"] >= AGES["studies"] + AGES["tombstones"] + 15]
    growth = {key: round(steady[-1][key] / steady[0][key], 3) for key in ("bytes", "index_bytes", "studies")}
    print("from day", steady[0]["day"], "to day", steady[-1]["day"], growth)
    write_record(
        options.out / "year.json",
        ages_days=AGES,
        studies_a_day=options.studies,
        trials=options.trials,
        took_s=round(time.monotonic() - began, 1),
        growth=growth,
        days=found,
    )


async def _run(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    engine = open_engine(url, pool_size=2)
    try:
        await migrate(engine)
        async with engine.connect() as conn:
            at_once = await conn.execution_options(isolation_level="AUTOCOMMIT")
            await at_once.exec_driver_sql("ALTER SYSTEM SET autovacuum_naptime = '1s'")
            await at_once.exec_driver_sql("ALTER SYSTEM SET autovacuum_vacuum_cost_delay = 0")
            await at_once.exec_driver_sql("SELECT pg_reload_conf()")
        return await year(engine, options)
    finally:
        await engine.dispose()


if __name__ == "__main__":
    main()
