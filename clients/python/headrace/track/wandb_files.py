"""W&B's run files: whether one is complete.

The format is LevelDB's log: blocks of 32 KiB, after a header of 7 bytes. Each chunk has a header of 7 bytes with its
length and its kind: whole, or the first, a middle or the last part of a record.
"""

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wandb.proto.wandb_internal_pb2 import Record

BLOCK_BYTES: Final = 32_768
HEADER_BYTES: Final = 7
WHOLE, LAST = 1, 4
POLL_S: Final = 0.01
LIMIT_S: Final = 30.0


def completed(folder: Path) -> bool:
    """Waits until a finished run's file has its exit record: W&B's process writes the last records after `finish` has
    returned. False if that does not happen.
    """
    deadline = time.monotonic() + LIMIT_S
    for record in _records(folder):
        if record is not None and record.WhichOneof("record_type") == "exit":
            return True
        if record is None:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)  # another process writes the file, and says nothing about it
    return False


def _records(folder: Path) -> Iterator[Record | None]:
    """The records of the run's file, and None whenever the next one is not there yet. Never ends."""
    while (path := next(folder.glob("run-*.wandb"), None)) is None:
        yield None
    with path.open("rb") as file:
        place, record = HEADER_BYTES, b""
        while True:
            if (room := BLOCK_BYTES - place % BLOCK_BYTES) < HEADER_BYTES:
                place += room
            file.seek(place)
            header = file.read(HEADER_BYTES)
            _, length, kind = struct.unpack("<IHB", header.ljust(HEADER_BYTES, b"\0"))
            chunk = file.read(length)
            if len(header) < HEADER_BYTES or len(chunk) < length:
                yield None
                continue
            place += HEADER_BYTES + length
            record += chunk
            if kind in (WHOLE, LAST):
                yield Record.FromString(record)
                record = b""
