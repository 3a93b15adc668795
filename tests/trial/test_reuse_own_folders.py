"""A file that a trial writes into a folder of its process ends the process."""

from pathlib import Path

from headrace.trial.reuse.own_folders import OwnFolders


def test_what_a_trial_writes_changes_or_removes_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1")
    folders = OwnFolders([str(tmp_path)])
    folders.take()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/train.pyc").write_text("bytecode")
    assert folders.changed() == ""
    (tmp_path / "scratch.txt").write_text("1")
    assert folders.changed().startswith("it wrote scratch.txt into a folder of its process: ")
    (tmp_path / "scratch.txt").unlink()
    assert folders.changed() == ""
    (tmp_path / "train.py").write_text("22")
    assert "train.py" in folders.changed()
    (tmp_path / "train.py").unlink()
    assert "train.py" in folders.changed()


def test_other_folders_do_not_count() -> None:
    folders = OwnFolders([])
    folders.take()
    assert folders.changed() == ""
