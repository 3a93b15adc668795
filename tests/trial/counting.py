"""The minimum that a trial can track, and a loop over it."""

from typing import Any

from headrace.trial import Trial


class Counter:
    """The minimum that can be tracked."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def run(t: Trial, counter: Counter, *, until: int = 99, **steps_options: Any) -> list[int]:
    t.track(counter=counter)
    seen = []
    for step in t.steps(**steps_options):
        counter.count += 1
        seen.append(step)
        t.report(count=counter.count)
        if step == until:
            break
    return seen
