"""Forged archives: whatever they contain, none of it ends up in the folder, or outside of it."""

import hashlib
import io
import os
import tarfile
import threading
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from code_folders import archived, folder_with, forged, member, row

from headrace.code import CodeCorruptError, unpack, verify
from headrace.code.archive import read_member
from headrace.code.manifest import (
    MOST_BYTES,
    MOST_DEPTH,
    MOST_ENTRIES,
    MOST_FOLDERS,
    count_folders,
    parse_manifest,
)

DATA = b"x = 1\n"


def below(depth: int, count: int) -> list[dict[str, Any]]:
    """Rows of files at this depth, each in folders of its own."""
    return [row("/".join([f"{n:05}", *"a" * (depth - 1)])) for n in range(count)]


HOSTILE: dict[str, tuple[list[dict[str, Any]], list[tuple[tarfile.TarInfo, bytes]]]] = {
    "parent": ([row("../out.py", DATA)], [member("../out.py", DATA)]),
    "parent within": ([row("a/../../out.py", DATA)], [member("a/../../out.py", DATA)]),
    "absolute": ([row("/tmp/headrace-out.py", DATA)], [member("/tmp/headrace-out.py", DATA)]),
    "dot": ([row("./a.py", DATA)], [member("./a.py", DATA)]),
    "NUL": ([row("a\0b", DATA)], [member("a", DATA)]),
    "line end": ([row("a\nb", DATA)], [member("a\nb", DATA)]),
    "long name": ([row("n" * 300, DATA)], [member("n" * 300, DATA)]),
    "link out": ([{"path": "l", "to": "../out"}], [member("l", type=tarfile.SYMTYPE, linkname="../out")]),
    "absolute link": ([{"path": "l", "to": "/etc"}], [member("l", type=tarfile.SYMTYPE, linkname="/etc")]),
    "dangling link": ([{"path": "l", "to": "no"}], [member("l", type=tarfile.SYMTYPE, linkname="no")]),
    "link to a link": (
        [row("a", DATA), {"path": "l", "to": "a"}, {"path": "m", "to": "l"}],
        [member("a", DATA), member("l", type=tarfile.SYMTYPE, linkname="a"),
         member("m", type=tarfile.SYMTYPE, linkname="l")],
    ),
    "file through a link": (
        [row("d/a", DATA), {"path": "l", "to": "d"}, row("l/b", DATA)],
        [member("d/a", DATA), member("l", type=tarfile.SYMTYPE, linkname="d"), member("l/b", DATA)],
    ),
    "link that the tar has otherwise": (
        [row("a", DATA), {"path": "l", "to": "a"}],
        [member("a", DATA), member("l", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
    ),
    "hard link": ([row("a", DATA), row("b")], [member("a", DATA), member("b", type=tarfile.LNKTYPE, linkname="a")]),
    "device": ([row("a")], [member("a", type=tarfile.CHRTYPE, devmajor=1, devminor=3)]),
    "block device": ([row("a")], [member("a", type=tarfile.BLKTYPE)]),
    "pipe": ([row("a")], [member("a", type=tarfile.FIFOTYPE)]),
    "folder for a file": ([row("a")], [member("a", type=tarfile.DIRTYPE)]),
    "twice in the manifest": ([row("a", DATA), row("a", DATA)], [member("a", DATA), member("a", DATA)]),
    "twice in the tar": ([row("a", DATA)], [member("a", DATA), member("a", b"y = 2\n")]),
    "unsorted": ([row("b", DATA), row("a", DATA)], [member("b", DATA), member("a", DATA)]),
    "a file that is a folder too": ([row("a", DATA), row("a/b", DATA)], [member("a", DATA), member("a/b", DATA)]),
    "other content": ([row("a", DATA)], [member("a", b"y = 2\n")]),
    "other size": ([row("a", DATA)], [member("a", DATA + b"more")]),
    "missing": ([row("a", DATA), row("b", DATA)], [member("a", DATA)]),
    "another name": ([row("a", DATA)], [member("b", DATA)]),
    "declares too much": ([row("a", DATA, size=MOST_BYTES + 1)], [member("a", DATA)]),
    "negative size": ([row("a", DATA, size=-1)], [member("a", DATA)]),
    "no size": ([{"path": "a", "sha256": "0" * 64}], [member("a", DATA)]),
    "size in words": ([row("a", DATA, size="6")], [member("a", DATA)]),
    "no hash": ([row("a", DATA, sha256="x")], [member("a", DATA)]),
    "too many entries": ([row(f"{n:05}") for n in range(MOST_ENTRIES + 1)], []),
    "no characters": ([{"path": "\ud800", "to": "\udfff"}], []),
    "a link to all of it": ([{"path": "l", "to": "."}], [member("l", type=tarfile.SYMTYPE, linkname=".")]),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    digest, archive = forged(*HOSTILE[name])
    place = tmp_path / "in" / "there"
    with pytest.raises(CodeCorruptError):
        unpack(io.BytesIO(archive), digest, place)
    with pytest.raises(CodeCorruptError):
        verify(io.BytesIO(archive), digest)
    assert [*tmp_path.rglob("*")] == [tmp_path / "in"]
    assert not Path("/tmp/headrace-out.py").exists()


def test_another_digest_is_refused(tmp_path: Path) -> None:
    _, archive = archived(folder_with(tmp_path / "p", {"a.py": "1"}))
    with pytest.raises(CodeCorruptError, match="is asked for"):
        verify(io.BytesIO(archive), "0" * 64)


@pytest.mark.parametrize("garbage", [b"", b"no archive", b"\0" * 20_000, os.urandom(20_000)])
def test_what_is_no_archive_is_refused(tmp_path: Path, garbage: bytes) -> None:
    with pytest.raises(CodeCorruptError):
        unpack(io.BytesIO(garbage), "0" * 64, tmp_path / "there")


def test_every_byte_counts(tmp_path: Path) -> None:
    """A changed byte is detected, or it is in a place that nothing reads and the unpacked result is the same."""
    root = folder_with(tmp_path / "p", {"train.py": "print(1)\n", "lib/a.txt": "text"})
    folder, archive = archived(root)
    digest = folder.manifest.digest
    for at in range(0, len(archive), 97):
        changed = bytearray(archive)
        changed[at] ^= 0x41
        try:
            assert verify(io.BytesIO(bytes(changed)), digest) == folder.manifest
        except CodeCorruptError:
            continue


def test_an_archive_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    folder, archive = archived(folder_with(tmp_path / "p", {"train.py": "x" * 3000, "z.py": "y" * 3000}))
    for cut in range(0, archive.rindex(b"y"), 512):
        with pytest.raises(CodeCorruptError):
            unpack(io.BytesIO(archive[:cut]), folder.manifest.digest, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_sparse_members_are_refused() -> None:
    """A sparse member's declared size is not its real one: the tar form of a zip bomb."""
    info, data = member("a", DATA)
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    digest, archive = forged([row("a", DATA)], [(info, data)])
    with pytest.raises(CodeCorruptError):
        verify(io.BytesIO(archive), digest)


def test_two_that_unpack_to_one_place_at_once_both_find_it_whole(tmp_path: Path) -> None:
    files = {f"lib/{number}.py": f"x = {number}\n" for number in range(200)}
    folder, archive = archived(folder_with(tmp_path / "p", files))
    together = threading.Barrier(4)
    failures: list[Exception] = []

    def one() -> None:
        together.wait()
        try:
            unpack(io.BytesIO(archive), folder.manifest.digest, tmp_path / "there" / "code")
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["code"], "the others left nothing"
    for path, text in files.items():
        assert (tmp_path / "there" / "code" / path).read_text() == text


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (below(MOST_DEPTH + 1, 1), "has 65 names, and 64 are the most"),
        (below(61, MOST_FOLDERS // 60 + 1), "has 10020 folders, and 10000 are the most"),
        ([row(f"{n:05}{'n' * 245}") for n in range(MOST_ENTRIES)], "has paths of 2500000 bytes together"),
        ([row("n" * 5_000_000)], "entry 1 has more than 8192 characters"),
    ],
    ids=["depth", "folders", "paths together", "one path"],
)
def test_what_a_manifest_may_ask_for_is_bounded(rows: list[dict[str, Any]], says: str) -> None:
    digest, archive = forged(rows, [member(row["path"]) for row in rows])
    with pytest.raises(CodeCorruptError, match=says):
        verify(io.BytesIO(archive), digest)


def test_a_manifest_that_is_nested_deeply_is_refused() -> None:
    manifest = b'{\n"entries": [\n{"path": ' + b"[" * 4000 + b"]" * 4000 + b'}\n],\n"version": 1\n}\n'
    with pytest.raises(CodeCorruptError, match="cannot be read"):
        parse_manifest(manifest, hashlib.sha256(manifest).hexdigest())


def headers(*, kind: bytes, size: int, times: int) -> bytes:
    """Empty headers before a member: each contains what it declares."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, size
    return (info.tobuf() + bytes(size)) * times


@pytest.mark.parametrize(
    ("kind", "size", "times"),
    [(tarfile.GNUTYPE_LONGNAME, 0, 5000), (tarfile.XHDTYPE, 0, 5000), (tarfile.XHDTYPE, 64 << 20, 1)],
    ids=["long names", "extended headers", "a long one"],
)
@pytest.mark.parametrize("before_manifest", [True, False])
def test_headers_that_recurse_or_fill_the_memory_are_refused_before_they_are_read(
    tmp_path: Path, kind: bytes, size: int, times: int, before_manifest: bool
) -> None:
    digest, archive = forged([row("a", DATA)], [member("a", DATA)])
    at = 0 if before_manifest else archive.index(b"a\0", 512)
    file = io.BytesIO(archive[:at] + headers(kind=kind, size=size, times=times) + archive[at:])
    for read in (
        lambda: verify(file, digest),
        lambda: unpack(file, digest, tmp_path / "there"),
        lambda: read_member(file, digest, "a"),
    ):
        file.seek(0)
        with pytest.raises(CodeCorruptError, match="headers"):
            read()
        assert file.tell() < 100_000
    assert [*tmp_path.iterdir()] == []


def test_folders_are_counted_as_they_would_be_made() -> None:
    for paths in (
        ["a"],
        ["a-b/c/d", "a/b", "a/b-c/d", "a/c/d", "ab/c"],
        ["a/b/c/d", "a/b2/c/d", "a/b2/c/e", "b"],
    ):
        made = {str(above) for path in paths for above in PurePosixPath(path).parents} - {"."}
        assert paths == sorted(paths)
        assert count_folders(paths) == len(made), paths
