"""What code a program that asks and tells runs: the source files of its script's folder.

A study may outlive its client: the script is edited, started again, and asks on. So each lease says with its reports
what the program had executed by then, since it imported the client. A notebook has no files to compare, and Headrace's
own programs ask for nothing.
"""

import sys
from collections import OrderedDict
from pathlib import Path

from headrace import sources
from headrace.v1 import event_pb2

_LEASES = 1024
_INSTALLED = ("site-packages", "dist-packages", "bin")
_files: list[sources.SourceFile] = []
_told: OrderedDict[str, int] = OrderedDict()


def watch() -> sources.Sources | None:
    """Notes from now on what this program executes of its script's folder; None where it has none of its own."""
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if not isinstance(script, str) or sources.is_own(getattr(getattr(main, "__spec__", None), "name", "")):
        return None
    folder = Path(script).absolute().parent
    return None if set(_INSTALLED) & set(folder.parts) else sources.watch(str(folder))


def untold(lease_id: str) -> event_pb2.AttemptCode | None:
    """What the scheduler was not told of this lease; None where that is nothing."""
    if (watched := watch()) is None:
        return None
    with sources.lock:
        _files.extend(watched.new_files())
        new = _files[_told.get(lease_id, 0) :]
        if not new:
            return None
        digest = sources.digest_of(_files)
    return event_pb2.AttemptCode(
        files=[event_pb2.SourceFile(path=file.path, digest=file.digest) for file in new], digest=digest
    )


def told(lease_id: str, code: event_pb2.AttemptCode | None) -> None:
    """The scheduler has taken this; of a lease that threads share, perhaps the same twice."""
    if code is None:
        return
    last = code.files[-1]
    with sources.lock:
        upto = _files.index(sources.SourceFile(last.path, last.digest)) + 1
        _told[lease_id] = max(upto, _told.pop(lease_id, 0))
        if len(_told) > _LEASES:
            _told.popitem(last=False)


watch()
