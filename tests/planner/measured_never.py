"""A trial that times no plan at all, and imports no more than it needs."""

from headrace.trial import Trial


def measure(t: Trial) -> None:
    raise ValueError("nothing works")
