"""What a process reports of files that it loaded before it imported Headrace."""

import os
import subprocess
import sys
from importlib import import_module, invalidate_caches
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from headrace import loaded_before, not_known

# The program is the user, who edits a file while it starts. Files exist for a while before it starts.
PROGRAM = """
import os, sys, time
from pathlib import Path
folder = Path(__file__).parent
{early}
{edit}
from headrace import sources
sources.notice()  # what `from headrace import trial` does in a trial's process
{late}
for path, digest in sources.watch(str(folder)).new_files():
    print(path, digest)
"""
EDIT = "(folder / 'helper.py').write_text('VALUE = 20')"
KEEPS_TIMES = (
    "found = (folder / 'helper.py').stat()\n"
    "(folder / 'helper.py').write_text('VALUE = 2')\n"
    "os.utime(folder / 'helper.py', ns=(found.st_atime_ns, found.st_mtime_ns))"
)
RENAME = "(folder / 'next.py').rename(folder / 'helper.py')"
RELINK = "(folder / 'current').unlink(); (folder / 'current').symlink_to('two')"
GONE = "(folder / 'helper.py').unlink()"
SCRIPT = "Path(__file__).write_text(Path(__file__).read_text() + 'VALUE = 3\\n')"
COMMENT = "Path(__file__).write_text(Path(__file__).read_text() + '# done')"
FORKS = (
    "(folder / 'helper.py').write_text('VALUE = 20'); time.sleep(0.05)\nif os.fork(): os.wait(); os._exit(0)"
)


def run(folder: Path, early: str, edit: str, late: str = "") -> dict[str, str]:
    """The digest of each file that the program reports."""
    for name, text in (("helper.py", "VALUE = 1"), ("next.py", "VALUE = 2")):
        (folder / name).write_text(text)
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "linked.py").write_text(f"VALUE = '{name}'")
    (folder / "current").symlink_to("one")
    (folder / "program.py").write_text(PROGRAM.format(early=early, edit=edit, late=late))
    done = subprocess.run(
        [sys.executable, str(folder / "program.py")], capture_output=True, text=True, check=True
    )
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize("edit", [EDIT, KEEPS_TIMES, RENAME, GONE, FORKS])
def test_what_was_edited_after_it_was_loaded_is_not_known(tmp_path: Path, edit: str) -> None:
    told = run(tmp_path, "import helper", edit)
    assert {path: not_known.is_digest(digest) for path, digest in told.items()} == {
        "helper.py": True,
        "program.py": False,
    }


def test_a_link_that_leads_elsewhere_since_is_not_known(tmp_path: Path) -> None:
    told = run(tmp_path, "sys.path.insert(0, str(folder / 'current')); import linked", RELINK)
    assert not_known.is_digest(told["current/linked.py"])


def test_a_script_that_was_edited_while_it_started_is_not_known(tmp_path: Path) -> None:
    told = run(tmp_path, "import helper", SCRIPT)
    assert {path: not_known.is_digest(digest) for path, digest in told.items()} == {
        "helper.py": False,
        "program.py": True,
    }


@pytest.mark.parametrize(
    ("early", "edit", "late"),
    [
        ("import helper", "", ""),
        ("import helper", "", EDIT),  # what was recorded at the import of headrace stays
        ("", EDIT, "import helper"),
        ("import helper", "(folder / 'next.py').write_text('')", ""),
        ("import helper", COMMENT, ""),
        ("import helper", "if os.fork(): os.wait(); os._exit(0)", ""),
    ],
)
def test_what_is_known_is_reported(tmp_path: Path, early: str, edit: str, late: str) -> None:
    told = run(tmp_path, early, edit, late)
    assert sorted(told) == ["helper.py", "program.py"]
    assert not any(map(not_known.is_digest, told.values()))


def test_each_process_that_does_not_know_says_another_digest(tmp_path: Path) -> None:
    told = [
        run(folder, "import helper", EDIT)["helper.py"]
        for folder in (tmp_path / "one", tmp_path / "two")
        if folder.mkdir() is None
    ]
    assert len(set(told)) == 2


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module's file that this process has loaded, with its bytecode beside it."""
    file = tmp_path / "loaded_here.py"
    file.write_text("VALUE = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delitem(sys.modules, "loaded_here", raising=False)
    invalidate_caches()
    import_module("loaded_here")
    return file


def known(file: Path, began_ns: int | None) -> bool:
    spec = sys.modules["loaded_here"].__spec__
    return loaded_before.is_what_was_loaded(str(file), spec, file.read_bytes(), began_ns)


def test_bytecode_shows_an_edit_where_the_clock_of_the_file_system_is_behind(module: Path) -> None:
    after = 2 * module.stat().st_ctime_ns
    assert known(module, after)
    module.write_text("VALUE = 20")
    assert not known(module, after)
    assert not known(module, None)
    Path(cache_from_source(str(module))).unlink()
    assert known(module, after)


def test_bytecode_that_python_does_not_keep_up_to_date_shows_nothing(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = 2 * module.stat().st_ctime_ns
    module.write_text("VALUE = 20")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert known(module, after)


@pytest.mark.parametrize("early", [True, False], ids=["before headrace", "after it"])
def test_bytecode_of_a_file_of_the_same_second_and_size_is_not_taken_for_the_file(
    tmp_path: Path, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python runs VALUE = 1, while the digest was that of VALUE = 2."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    helper, load = tmp_path / "helper.py", "import helper; assert helper.VALUE == {}"
    program = tmp_path / "program.py"

    def told(value: int) -> bool:
        known = load.format(value)
        program.write_text(PROGRAM.format(early=known if early else "", edit="", late="" if early else known))
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
        return not_known.is_digest(dict(line.split() for line in done.stdout.splitlines())["helper.py"])

    for value in (1, 2):
        helper.write_text(f"VALUE = {value}")
        os.utime(helper, (1_000_000_000 + value / 10, 1_000_000_000 + value / 10))
        assert told(1) == (value == 2)
    assert not told(2)  # the old bytecode is gone
    assert not told(2)
    helper.chmod(0o600)  # a change without effect
    assert not told(2)


def test_a_file_system_that_keeps_whole_seconds_is_read_as_it_may_be() -> None:
    class Whole:
        st_ctime_ns = 7_000_000_000

    assert loaded_before._is_since(Whole, 7_900_000_000)  # type: ignore[arg-type]
    assert not loaded_before._is_since(Whole, 8_000_000_000)  # type: ignore[arg-type]
    Whole.st_ctime_ns = 7_100_000_000
    assert not loaded_before._is_since(Whole, 7_900_000_000)  # type: ignore[arg-type]


def test_modules_whose_file_never_was_one_do_not_count(tmp_path: Path) -> None:
    assert loaded_before.is_what_was_loaded(str(tmp_path / "_ops.py"), None, None, 0)
