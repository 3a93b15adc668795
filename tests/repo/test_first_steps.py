"""README and quickstart work as written: a reader follows each of them, block by block, on a fresh copy.

Here the demo tries three configurations, not 27, up to epoch 3, and the README's own study four, not nine: each of
their processes takes seconds to import its libraries.
"""

import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest
from walkthrough import Walk, blocks

ROOT = Path(__file__).resolve().parents[2]
PORT = 7440
"""Where `headrace up` listens; the documents start it without options."""
KEPT = ("LANG", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
"""Kept from the environment: what a reader has, and what shares the cores between the tests."""


@pytest.fixture
def port() -> Iterator[None]:
    """Waits until no other test follows a document. Skips if a Headrace runs on this machine, and fails in CI."""
    with (Path(gettempdir()) / f"headrace-{PORT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", PORT))
            except OSError:
                give_up = pytest.fail if os.environ.get("CI") else pytest.skip
                give_up(f"port {PORT} is in use: stop the Headrace that runs on this machine")
        yield


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository as a reader has it after `make setup`."""
    folder = tmp_path / "headrace"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    for name in ("pyproject.toml", ".ci/constraints.txt"):  # older than the environment: nothing is installed
        os.utime(folder / name, (0, 0))
    return folder


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A reader's environment: a home of its own, and nothing activated yet."""
    home = tmp_path / "home"
    home.mkdir()
    bin_folder = str(ROOT / ".venv" / "bin")
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != bin_folder]
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**kept, "HOME": str(home), "PATH": os.pathsep.join(path), "TERM": "dumb"}


def smaller(text: str, changes: dict[str, str]) -> str:
    """A document or a study file with smaller requests."""
    for whole, small in changes.items():
        assert whole in text
        text = text.replace(whole, small)
    return text


@pytest.mark.full
@pytest.mark.timeout(900)
def test_readme(copy: Path, env: dict[str, str], port: None) -> None:
    demo = copy / "examples/digits/study.yaml"
    text = demo.read_text(encoding="utf-8")
    text = smaller(text, {"\ntrials: 27\n": "\ntrials: 3\n", "rungs: [1, 3, 9, 27]\n": "rungs: [1, 3]\n"})
    demo.write_text(text, encoding="utf-8")
    walk = Walk(copy, env, done={"make test"})  # it runs this very test
    readme = smaller((copy / "README.md").read_text(encoding="utf-8"), {"\ntrials: 9\n": "\ntrials: 4\n"})
    walk.follow(readme, deadline_s=420)
    assert (copy / "report.html").stat().st_size > 100_000  # of `make demo`
    assert "PASSED" in walk.printed["headrace check train.py"]
    assert "lr: " in walk.printed["headrace best my-study"]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_quickstart(copy: Path, env: dict[str, str], port: None) -> None:
    result = "until headrace best digits; do sleep 1; done"
    walk = Walk(
        copy,
        env,
        done={"make demo"},  # the README's reader runs it
        first={"headrace pause digits": result},
    )
    walk.follow((copy / "docs/quickstart.md").read_text(encoding="utf-8"), deadline_s=240)
    assert (copy / "digits.html").exists()
    assert (copy / "digits.csv").read_text(encoding="utf-8").count("\n") > 1


def test_a_walk_stops_where_a_document_is_wrong(tmp_path: Path, env: dict[str, str]) -> None:
    def follow(text: str) -> None:
        Walk(tmp_path, env, done=set()).follow(text, deadline_s=20)

    follow("Save this as `a.txt.py`:\n\n```python\nx\n```\n\nThen:\n\n```sh\ncat a.txt.py  # shows it\n```\n")
    with pytest.raises(AssertionError, match="exit code 3"):
        follow("Type:\n\n```sh\n(exit 3)\n```\n")
    with pytest.raises(AssertionError, match="where to save this file"):
        follow("Look:\n\n```yaml\na: 1\n```\n")
    with pytest.raises(AssertionError, match="what this block is for"):
        follow("Look:\n\n```\na: 1\n```\n")
    with pytest.raises(AssertionError, match="exit code 127"):  # nothing is active in a new terminal
        follow("In a second terminal:\n\n```sh\nheadrace studies\n```\n")


def test_blocks_are_found_in_order_with_what_stands_before_them() -> None:
    first, second = blocks("One:\n\n```sh\na\n```\n\nTwo\nlines:\n\n```sh\nb \\\n  c # d\n# e\n```\n")
    assert (list(first.commands()), first.before) == (["a"], "One:")
    assert (list(second.commands()), second.before) == (["b    c"], "Two\nlines:")
