"""A trial without torch whose state says with which rate each of its steps was computed, whoever computed it.

The state is a list of (step, rate); every step appends its own. So whoever reads the last state of a member can tell,
step by step, whether the copies and the mutations that the scheduler tells of are those that took place. The
score is lower the nearer the rates were to a target, so that the population has something to learn.
"""

import json
import os
from pathlib import Path

from headrace import trial


def train(t: trial.Trial) -> None:
    """Each step appends what it was computed with."""
    journal = Path(os.environ["DRIFT_JOURNAL"]) / f"{t.number}.json"
    t.state.setdefault("steps", [])
    for step in t.steps():
        steps = [*t.state["steps"], [step, t.params["rate"]]]
        t.state["steps"] = steps
        written = journal.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(steps))
        written.replace(journal)
        t.report(score=sum(abs(rate - 0.3) for _, rate in steps) / len(steps))
