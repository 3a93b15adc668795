"""What a trial program uses in place of CUDA: a card that it may share through `mps_double.py`. Its errors have the
words of CUDA's."""

import os
import socket
from pathlib import Path

ASSERTION = "Indexing.cu:1308: block: [0,0,0], thread: [31,0,0] Assertion `index < size` failed."
ASSERTED = "device-side assert triggered"
ILLEGAL = "an illegal memory access was encountered"


class Card:
    """The card in `CUDA_VISIBLE_DEVICES`. Without MPS its calls always succeed."""

    def __init__(self) -> None:
        self.held_bytes = 0
        device, _, limit = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").partition("=")
        own = device in ("0", os.environ["CUDA_VISIBLE_DEVICES"])
        self.limit_bytes = int(limit[:-1]) << 20 if own else None
        pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
        self.lines = None
        if pipe is not None:
            kind, _, said = self._connect(Path(pipe) / "control", "connect").partition(" ")
            if kind != "server":
                raise RuntimeError(f"CUDA error: {said}")
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(said)
            self.lines = self.socket.makefile("r")
            self._say(f"client {os.environ['CUDA_VISIBLE_DEVICES']}")

    def launch(self) -> None:
        """Starts work that is in flight until `sync`."""
        self._say("launch")

    def stick(self) -> None:
        """Starts work that never ends, and that nobody can end."""
        self._say("stick")

    def leave(self) -> None:
        """Its work, even that, ends after all, and it lets go of the card."""
        self._say("relent")
        assert self.lines is not None
        self.lines.close()
        self.socket.close()

    def sync(self) -> None:
        """Waits for the work."""
        self._say("sync")

    def fault(self, text: str) -> None:
        """Commits a fatal fault, and notices it."""
        self._say(f"fault {text}")
        self.sync()

    def allocate(self, size_bytes: int) -> None:
        """Takes memory."""
        self.held_bytes += size_bytes
        if self.limit_bytes is not None and self.held_bytes > self.limit_bytes:
            raise RuntimeError(f"CUDA out of memory. Tried to allocate {size_bytes >> 20} MiB.")

    def _say(self, line: str) -> None:
        if self.lines is None:
            return
        try:
            self.socket.sendall(f"{line}\n".encode())
            said = self.lines.readline().strip()
        except OSError:
            said = ""
        if said != "ok":
            gone = "the remote procedural call between the MPS server and the MPS client failed"
            raise RuntimeError(f"CUDA error: {said or gone}")

    def _connect(self, path: Path, line: str) -> str:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                connection.sendall(f"{line}\n".encode())
                return connection.makefile().read()
        except OSError:
            return "error MPS client failed to connect to the MPS control daemon or the MPS server"
