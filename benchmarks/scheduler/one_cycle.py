"""What a cycle consists of, whoever plays it: a trial of four parameters, three reports, the end."""

from collections.abc import Callable

STEPS = (1, 3, 9)
"""The reports."""
FULL = 27
"""Where a trial would be complete."""
LOSS = 1.0
"""What all of them report: what ties with the last one kept is kept, so that no trial is stopped."""
PARAMETERS = ("x0", "x1", "x2", "x3")
LOW, HIGH = 0.0, 1.0

Cycle = Callable[[], None]
