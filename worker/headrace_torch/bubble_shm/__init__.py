"""The words in shared memory through which a primary's rank, a trial and the bubble agent communicate.

There is one file per stage, in a memory-backed folder that all three see (`folder`). `layout` is the table of its
words, `stage_file` maps it, `futex` wakes a trial that waits for one. Only the standard library is needed: the
agent has no torch, and a training image has no gRPC.

Each word has one writer, and no reader waits. A word is eight bytes and aligned, so it is never seen half written.
A pair of words is read in the order that `layout` gives.
"""

from headrace_torch.bubble_shm.layout import (
    AT,
    BEGINS,
    RINGS,
    SLOTS,
    TABLE,
    VERSION,
    Alarm,
    Awaits,
    StepKind,
    is_control,
)
from headrace_torch.bubble_shm.stage_file import (
    FOLDER_VARIABLE,
    StageFile,
    StageFileError,
    StageHeader,
    file_name,
    folder,
    is_alive,
    make_folder,
    started_ticks,
)

__all__ = [
    "AT",
    "BEGINS",
    "FOLDER_VARIABLE",
    "RINGS",
    "SLOTS",
    "TABLE",
    "VERSION",
    "Alarm",
    "Awaits",
    "StageFile",
    "StageFileError",
    "StageHeader",
    "StepKind",
    "file_name",
    "folder",
    "is_alive",
    "is_control",
    "make_folder",
    "started_ticks",
]
