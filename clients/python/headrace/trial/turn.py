"""The rules for reports in one turn of `t.steps()`, which is one step of the study."""

from collections.abc import Collection, Mapping

from headrace.steps import TOGETHER

ONCE = (
    "Report once a turn, after the inner loop; or let each turn be one batch, and give the study its steps and rungs "
    "in batches."
)
"""What to do instead of reporting every batch."""


class Turn:
    """What a turn has reported."""

    def __init__(self) -> None:
        self._told: set[tuple[int, str]] = set()

    def begin(self) -> None:
        """The next turn starts."""
        self._told.clear()

    def other_step(self, step: int) -> str | None:
        """What is wrong with a report of `step` if the turn has reported a lower step; None if it has not."""
        first = min((earlier for earlier, _ in self._told), default=step)
        if first >= step:
            return None
        return (
            f"step {step} comes in the same turn of t.steps() as step {first}, and a turn is one step. {ONCE}"
        )

    def record(self, step: int, values: Collection[str], roles: Mapping[str, str]) -> None:
        """Record a report. `roles` are the metrics that the study reads, each with its role.

        Raises `ValueError` for a second step in one turn, for a metric that the turn has already reported, and
        for a metric that the study reads in a second report of the step: only the first report of a step counts.
        """
        if (wrong := self.other_step(step)) is not None:
            raise ValueError(f"t.report(...): {wrong}")
        told = {(step, name) for name in values}
        if again := sorted(name for _, name in told & self._told):
            raise ValueError(
                f"t.report(...): {again[0]!r} of step {step} was reported before in this turn of t.steps(), and only "
                f"the first report counts. {ONCE}"
            )
        late = [f"{name!r} ({role})" for name, role in roles.items() if name in values]
        if late and any(step == earlier for earlier, _ in self._told):
            raise ValueError(
                f"t.report(...): {', '.join(late)} comes in a further report of step {step}, and only the first one "
                f"counts. {TOGETHER}"
            )
        self._told |= told
