"""Notes next to a result about what the scheduler leaves out of an answer."""

from typing import Any

from headrace.cli.output import Output
from headrace.client.model import Listing, StudyInfo, TrialInfo
from headrace.client.wording import left_out


def note_unshown(output: Output, *answers: Listing[Any] | StudyInfo | TrialInfo) -> None:
    """Prints what the answers leave out, and why."""
    for answer in answers:
        for line in left_out(answer):
            output.note(line)
