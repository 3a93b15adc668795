"""A folder becomes a digest and an archive: identical for identical files, and without what is ignored."""

import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from code_folders import archived, folder_with
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.code import folder as folders
from headrace.code import manifest, read_folder, revision_of, unpack, verify, write_archive
from headrace.code.folder import FolderChangedError, FolderError
from headrace.code.sizes import largest, size
from headrace.errors import InvalidFieldError

PROJECT = {
    "train.py": "print(1)\n",
    "lib/model.py": "x = 1\n",
    "lib/deep/": "",
    "run.sh": "#!/bin/sh\n",
    "ünï cödé/n" + "x" * 180 + ".txt": "long names\n",
}


def paths(root: Path) -> list[str]:
    return [entry.path for entry in read_folder(root).manifest.entries]


def test_two_copies_of_a_folder_have_one_digest_and_one_archive(tmp_path: Path) -> None:
    one = folder_with(tmp_path / "one", PROJECT)
    (one / "run.sh").chmod(0o755)
    (one / "latest").symlink_to("lib/model.py")
    (one / "absolute").symlink_to(one / "lib")
    two = tmp_path / "two"
    shutil.copytree(one, two, symlinks=True)
    (two / "absolute").unlink()
    (two / "absolute").symlink_to(two / "lib")
    (two / "run.sh").chmod(0o700)  # everybody may run it
    os.utime(two / "train.py", (1, 1))
    (first, archive), (second, again) = archived(one), archived(two)
    assert first.manifest == second.manifest
    assert archive == again
    (two / "run.sh").chmod(0o644)
    assert read_folder(two).manifest.digest != first.manifest.digest


def test_what_is_unpacked_is_what_was_read(tmp_path: Path) -> None:
    root = folder_with(tmp_path / "project", PROJECT)
    (root / "run.sh").chmod(0o755)
    (root / "lib" / "up").symlink_to("../train.py")
    folder, archive = archived(root)
    unpack(io.BytesIO(archive), folder.manifest.digest, tmp_path / "there")
    assert read_folder(tmp_path / "there").manifest == folder.manifest
    assert os.access(tmp_path / "there" / "run.sh", os.X_OK)
    assert (tmp_path / "there" / "lib" / "deep").is_dir()
    assert (tmp_path / "there" / "lib" / "up").readlink() == Path("../train.py")


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.text("abc/. é", min_size=1, max_size=12).filter(
            lambda path: all(part not in ("", ".", "..") for part in path.split("/"))
        ),
        st.binary(max_size=300),
        max_size=8,
    )
)
def test_any_folder_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    root = tmp_path_factory.mktemp("any")
    for path, data in files.items():
        place = root / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        except OSError:  # a file is in its way
            continue
    (root / "one").write_text("")
    folder, archive = archived(root)
    assert verify(io.BytesIO(archive), folder.manifest.digest) == folder.manifest
    there = root.with_name(f"{root.name}-there")
    unpack(io.BytesIO(archive), folder.manifest.digest, there)
    assert read_folder(there).manifest.digest == folder.manifest.digest


def test_caches_environments_and_repositories_stay_here(tmp_path: Path) -> None:
    root = folder_with(
        tmp_path,
        {
            "train.py": "",
            ".git/config": "",
            "__pycache__/x.cpython-311.pyc": "",
            "old.pyc": "",
            "node_modules/a/index.js": "",
            "env/pyvenv.cfg": "",
            "env/bin/python": "",
            "conda/conda-meta/history": "",
            ".mypy_cache/x": "",
        },
    )
    found = read_folder(root)
    assert [entry.path for entry in found.manifest.entries] == ["train.py"]
    assert {"env/", ".git/", "node_modules/", "conda/"} <= set(found.left_out)


def test_gitignore_counts_as_for_git(tmp_path: Path) -> None:
    repository = folder_with(
        tmp_path,
        {
            ".git/HEAD": "",
            ".gitignore": "*.ckpt\n/project/runs/\n",
            "project/.gitignore": "data/*\n!data/small.csv\n",
            "project/train.py": "",
            "project/a.ckpt": "",
            "project/runs/1.txt": "",
            "project/data/small.csv": "",
            "project/data/large.csv": "",
            "project/lib/.gitignore": "!kept.ckpt\n",
            "project/lib/kept.ckpt": "",
            "project/lib/other.ckpt": "",
        },
    )
    assert paths(repository / "project") == [
        ".gitignore",
        "data/small.csv",
        "lib/.gitignore",
        "lib/kept.ckpt",
        "train.py",
    ]


def test_headraceignore_stands_in_the_place_of_gitignore(tmp_path: Path) -> None:
    root = folder_with(
        tmp_path,
        {
            ".headraceignore": "notes/\n",
            ".gitignore": "*.csv\n",
            "data.csv": "",
            "notes/a": "",
            "train.py": "",
        },
    )
    assert paths(root) == [".gitignore", ".headraceignore", "data.csv", "train.py"]


def test_what_trackers_write_is_left_out_unless_a_pattern_keeps_it(tmp_path: Path) -> None:
    written = {
        "runs/first/events.out.tfevents.1.host": "",
        "lightning_logs/version_0/hparams.yaml": "",
        "wandb/run-1/files/config.yaml": "",
        "mlruns/0/meta.yaml": "",
        "outputs/2026-11-28/10-00-00/.hydra/config.yaml": "",
        "multirun/2026-11-28/10-00-00/multirun.yaml": "",
    }
    root = folder_with(tmp_path, {"train.py": "", "sub/runs/__init__.py": "", **written})
    found = read_folder(root)
    assert paths(root) == ["sub/runs/__init__.py", "train.py"], "a package that is only called so is shipped"
    assert set(found.left_out) == {f"{path.partition('/')[0]}/" for path in written}
    folder_with(tmp_path, {".headraceignore": "!/runs/\n"})
    assert "runs/first/events.out.tfevents.1.host" in paths(root)


def test_a_study_in_an_ignored_folder_ships_what_is_in_it(tmp_path: Path) -> None:
    folder_with(tmp_path, {".git/HEAD": "", ".gitignore": "runs/\n", "runs/mine/train.py": ""})
    assert paths(tmp_path / "runs" / "mine") == ["train.py"]


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("/etc/hostname", "link link leads out of the folder, to /etc/hostname"),
        ("../outside", "leads out of the folder"),
        ("nowhere", "leads nowhere"),
        ("left.log", "leads to what is left out"),
        (".", "leads to what is left out"),
    ],
)
def test_a_link_that_would_not_lead_there_is_refused(tmp_path: Path, to: str, says: str) -> None:
    root = folder_with(tmp_path / "p", {"train.py": "", "left.log": "", ".headraceignore": "*.log\n"})
    (tmp_path / "outside").write_text("secret")
    (root / "link").symlink_to(to)
    with pytest.raises(FolderError) as refused:
        read_folder(root)
    assert says in str(refused.value)
    assert ".headraceignore" in str(refused.value)
    (root / ".headraceignore").write_text("*.log\nlink\n")
    assert "link" not in paths(root)


def test_a_pipe_is_refused_and_not_read(tmp_path: Path) -> None:
    os.mkfifo(folder_with(tmp_path, {"train.py": ""}) / "pipe")
    with pytest.raises(FolderError, match="pipe is neither a file nor a folder"):
        read_folder(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="has nothing to ship"):
        read_folder(tmp_path)


def test_more_than_100_mib_are_refused_with_the_ten_largest(tmp_path: Path) -> None:
    root = folder_with(tmp_path, {"train.py": "", "small/a.txt": "x"})
    for number in range(12):
        folder = root / f"data{number:02}"
        folder.mkdir()
        with (folder / "weights.bin").open("wb") as file:
            file.truncate((number + 4) << 20)  # no byte of it is on the disk
    with pytest.raises(FolderError) as refused:
        read_folder(root)
    text = str(refused.value)
    assert "has 114.0 MiB in 14 files, and at most 100.0 MiB" in text
    listed = [line.strip() for line in text.splitlines() if "weights.bin" in line]
    assert listed == [f"{number + 4}.0 MiB  data{number:02}/weights.bin" for number in range(11, 1, -1)]
    assert "code: folder" in text


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MOST_ENTRIES", 20)
    for number in range(21):
        (tmp_path / f"{number}.txt").write_text("x")
    with pytest.raises(FolderError, match="21 B in 21 files"):
        read_folder(tmp_path)


def test_the_largest_entries_are_named_as_deep_as_they_tell() -> None:
    files = {
        "a/b/one.bin": 900,
        "a/b/two.txt": 5,
        "images/1": 40,
        "images/2": 40,
        "images/3": 40,
        "train.py": 8,
    }
    assert largest(files, 3) == [("a/b/one.bin", 900), ("images/", 120), ("train.py", 8)]
    assert [size(n) for n in (0, 1023, 1 << 20, 3 << 30)] == ["0 B", "1023 B", "1.0 MiB", "3.0 GiB"]


def test_a_file_that_changes_behind_its_hash_is_noticed(tmp_path: Path) -> None:
    root = folder_with(tmp_path, {"train.py": "x = 1\n", "b.txt": "same"})
    folder = read_folder(root)
    for text in ("x = 2\n", "x = 1\nmore", "x"):
        (root / "train.py").write_text(text)
        with pytest.raises(FolderChangedError, match=r"train\.py changes while it is read"):
            write_archive(folder, io.BytesIO())
    (root / "train.py").unlink()
    with pytest.raises(FolderChangedError):
        write_archive(folder, io.BytesIO())


def test_a_file_that_grows_while_it_is_read_is_refused_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = folder_with(tmp_path, {"train.log": "0" * 5000}) / "train.log"
    look = os.fstat
    writes = 1

    def looked(descriptor: int) -> os.stat_result:
        nonlocal writes
        found = look(descriptor)
        if writes:
            writes -= 1
            with log.open("a") as file:
                file.write("!")  # between reading its size and its end
        return found

    monkeypatch.setattr(folders.os, "fstat", looked)
    entry = read_folder(tmp_path).manifest.entries[0]
    assert entry.size_bytes == log.stat().st_size == 5001, "read again, since it had grown"
    writes = 1000
    with pytest.raises(FolderChangedError, match="Wait until nothing writes to it"):
        read_folder(tmp_path)


def test_the_commit_and_whether_the_folder_differs(tmp_path: Path) -> None:
    root = folder_with(tmp_path / "project", {"train.py": "x = 1\n"})
    assert revision_of(root) is None
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    for args in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *args], check=True)
    head = subprocess.run(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], capture_output=True, text=True)
    found = revision_of(root)
    assert found is not None
    assert (found.commit, found.dirty) == (head.stdout.strip(), False)
    (tmp_path / "elsewhere.txt").write_text("not of this folder")
    assert not revision_of(root).dirty
    (root / "new.py").write_text("")
    assert revision_of(root).dirty


def test_patterns_that_cannot_be_read_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    folder_with(tmp_path, {"train.py": ""})
    (tmp_path / ".headraceignore").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidFieldError, match="headraceignore"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("bound", "most", "says"),
    [
        ("MOST_DEPTH", 2, "the name 'lib/deep/a.py' has 3 names, and 2 are the most"),
        ("MOST_FOLDERS", 1, "has 2 folders, and 1 are the most"),
        ("PATHS_BYTES", 20, "has paths of 21 bytes together, and 20 are the most"),
    ],
)
def test_a_folder_that_workers_would_refuse_is_refused_before_it_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int, says: str
) -> None:
    root = folder_with(tmp_path / "p", {"train.py": "1", "lib/deep/a.py": "2"})
    read_folder(root)
    monkeypatch.setattr(manifest, bound, most)
    with pytest.raises(FolderError) as refused:
        read_folder(root)
    assert says in str(refused.value)
    assert refused.value.violations[0].remedy
