"""Which source files a process reports: those of the study's folder, as they were when they were imported."""

import hashlib
import importlib
import importlib.util
import os
import py_compile
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import sources
from headrace.bounds.numbers import SOURCES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, on the path; what was imported from it is forgotten afterwards."""
    sources.notice()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sources, "_watched", {})
    monkeypatch.setattr(sources, "_executed", {}, raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(file: Path, text: str) -> str:
    """Writes a file; returns the digest of its content."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_file_counts_as_it_was_when_it_was_imported(folder: Path) -> None:
    before = write(folder / "late_model.py", "VERSION = 1")
    watched = sources.watch(str(folder))
    importlib.import_module("late_model")
    after = write(folder / "late_model.py", "VERSION = 'two'")
    assert watched.new_files() == [("late_model.py", before)]
    assert watched.new_files() == []
    importlib.reload(sys.modules["late_model"])
    assert watched.new_files() == [("late_model.py", after)]


def test_it_tells_what_was_imported_before_and_since_and_nothing_else(folder: Path) -> None:
    early = write(folder / "early_one.py", "import json")
    package = write(folder / "parts_here/__init__.py", "")
    part = write(folder / "parts_here/loss.py", "")
    write(folder / "never_imported.py", "")
    write(folder / "env/lib/python3.11/site-packages/installed_here.py", "")
    sys.path.insert(0, str(folder / "env/lib/python3.11/site-packages"))
    importlib.import_module("early_one")
    watched = sources.watch(str(folder))
    assert watched.new_files() == [("early_one.py", early)]
    importlib.import_module("parts_here.loss")
    importlib.import_module("installed_here")
    importlib.util.find_spec("never_imported")
    sys.path.pop(0)
    assert watched.new_files() == [("parts_here/__init__.py", package), ("parts_here/loss.py", part)]


def test_a_link_to_the_folder_and_one_in_it_are_of_the_folder(folder: Path, tmp_path: Path) -> None:
    digest = write(folder / "elsewhere/shared_part.py", "")
    (folder / "project").mkdir()
    (folder / "project/linked_part.py").symlink_to(folder / "elsewhere/shared_part.py")
    (folder / "link").symlink_to(folder / "project")
    sys.path.insert(0, str(folder / "link"))
    watched = sources.watch(str(folder / "project"))
    importlib.import_module("linked_part")
    sys.path.pop(0)
    (found,) = sources.Sources(str(folder / "link")).new_files()
    assert found == ("linked_part.py", digest)
    assert watched.new_files() in ([], [found])  # under the name with which it was imported


def test_the_script_itself_counts(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, helper\nfrom headrace import sources\n"
        "print(sorted(file.path for file in sources.watch(sys.argv[1]).new_files()))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['helper.py', 'program.py']"


class Contended:
    """A lock that signals when a second thread waits for it."""

    def __init__(self, arrived: threading.Event) -> None:
        self._lock, self._arrived, self._first = threading.RLock(), arrived, threading.get_ident()

    def __enter__(self) -> None:
        if threading.get_ident() != self._first:
            self._arrived.set()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_two_threads_that_take_at_once_get_each_file_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = write(folder / "shared_model.py", "")
    watched, arrived, others = sources.watch(str(folder)), threading.Event(), []
    monkeypatch.setattr(sources, "lock", Contended(arrived), raising=False)

    def other() -> None:
        others.append(watched.new_files())
        arrived.set()

    thread = threading.Thread(target=other)
    add = watched._add

    def add_while_the_other_takes(file: str, digest: str | None) -> None:
        if not thread.ident:
            thread.start()
            assert arrived.wait(60)
        add(file, digest)

    monkeypatch.setattr(watched, "_add", add_while_the_other_takes)
    importlib.import_module("shared_model")
    own = watched.new_files()
    thread.join(60)
    assert sorted([own, *others]) == [[], [("shared_model.py", digest)]]


def test_a_file_that_is_edited_while_it_runs_counts_as_it_was_before(folder: Path) -> None:
    before = write(
        folder / "edits_itself.py",
        "from headrace import sources\nfrom pathlib import Path\n"
        "Path(__file__).write_text('VERSION = 2')\nTAKEN = sources.watch(str(Path(__file__).parent)).new_files()\n",
    )
    watched = sources.watch(str(folder))
    module = importlib.import_module("edits_itself")
    assert before in {digest for _, digest in module.TAKEN}
    sources._forked()
    assert watched.new_files() == []


WAYS = {
    "spec": "s = importlib.util.spec_from_file_location('other', FILE); m = importlib.util.module_from_spec(s); "
    "s.loader.exec_module(m); value = m.VALUE",
    "run_path": "value = runpy.run_path(FILE)['VALUE']",
    "forgotten": "import helper; value = helper.VALUE; del sys.modules['helper']",
    "compiled": "scope = {}; exec(compile(Path(FILE).read_text(), FILE, 'exec'), scope); value = scope['VALUE']",
    "relative": "os.chdir(os.path.dirname(FILE)); value = runpy.run_path('helper.py')['VALUE']",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cached", [False, True])
def test_whatever_is_executed_counts_whichever_way_it_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way: str, cached: bool
) -> None:
    monkeypatch.chdir(folder)
    watched = sources.watch(str(folder))
    watched.new_files()
    for value in (1, 2):
        digest = write(folder / "helper.py", f"VALUE = {value}{'#' * value}")
        if cached:
            py_compile.compile(str(folder / "helper.py"), doraise=True)
        importlib.invalidate_caches()
        scope = {
            "FILE": str(folder / "helper.py"),
            "importlib": importlib,
            "runpy": runpy,
            "sys": sys,
            "os": os,
            "Path": Path,
        }
        exec(WAYS[way], scope)
        assert scope["value"] == value
        assert ("helper.py", digest) in watched.new_files()


def test_a_file_that_is_only_read_and_a_pipe_do_not_count(folder: Path) -> None:
    write(folder / "only_read.py", "VALUE = 1")
    os.mkfifo(folder / "pipe.py")
    watched = sources.watch(str(folder))
    watched.new_files()
    (folder / "only_read.py").read_text()
    exec(compile("1", str(folder / "pipe.py"), "exec"))
    assert watched.new_files() == []


def test_code_that_is_executed_again_counts_as_it_was_the_first_time(folder: Path) -> None:
    before = write(folder / "kept_code.py", "VALUE = 1")
    watched = sources.watch(str(folder))
    watched.new_files()
    code = compile((folder / "kept_code.py").read_text(), str(folder / "kept_code.py"), "exec")
    exec(code, {})
    write(folder / "kept_code.py", "VALUE = 'two'")
    exec(code, {})
    assert watched.new_files() == [("kept_code.py", before)]


def test_there_is_an_end_to_what_is_reported(folder: Path) -> None:
    for number in range(SOURCES + 3):
        write(folder / f"many_{number}.py", str(number))
    watched = sources.watch(str(folder))
    for number in range(SOURCES + 3):
        importlib.import_module(f"many_{number}")
    assert len(watched.new_files()) == SOURCES


def test_one_digest_of_many_files_depends_on_no_order() -> None:
    one, two = sources.SourceFile("a.py", "1"), sources.SourceFile("b.py", "2")
    assert sources.digest_of([one, two]) == sources.digest_of([two, one])
    assert sources.digest_of([one]) != sources.digest_of([one, two])


EARLY = {
    "trial": (
        "from headrace import trial",
        "from headrace import sources; watched = sources.watch(sys.argv[1])",
    ),
    "client": (
        "from headrace import Client",
        "from headrace.client import own_code; watched = own_code.watch()",
    ),
}


@pytest.mark.parametrize("kind", EARLY)
def test_a_script_is_seen_from_its_import_of_headrace_on(tmp_path: Path, kind: str) -> None:
    (tmp_path / "settings.py").write_text("VALUE = 1")
    program, (first, then) = tmp_path / "program.py", EARLY[kind]
    program.write_text(
        f"import os, runpy, sys\n{first}\nrunpy.run_path(os.path.join(sys.argv[1], 'settings.py'))\n"
        f"{then}\nprint(sorted(file.path for file in watched.new_files()))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env=os.environ | {"HEADRACE_RUNTIME": "unix:/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['program.py', 'settings.py']"
