"""What a rename puts in place survives a power cut: content is flushed before the rename, and the name after it."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoints import CheckpointMeta
from headrace.checkpoints.directory import DirectoryStore
from headrace.trial import checkpoint
from headrace_services.identity import authority
from headrace_worker import credential, home
from headrace_worker.rejected import RejectedMessages


class Disk:
    """Records what is renamed and flushed. Names that start with a dot are not published yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.published: list[str] = []
        self.lost: list[str] = []
        """Files and folders that were not flushed before they got their names."""
        self.nameless: dict[int, str] = {}
        """The last name given in a folder, until the folder is flushed."""
        self._flushed: set[int] = set()
        monkeypatch.setattr(os, "fsync", self._noting(os.fsync))
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._renaming(getattr(os, name)))

    def _noting(self, fsync: Callable[[int], None]) -> Callable[[int], None]:
        def noting(descriptor: int) -> None:
            fsync(descriptor)
            inode = os.fstat(descriptor).st_ino
            self._flushed.add(inode)
            self.nameless.pop(inode, None)

        return noting

    def _renaming(self, rename: Callable[..., None]) -> Callable[..., None]:
        def renaming(old: Any, new: Any, **options: Any) -> None:
            name = Path(new).name
            if not name.startswith("."):
                content = [Path(old), *Path(old).rglob("*")]
                self.lost += [str(one) for one in content if one.stat().st_ino not in self._flushed]
                self.nameless[Path(new).parent.stat().st_ino] = name
                self.published.append(name)
            rename(old, new, **options)

        return renaming


def _store(folder: Path) -> None:
    (folder / "made/data").mkdir(parents=True, exist_ok=True)
    (folder / "made/state.pt").write_bytes(b"weights")
    (folder / "made/data/position.json").write_bytes(b"{}")
    meta = CheckpointMeta(trial="studies/s/trials/3", name="final", step=1, milestone=1, attempt=1)
    store = DirectoryStore(folder / "store")
    store.set_up("0123456789abcdef", used=False)
    store.put(folder / "made", meta)


def _checkpoint(folder: Path) -> None:
    checkpoint.write(folder / "final", {"world_size": 1})


def _part(folder: Path) -> None:
    checkpoint.write_part(folder, {"world_size": 2}, rank=1)


def _key(folder: Path) -> None:
    credential.joining_key(folder)


def _message(folder: Path) -> None:
    RejectedMessages(folder).keep(7, b"refused", "it is unknown")


def _identity(folder: Path) -> None:
    (folder / "id").unlink(missing_ok=True)
    home.identity(folder)


def _server(folder: Path) -> None:
    now = datetime.now(UTC)
    if not (folder / "ca").exists():
        authority.make(folder / "ca", ["localhost"], now=now)
    authority.make_server(folder / "ca", ["localhost"], now=now)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (_store, "final"),
        (_checkpoint, "final"),
        (_part, "rank-1"),
        (_key, "joining"),
        (_message, "000000000007"),
        (_identity, "id"),
        (_server, "server"),
    ],
)
def test_a_new_name_outlasts_a_power_cut(
    write: Callable[[Path], None], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    for _ in range(2):  # the second replaces the first
        write(tmp_path)
        assert Path(disk.published[-1]).stem == name
        assert disk.lost == []
        assert disk.nameless == {}
