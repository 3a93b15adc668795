"""Warnings that point at the user's own line, however deep in the client they come up."""

import sys
import warnings

from headrace.client.model import StudyInfo, StudyState
from headrace.client.wording import best_of_other_code
from headrace.first_few import first_few

_OURS = ("headrace.client", "headrace.in_process")


def warn(message: str) -> None:
    """A `UserWarning` of the nearest caller outside the client and `headrace.optimize`."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def warn_of_edits(study: StudyInfo) -> None:
    """Results of different code look like results of one; so it is said. Python shows it once."""
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
    """A loop or a wait that ends because the study failed looks like one that is through; so it is said."""
    if study.state is StudyState.FAILED:
        warn(f"Study {study.name} has failed: {study.detail}")
