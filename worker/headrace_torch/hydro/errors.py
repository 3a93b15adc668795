"""What Hydro rejects, and why: every message names the layer, op or hyperparameter, its value and the remedy."""


class HydroError(Exception):
    """Base of everything that Hydro raises on purpose."""


class ShrinkError(HydroError, ValueError):
    """A model cannot be made smaller as asked; `layer` is the dotted name of the layer that prevents it.

    The name is empty if no layer is the cause; the root module's is `(model)`.
    """

    def __init__(self, message: str, *, layer: str = "") -> None:
        super().__init__(f"{layer}: {message}" if layer else message)
        self.layer = layer


class ParametrizationError(HydroError, ValueError):
    """No rule says how a parameter scales, or an optimizer is not in the table."""


class CoordinateCheckError(HydroError, RuntimeError):
    """Activations change by amounts that depend on width: hyperparameters would not transfer."""


class TransferError(HydroError, ValueError):
    """Results cannot be carried over: too few, not comparable, or of hyperparameters that do not transfer."""
