"""W&B's run files: whether one is complete.

The format is LevelDB's log: blocks of 32 KiB, after a header of 7 bytes. Each chunk has a header of 7 bytes with its
length and its kind: whole, or the first, a middle or the last part of a record.
"""

import struct
import time
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
    while not any(map(_has_exit, folder.glob("run-*.wandb"))):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)  # another process writes the file, and says nothing about it
    return True


def _has_exit(file: Path) -> bool:
    data = file.read_bytes()
    place, record = HEADER_BYTES, b""
    while place + HEADER_BYTES <= len(data):
        if (room := BLOCK_BYTES - place % BLOCK_BYTES) < HEADER_BYTES:
            place += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        place += HEADER_BYTES + length
        record += data[place - length : place]
        if kind in (WHOLE, LAST):
            found = Record.FromString(record) if place <= len(data) else Record()
            if found.WhichOneof("record_type") == "exit":
                return True
            record = b""
    return False
