"""A trial without torch whose state records with which rate each step was computed, whoever computed it.

The state is a list of (step, rate), to which every step appends its own. So the last state of a member shows, step
by step, whether the copies and mutations that the scheduler reports are those that took place. The score is lower
the nearer the rates were to a target, so that the population has something to learn.
"""

import json
import os
from pathlib import Path

from headrace import trial


def train(t: trial.Trial) -> None:
    """In each step, append the rate with which it was computed."""
    journal = Path(os.environ["DRIFT_JOURNAL"]) / f"{t.number}.json"
    t.state.setdefault("steps", [])
    for step in t.steps():
        steps = [*t.state["steps"], [step, t.params["rate"]]]
        t.state["steps"] = steps
        written = journal.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(steps))
        written.replace(journal)
        t.report(score=sum(abs(rate - 0.3) for _, rate in steps) / len(steps))
