"""Warnings that point to the user's own line, no matter how deep in the client they occur."""

import sys
import warnings

from headrace.client.model import StudyInfo, StudyState
from headrace.client.wording import best_of_other_code
from headrace.first_few import first_few

_OURS = ("headrace.client", "headrace.in_process")


def warn(message: str) -> None:
    """Issue a `UserWarning` at the nearest caller outside the client and `headrace.optimize`."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def warn_of_edits(study: StudyInfo) -> None:
    """Warn that results come from different code, as they look alike. Python shows it once."""
    if not study.code_changed:
        return
    said = best_of_other_code(study)
    best = f" {said[0].upper()}{said[1:]}." if said else ""
    warn(
        f"Trials of study {study.name} ran different code: {first_few(study.code_changed)} changed since the study "
        f"began, so their values may not compare. `trial.code_changed` marks those that ran other code than the "
        f"first.{best}"
    )


def warn_of_failure(study: StudyInfo) -> None:
    """Warn that the study failed, as a loop or a wait that ends for this reason looks like one that has
    finished.
    """
    if study.state is StudyState.FAILED:
        warn(f"Study {study.name} has failed: {study.detail}")
