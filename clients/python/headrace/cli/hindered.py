"""What the workers of running trials report about themselves: a full disk, an unavailable store, a program being
prepared.

Such a trial waits without saying so itself, so its users are told.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from headrace.client import Client
from headrace.client.machines import Worker
from headrace.client.names import study_name, trial_name
from headrace.errors import HeadraceError

POLL_S: Final = 10.0
_OF_TRIAL = re.compile(r"(studies/[^/\s]+)/trials/\d+: ")
"""The start of a text that is about one trial only."""


def said_of(workers: Sequence[Worker], study: str, number: int | None = None) -> list[str]:
    """What the workers that hold a study's trials, or one of its trials, report: one line per worker.

    What a worker reports about other trials is left out.
    """
    lines = []
    for worker in workers:
        held = {one.trial for slot in worker.slots for one in slot.holders if one.trial.study == study}
        if not worker.connected or not (held if number is None else number in {one.number for one in held}):
            continue
        texts = [text for text in worker.trouble.split("; ") if _concerns(text, study, number)]
        if number is not None:
            texts = [_OF_TRIAL.sub("", text, count=1) for text in texts]
        if texts:
            lines.append(f"worker {worker.name}: {'; '.join(texts)}")
    return lines


def _concerns(text: str, study: str, number: int | None) -> bool:
    found = _OF_TRIAL.match(text)
    if found is None or number is None:
        return bool(text) and (found is None or found[1] == study_name(study))
    return text.startswith(f"{trial_name(study, number)}: ")


@contextmanager
def watched(client: Client, study: str, tell: Callable[[Sequence[str]], None]) -> Iterator[None]:
    """In this context, another thread calls `tell` with what the study's workers report, whenever that changes."""
    over = threading.Event()

    def look() -> None:
        told: list[str] = []
        while not over.wait(POLL_S):
            with suppress(HeadraceError):  # a real problem also fails in the watch, which reports it
                said = said_of(client.workers(), study)
                if said != told and not over.is_set():
                    told = said
                    tell(said)

    thread = threading.Thread(target=look, name="headrace-workers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
