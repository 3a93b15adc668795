"""Whether a surrogate has passed the gate: asked wherever its results are about to be used.

`coordinate_check` stores its report with the family of models that it checked. `fuse` finds it there; `transfer`
and `choose_scale`, which see no surrogate, receive it as an argument. Without a report they warn, after a failed
check they raise, and with `gate=False` the user continues anyway.
"""

import warnings
from typing import Literal, Protocol, runtime_checkable

from headrace_torch.hydro.errors import CoordinateCheckError


class UngatedWarning(UserWarning):
    """Results of a surrogate are used, and no coordinate check says that they transfer."""


@runtime_checkable
class GateResult(Protocol):
    """What `coordinate_check` returns, as far as others need it."""

    @property
    def passed(self) -> bool:
        """Whether hyperparameters transfer."""

    def raise_if_refuted(self) -> object:
        """Raises if the check says that they do not transfer, but not if it is inconclusive."""


Gate = GateResult | Literal[False] | None


def same_rules(optimizer: str) -> str:
    """Optimizers that share a check: Adam and AdamW move activations in the same way."""
    return "adam" if optimizer == "adamw" else optimizer


def ask(gate: Gate, *, what: str) -> None:
    """Raises, warns, or lets pass.

    Args:
        gate: a report; False continues without one; None means that there is no report.
        what: the operation that is about to start, for the message.

    Raises:
        CoordinateCheckError: the check failed, or `gate` is something else.
    """
    if gate is False:
        return
    if gate is not None and not isinstance(gate, GateResult):
        raise CoordinateCheckError(f"gate must be a report of coordinate_check, or False, not {gate!r}")
    if gate is None:
        told = "no coordinate check of the surrogate is known"
    elif gate.passed:
        return
    else:
        gate.raise_if_refuted()
        told = "the coordinate check is inconclusive"
    warnings.warn(
        f"{what}: {told}, so its best hyperparameters may not be the model's; run hydro.coordinate_check and pass its "
        "report as gate=, or pass gate=False to continue",
        UngatedWarning,
        stacklevel=4,
    )
