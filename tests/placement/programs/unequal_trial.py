"""A slow trial: `STEP_S` seconds per step."""

import os
import time

from headrace import trial


def train(t: trial.Trial) -> None:
    """The loss falls with the steps and with the learning rate."""
    for step in t.steps():
        time.sleep(float(os.environ["STEP_S"]))
        t.report(loss=1 / (step + 1) + t.params["lr"])
