"""How the log of a bundle's member refers to the log of its bundle.

The worker writes these lines, and `headrace logs` reads them:

    headrace: prints into bundle-g1.log from byte 120 on      the member joined
    headrace: the end of what it printed, 34 bytes:           it left; this many bytes of that log follow
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from headrace import log_times

_CHUNK = 65536
_OWN = b"headrace: "
_MARK = re.compile(
    rb"^headrace: (?:prints into (?P<file>bundle-[\w-]+\.log) from byte (?P<start>\d+) on"
    rb"|the end of what it printed, (?P<count>\d+) bytes:)\n",
    re.MULTILINE,
)


def aboard(file: str, start: int) -> str:
    """The line that names the file, next to this one, that the process prints to from now on."""
    return f"headrace: prints into {file} from byte {start} on\n"


def copied(words: str) -> str:
    """The end of the process's output, for the member's own log; empty if it printed nothing."""
    if not words:
        return ""
    return f"headrace: the end of what it printed, {len(words.encode(errors='replace'))} bytes:\n{words}"


class LogReader:
    """A trial's log as it grows, with the output of its bundle while the trial is a member."""

    def __init__(
        self,
        path: Path,
        *,
        start: int = 0,
        since: int | None = None,
        open_file: Callable[[Path], BinaryIO] = lambda path: path.open("rb"),
    ) -> None:
        """Read from byte `start`, only what was written since a time (`log_times.since_ms`; None: everything).

        `open_file` opens the files.
        """
        self._path = path
        self._open = open_file
        self._since = since
        place = self._place(path)
        self._shown_from, self.timed = place or 0, place is not None
        """`timed`: whether the writing times of all that was read are known. Output of unknown age is shown."""
        self.left_out = 0
        """How many bytes were not shown because they are older."""
        self._offset = start
        self._held = b""
        self._bundle: Path | None = None
        self._bundle_offset = 0
        self._bundle_timed = True
        # Whether any of the bundle's log was read. If so, the copy of its end adds nothing.
        self._live = False
        self._to_skip = 0

    def new(self) -> Iterator[bytes]:
        """What was written since the last call. Raises `OSError` if the trial's own log cannot be read."""
        for chunk in self._read(self._path, self._offset):
            self._offset += len(chunk)
            self._held += chunk
            yield from self._own()
        yield from self._of_bundle()

    def rest(self) -> bytes:
        """What was held back because its line was incomplete."""
        return self._pop(len(self._held))

    def _own(self) -> Iterator[bytes]:
        while self._held:
            if self._to_skip:
                skipped = min(self._to_skip, len(self._held))
                self._to_skip -= skipped
                self._held = self._held[skipped:]
                continue
            mark = _MARK.search(self._held)
            end = mark.start() if mark else self._complete()
            if taken := self._pop(end):
                yield taken
            if mark is None:
                return
            self._held = self._held[mark.end() - end :]
            if mark["file"]:
                self._bundle = self._path.with_name(mark["file"].decode())
                start, self._live = int(mark["start"]), False
                place = self._place(self._bundle)
                self._bundle_offset, self._bundle_timed = max(start, place or 0), place is not None
                self.left_out += self._bundle_offset - start
            else:
                yield from self._leave(int(mark["count"]))

    def _place(self, path: Path) -> int | None:
        """The offset from which a file is shown; None if that is not known."""
        return 0 if self._since is None else log_times.place_of(log_times.read(path), self._since)

    def _pop(self, count: int) -> bytes:
        """The next `count` held bytes, without those that are too old."""
        older = min(count, max(0, self._shown_from - (self._offset - len(self._held))))
        taken, self._held = self._held[older:count], self._held[count:]
        self.left_out += older
        return taken

    def _complete(self) -> int:
        """How many held bytes are ready: all except an incomplete line that may become a mark."""
        start = self._held.rfind(b"\n") + 1
        last = self._held[start:]
        return start if last.startswith(_OWN) or _OWN.startswith(last) else len(self._held)

    def _leave(self, copied_bytes: int) -> Iterator[bytes]:
        if self._live:
            yield from self._of_bundle()
            self._to_skip = copied_bytes
        self._bundle = None

    def _of_bundle(self) -> Iterator[bytes]:
        if self._bundle is None:
            return
        try:
            for chunk in self._read(self._bundle, self._bundle_offset):
                self._bundle_offset += len(chunk)
                self.timed &= self._bundle_timed
                yield chunk
        except OSError:  # it no longer exists: the copy is shown
            return
        self._live = True

    def _read(self, path: Path, offset: int) -> Iterator[bytes]:
        with self._open(path) as file:
            file.seek(offset)
            while chunk := file.read(_CHUNK):
                yield chunk
