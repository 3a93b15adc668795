"""What a process says on the connection by which it gets its trials: it may be anything."""

import json
from pathlib import Path

import pytest

from headrace.v1 import worker_pb2
from headrace_worker.trial_line import TrialLine


async def heard(said: bytes) -> object:
    line, process = TrialLine.pair()
    with process:
        process.send(said)
        found = await line.heard()
    line.close()
    return found


@pytest.mark.parametrize(
    "said",
    [
        b"[" * 60_000,
        b"no JSON",
        b"[]",
        b'{"waits": true}',
        b'{"waits": true, "left_behind": "", "kind": "", "expected": [Infinity]}',
        b'{"waits": true, "left_behind": "", "kind": "", "expected": 5}',
    ],
    ids=["deep", "text", "a list", "half", "infinite", "a number"],
)
async def test_what_cannot_be_read_is_no_offer(said: bytes) -> None:
    assert await heard(said) is None


async def test_the_name_of_a_file_that_is_no_text_fits_into_a_message() -> None:
    name = Path(b"\xff.csv".decode(errors="surrogateescape"))
    word = {"waits": False, "left_behind": f"it left {name} open", "kind": "left", "expected": []}
    offer = await heard(json.dumps(word).encode())
    assert worker_pb2.Exited(left_behind=offer.left_behind).left_behind == "it left ?.csv open"  # type: ignore[attr-defined]  # not None
