"""What is not a readable file is refused with its kind, its line and a reason, and is read only up to a bound."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from user_files import ANY_FILE

from headrace.userfile import MIB, UserFile, UserFileError

FILE = UserFile(largest_bytes=MIB, remedy="Give the path of a file.")


def refused(read: Callable[[Path], Any], path: Path, says: str) -> None:
    with pytest.raises(UserFileError, match=f"^{path}.* {says}|^{path}, {says}") as error:
        read(path)
    assert error.value.violations[0].remedy


@pytest.mark.parametrize("kind", ANY_FILE)
def test_a_file_that_is_none_is_refused(kind: str, tmp_path: Path) -> None:
    if kind == "no rights" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    make, says = ANY_FILE[kind]
    make(tmp_path / "file")
    refused(FILE.text, tmp_path / "file", says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "is not sound JSON: it is nested too deeply"),
        ('{"devices": %s}' % ("9" * 5000), "is not sound JSON: it has a number of 5000 digits"),
        ('{"devices": 1, "devices": 2}', "is not sound JSON: the key 'devices' stands twice"),
        ('{"devices": NaN}', "is not sound JSON: it has NaN, which JSON does not know"),
        ('{\n"devices": 1', "line 2: is not JSON"),
    ],
)
def test_json_is_the_standards_or_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    refused(FILE.json, tmp_path / "file", says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a\n\xff\n", "line 2: is not a UTF-8 text: it has the byte 0xff"),
        (b"a\n\x00\n", r"line 2: has the control character U\+0000"),
        (b"a\n\x1b[2J\n", r"line 2: has the control character U\+001B"),
        (b"a\n" * (MIB // 2) + b"a\n", "line 524289: is larger than 1 MiB"),
        (b"a" * (MIB + 1), "line 1: is longer than 1 MiB"),
    ],
)
def test_a_line_that_is_none_is_refused_by_its_number(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as stream:
        refused(lambda path: list(FILE.lines(path, stream)), tmp_path / "file", says)
