"""What the workers of running trials say of themselves: a full disk, a store that is away, a program being prepared.

Such a trial waits without a word of its own, so whoever looks at it is told.
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
"""How a text begins that is of one trial alone."""


def said_of(workers: Sequence[Worker], study: str, number: int | None = None) -> list[str]:
    """What the workers that hold a study's trials say, or those that hold one trial, a line each.

    What a worker says of other trials alone is left out.
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
    """While inside, `tell` is called by another thread with what the study's workers say, whenever that changes."""
    over = threading.Event()

    def look() -> None:
        told: list[str] = []
        while not over.wait(POLL_S):
            with suppress(HeadraceError):  # what matters fails in the watch too, and is told there
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
