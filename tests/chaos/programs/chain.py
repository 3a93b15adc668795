"""A trial whose every step depends on the one before, so that a wrong resume shows in its values.

Besides reporting, it records each answered report with its lease in a journal of its own. Tests compare the
journal with what the scheduler says it stored. The metric `flat` is the same for all trials: by it no trial is
worse than another, so that all go through every rung.
"""

import hashlib
import json
import os
import select
from pathlib import Path

from headrace import trial

STEP_S = float(os.environ.get("CHAIN_STEP_S", "0.03"))


def link(seed: int, before: str, step: int) -> str:
    """The chain's value after `step`."""
    return hashlib.sha256(f"{seed}:{before}:{step}".encode()).hexdigest()


def value(chain: str) -> float:
    """A number in [0, 1) for a link."""
    return int(chain[:12], 16) / 16**12


def train(t: trial.Trial) -> None:
    """Follow the chain, one link per step."""
    journal = Path(os.environ["CHAIN_JOURNAL"]) / f"{os.environ['HEADRACE_LEASE_ID']}.jsonl"
    t.state.setdefault("chain", "")
    t.track()
    for step in t.steps():
        select.select([], [], [], STEP_S)
        t.state["chain"] = link(t.seed, str(t.state["chain"]), step)
        score = value(str(t.state["chain"]))
        t.report(score=score, flat=0.0)
        with journal.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, "score": score}) + "\n")
