"""The words in shared memory over which a primary's rank, a trial and the bubble agent meet.

One file a stage, in a folder in memory that all three see (`folder`). `layout` is the table of its words, `stage_file`
maps it, `futex` wakes a trial that waits for one. The standard library alone is needed: the agent has no torch, and a
training image has no gRPC.

Each word has one writer, and no reader waits. A word is eight bytes, aligned, so it is never seen half written. A pair
of words is read in the order that `layout` says.
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
