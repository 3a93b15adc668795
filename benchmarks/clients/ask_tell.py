"""The Python clients of `bench_ask_tell.py`: threads, or coroutines with `--asyncio`."""

import argparse
import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

from headrace import AsyncClient, Client


def blocking(study: str, loops: int) -> tuple[int, float]:
    """Trials and seconds, with one thread per loop."""
    with Client() as client:

        def run(_: int) -> int:
            done = 0
            for asked in client.study(study).ask_all():
                asked.report(1, loss=asked.params["x"])
                done += 1
            return done

        client.study(study).status()  # the connection is there
        began = time.perf_counter()
        with ThreadPoolExecutor(loops) as pool:
            trials = sum(pool.map(run, range(loops)))
        return trials, time.perf_counter() - began


async def awaiting(study: str, loops: int) -> tuple[int, float]:
    """Trials and seconds, with one coroutine per loop."""
    async with AsyncClient() as client:

        async def run() -> int:
            done = 0
            async for asked in client.study(study).ask_all():
                await asked.report(1, loss=asked.params["x"])
                done += 1
            return done

        await client.study(study).status()
        began = time.perf_counter()
        trials = sum(await asyncio.gather(*(run() for _ in range(loops))))
        return trials, time.perf_counter() - began


def main() -> None:
    """Prints the measurement as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("loops", type=int)
    parser.add_argument("--asyncio", action="store_true")
    options = parser.parse_args()
    if options.asyncio:
        trials, seconds = asyncio.run(awaiting(options.study, options.loops))
    else:
        trials, seconds = blocking(options.study, options.loops)
    print(json.dumps({"trials": trials, "seconds": seconds}))


if __name__ == "__main__":
    main()
