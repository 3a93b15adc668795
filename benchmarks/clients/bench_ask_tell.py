"""How many trials per second each ask/tell client runs, with 1 and with 16 loops, against one scheduler.

A client is a command. It is called with a study's name and a number of loops, finds the scheduler in
HEADRACE_ADDRESS, runs the study's trials (ask, then report step 1) until the study ends, and prints one line of
JSON: `{"trials": 200, "seconds": 1.5}`, timed from the first request to the last answer. Clients take turns.

    python benchmarks/clients/bench_ask_tell.py [--trials 400] [--rounds 3] [--client NAME=COMMAND ...]
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from headrace import Client
from headrace.spec import StudySpec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "tests" / "chaos"))

from cluster_site import cluster  # noqa: E402

LOOPS = (1, 16)
TYPESCRIPT = HERE.parent.parent / "clients" / "typescript" / "dist" / "index.js"


def clients() -> dict[str, str]:
    """The clients that can run here."""
    found = {
        "python": f"{sys.executable} {HERE / 'ask_tell.py'}",
        "python asyncio": f"{sys.executable} {HERE / 'ask_tell.py'} --asyncio",
    }
    if shutil.which("node") and TYPESCRIPT.exists():
        found["typescript"] = f"node {HERE / 'ask_tell.mjs'}"
    return found


def spec(trials: int) -> StudySpec:
    """A study with one step per trial."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "sampler": {"kind": "random"},
            "policy": {"kind": "run_all"},
            "max_trials": trials,
            "max_steps": 1,
        }
    )


def main() -> None:
    """Prints a table of trials per second, the median of the rounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=400, help="of each study")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", action="append", default=[], metavar="NAME=COMMAND", help="a further one")
    options = parser.parse_args()
    commands = clients() | dict(one.split("=", 1) for one in options.client)
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(Path(folder), worker=False) as site,
        Client(site.address) as client,
    ):
        environment = {**os.environ, "HEADRACE_ADDRESS": site.address}
        for round_ in range(options.rounds):
            for name, command in commands.items():
                for loops in LOOPS:
                    study = f"round-{round_}-{name.replace(' ', '-')}-{loops}"
                    client.create_study(study, spec(options.trials))
                    words = [*shlex.split(command), study, str(loops)]
                    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
                    said = json.loads(done.stdout.splitlines()[-1])
                    assert said["trials"] == options.trials, f"{name}: {said}"
                    rates[name, loops].append(said["trials"] / said["seconds"])
    print("| client | 1 loop | 16 loops |\n| --- | ---: | ---: |")
    for name in commands:
        print(f"| {name} | {' | '.join(f'{statistics.median(rates[name, loops]):.0f}' for loops in LOOPS)} |")


if __name__ == "__main__":
    main()
