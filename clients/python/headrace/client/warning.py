"""Warnings that point at the user's own line, however deep in the client they come up."""

import sys
import warnings


def warn(message: str) -> None:
    """A `UserWarning` of the nearest caller outside `headrace.client`."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("headrace.client"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
