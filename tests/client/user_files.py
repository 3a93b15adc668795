"""Hostile files."""

import os
import socket
from collections.abc import Callable
from pathlib import Path


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        before = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        listening.bind(path.name)
        os.chdir(before)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def gigabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse: it takes no disk space


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def raw(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def unreadable(path: Path) -> None:
    path.write_text("a: 1\n")
    path.chmod(0)


ANY_FILE = {
    "folder": (Path.mkdir, "is a folder"),
    "pipe": (os.mkfifo, "is a pipe, not a file"),
    "socket": (unix_socket, "is a socket or a device, not a file"),
    "device without end": (link_to("/dev/zero"), "is a device, not a file"),
    "terminal": (link_to("/dev/tty"), "is a (socket or a )?device, not a file"),
    "link to nothing": (link_to("/no/such/file"), "No such file or directory"),
    "links in a circle": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "1 GB": (gigabyte, "is larger than"),
    "not UTF-8": (raw(b"a: 1\nb: \xff\xfe\n"), "line 2: .*is not a UTF-8 text: it has the byte 0xff"),
    "NUL": (raw(b"a: 1\nb: x\x00y\n"), r"line 2: .*has the control character U\+0000"),
    "escape sequence": (raw(b"a: \x1b[2J\n"), r"line 1: .*has the control character U\+001B"),
    "no rights": (unreadable, "Permission denied"),
}
