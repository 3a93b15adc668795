"""The trial program of the Python client. README.md describes it."""

import time

from headrace import trial


def train(t: trial.Trial) -> None:
    """Trains a sum."""
    for step in t.steps():
        if "fails_at" in t and t["fails_at"] == step:
            raise ValueError("fails as told")
        time.sleep(float(t["pause_s"]) if "pause_s" in t else 0.0)
        t.state["sum"] = (t.state.get("sum", 0) * 31 + step) % 1_000_003
        t.report(loss=float(t["x"]) + 1 / step, sum=t.state["sum"])


if __name__ == "__main__":
    trial.main(train, defaults={"x": 0.5})
