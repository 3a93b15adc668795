"""The parts of a cycle, for every tool: a trial of four parameters, three reports, the end."""

from collections.abc import Callable

STEPS = (1, 3, 9)
"""The steps of the reports."""
FULL = 27
"""The step at which a trial would be complete."""
LOSS = 1.0
"""The value that all of them report: a tie with the last one kept is kept, so that no trial is stopped."""
PARAMETERS = ("x0", "x1", "x2", "x3")
LOW, HIGH = 0.0, 1.0

Cycle = Callable[[], None]
