"""A controller's settings, and what is wrong with them.

Each rank checks its own, and they are compared between ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from headrace_torch.hdet.designs import DESIGNS
from headrace_torch.hdet.hyperparameter import ScalarHyperparameter
from headrace_torch.hdet.rules import LogSpaceRule

CHOICES = {
    "mode": ("shared_grad", "local_grad"),
    "design": DESIGNS,
    "optimizer_state": ("keep", "average", "reset"),
    "buffers": ("average", "broadcast", "keep"),
}


def not_whole(name: str, value: object, *, least: int, unit: str = "") -> str | None:
    """Says that a count is not a whole number, or below `least`: a sync point every 2.5 steps would never be
    reached."""
    if not isinstance(value, int) or isinstance(value, bool):
        return f"{name} must be a whole number, at least {least}{unit}, not {value!r}"
    return None if value >= least else f"{name} must be at least {least}{unit}, not {value}"


def not_seconds(name: str, value: float | None) -> str | None:
    """Says that a duration is not valid."""
    if value is None or (math.isfinite(value) and value > 0):
        return None
    return f"{name} must be a positive number of seconds, or None, not {value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A controller's settings, as given: names are not checked before `problem` checks them."""

    sync_every: int
    mode: str
    score: str
    design: str
    optimizer_state: str
    buffers: str
    seed: int
    rule: LogSpaceRule
    start_after: int
    bucket_bytes: int
    timeout_s: float | None

    def problem(self, explored: Sequence[ScalarHyperparameter], *, has_group: bool) -> str | None:
        """Says what is out of range, as far as one rank can see."""
        if found := not_whole("sync_every", self.sync_every, least=1, unit=" step"):
            return found
        if found := not_whole("start_after", self.start_after, least=0, unit=" steps"):
            return found
        if found := not_whole("bucket_bytes", self.bucket_bytes, least=1):
            return found
        if found := not_seconds("timeout_s", self.timeout_s):
            return found
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                return f"{name} must be one of {', '.join(allowed)}, not {value!r}"
        if self.score not in ("loss", "probe"):
            return f"score must be 'loss' or a Probe, not {self.score!r}"
        names = [one.name for one in explored]
        if len(set(names)) < len(names):
            return f"hyperparameters need distinct names, not {names}"
        for one in explored:
            if found := one.problem() or self._spread_problem(one, has_group):
                return found
        return self.rule.problem()

    def agreed(self, explored: Sequence[ScalarHyperparameter], *, replicas: int) -> dict[str, object]:
        """Returns what must be the same on all ranks."""
        spaces = [(one.name, one.space, one.acts_on, one.probe_value, float(one.get())) for one in explored]
        return {**asdict(self), "replicas": replicas, "hyperparameters": spaces}

    def _spread_problem(self, one: ScalarHyperparameter, has_group: bool) -> str | None:
        if one.spread == 0:
            return None
        if not has_group:
            return (
                f"{one.name}: a spread of {one.spread} needs replicas, and there is no process group: "
                "call torch.distributed.init_process_group first, or set the spread to 0"
            )
        if one.acts_on == "gradient" and self.mode == "shared_grad":
            return (
                f"{one.name} acts through the gradient, which replicas share under mode='shared_grad': "
                "all would take "
                "the same step and carry no signal; use mode='local_grad' (no DDP, or DDP under no_sync)"
            )
        return None
