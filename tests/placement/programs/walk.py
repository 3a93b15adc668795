"""A trial whose every value depends on all previous ones: a walk with Python's generator. Slow enough to be
interrupted."""

import json
import os
import random
import threading
from pathlib import Path

from headrace import trial


def train(t: trial.Trial) -> None:
    """Walks. The curve is the same to the last bit, however often it is paused."""
    t.state.setdefault("at", t.params["x"])
    pause, step_s = threading.Event(), float(os.environ.get("STEP_S", "0.05"))
    saved = int(os.environ.get("SAVE_EVERY", "0")) or None
    for step in t.steps(checkpoint_every=saved):
        pause.wait(step_s)
        t.state["at"] = t.state["at"] * 0.9 + random.random() / step
        if journal := os.environ.get("JOURNAL"):
            with (Path(journal) / f"{t.number}.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "at": t.state["at"]}) + "\n")
        t.report(loss=t.state["at"])
