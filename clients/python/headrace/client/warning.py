"""Warnings that point at the user's own line, however deep in the client they come up."""

import sys
import warnings

from headrace.client.model import StudyInfo, StudyState


def warn(message: str) -> None:
    """A `UserWarning` of the nearest caller outside `headrace.client`."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("headrace.client"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def warn_of_failure(study: StudyInfo) -> None:
    """A loop or a wait that ends because the study failed looks like one that is through; so it is said."""
    if study.state is StudyState.FAILED:
        warn(f"Study {study.name} has failed: {study.detail}")
