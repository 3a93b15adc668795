"""Which code a program runs that uses ask/tell: the source files in its script's folder.

A study may outlive its client: the script is edited, started again, and continues to ask. So the reports of each
lease say which files the program had executed by then, since it imported the client. A notebook has no files to
compare, and Headrace's own programs do not ask for trials.
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
    """Records from now on which files of its script's folder this program executes; None if it has no script of
    its own.
    """
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if not isinstance(script, str) or sources.is_own(getattr(getattr(main, "__spec__", None), "name", "")):
        return None
    folder = Path(script).absolute().parent
    return None if set(_INSTALLED) & set(folder.parts) else sources.watch(str(folder))


def untold(lease_id: str) -> event_pb2.AttemptCode | None:
    """The code of this lease that the scheduler has not received yet; None if there is none."""
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
    """Record that the scheduler has received this code. If threads share a lease, that may happen twice."""
    if code is None:
        return
    last = code.files[-1]
    with sources.lock:
        upto = _files.index(sources.SourceFile(last.path, last.digest)) + 1
        _told[lease_id] = max(upto, _told.pop(lease_id, 0))
        if len(_told) > _LEASES:
            _told.popitem(last=False)


watch()
