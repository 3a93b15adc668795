"""`python benchmarks/check/yardstick.py [CASES] [SEED]`: how often `headrace check` is right about random scripts.

Each script keeps state in a random kind of place, tracked or not, and its curve, its end or nothing depends on it
(`tests/check/holders.py`). The reference is the script itself, undisturbed and paused after each step, with no
observer (`tests/check/twin.py`). A failure must also name the variable, and tracked state must give no warning.
"""

import multiprocessing
import random
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "check"))

import holders  # noqa: E402  (found by the path above)
import twin  # noqa: E402  (found by the path above)

from headrace.check import run_check, segment  # noqa: E402  (after the path, as the others)

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["numpy", "headrace.check.segment"])


def launch(control_file: Path, log_file: Path, ranks: int) -> None:  # noqa: ARG001  (the check's signature)
    """One process of a check."""
    process = PROCESSES.Process(target=segment.main, args=(str(control_file),))
    process.start()
    process.join()


def judged(kind: str, place: holders.Place, read: holders.Read, *, tracked: bool) -> str:
    """What is wrong with the check's verdict; empty if it is right."""
    with TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(holders.script(kind, place, read, tracked=tracked))
        unchanged = twin.same(script, Path(folder))
        report = run_check(script, folder=Path(folder), limit_s=3600, launch=launch)
    # A generator that is behind at the next report is a loss, even if nothing has drawn from it yet.
    unchanged = unchanged and (tracked or kind not in ("random", "numpy generator"))
    if unchanged != report.passed:
        return (
            f"a pause changes {'nothing' if unchanged else 'it'}, and the check says {report.verdict.value}"
        )
    told = [found.finding for found in (*report.missing, *report.warnings)]
    if tracked and told:
        return f"is tracked, and yet {told}"
    if not unchanged and not any(f"`{holders.path_of(kind, place)}" in finding for finding in told):
        return f"is not named: {told}"
    return ""


def main(cases: int, seed: int) -> int:
    """Prints each wrong verdict, and the figures; returns the exit status."""
    drawn = random.Random(seed)
    counts: Counter[str] = Counter()
    for number in range(cases):
        kind, place = drawn.choice(holders.CASES)
        read, tracked = drawn.choice([*holders.Read]), number % 2 == 1
        wrong = judged(kind, place, read, tracked=tracked)
        counts["wrong" if wrong else "right"] += 1
        print(f"{number + 1} of {cases}", end="\r", file=sys.stderr, flush=True)
        if wrong:
            print(f"{kind}, {place}, {read}, {'tracked' if tracked else 'not tracked'}: {wrong}", flush=True)
    print(f"{cases} scripts, seed {seed}: {counts['right']} verdicts right, {counts['wrong']} wrong")
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[1:]]
    sys.exit(main(*given, *(200, 0)[len(given) :]))
