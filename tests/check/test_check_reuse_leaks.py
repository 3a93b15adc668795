"""Programs that leak from trial to trial: the process ends after the first, or `headrace check --reuse` fails."""

from pathlib import Path

import pytest
from forked import launch_segment
from leaking_modules import BESIDE, Finder, Leaking, programs

from headrace.check import CheckError, ReuseReport, ReuseVerdict, render_reuse, reuse_runner, run_reuse_check

pytestmark = pytest.mark.full

TRIAL = """
_leak = train
def _seen():
    import os, sys, gc, decimal, locale, logging, multiprocessing, resource, signal, socket, threading, warnings
    import re, zlib
    IMPORTS
    def read_umask():
        now = os.umask(0)
        os.umask(now)
        return now
    return zlib.crc32(re.sub(r"0x[0-9a-f]+|[0-9]{9,}|code-[0-9]+", "", repr((READ,))).encode())
def train(t):
    seen = _seen()
    for _ in t.steps():
        t.report(loss=seen)
    _leak(t)
"""
"""The trial computes with what it reads, then leaks. What it reads is told without addresses, and without the
number of its process's folder.
"""
UNSEEN = {
    "state of a library's object": ("hasattr(json.JSONDecoder.decode, 'seen')", "JSONDecoder.decode"),
    "file in the folder": (
        "Path('best.txt').read_text() if Path('best.txt').exists() else 0",
        "best.txt",
    ),
    "cache of a library": ("any(99 * 'a' in key for key in re._cache)", "re._cache"),
    "name put together": ("vars(shlex)[''.join(['quo', 'te'])]('a b')", "shlex.quote"),
}
"""What the trial reads, and the name that the check should find."""


def checked(program: Leaking, folder: Path, read: str) -> ReuseReport:
    imports = "".join(f"import {library}\n" for library in program.libraries)
    source = (
        imports
        + program.source
        + TRIAL.replace("READ", read).replace("IMPORTS", "; ".join(imports.split("\n")))
    )
    for name, text in {"leaking": source, **BESIDE}.items():
        (folder / f"{name}.py").write_text(text)
    return run_reuse_check(
        folder / "leaking.py",
        callable="train",
        max_steps=2,
        folder=folder,
        ships=True,
        limit_s=6000.0,
        launch=launch_segment,
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of which each process gets a copy, as a program may move it away."""
    monkeypatch.setattr(reuse_runner, "READS", 50_000)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def by_name(program: Leaking) -> str:
    return program.name


@pytest.mark.smoke
@pytest.mark.cases(2)
@pytest.mark.parametrize("program", [*programs(Finder.STATE), *programs(Finder.LEFTOVER)], ids=by_name)
def test_the_process_would_end(program: Leaking, project: Path) -> None:
    report = checked(program, project, "0")
    assert report.verdict is ReuseVerdict.NO_GAIN, render_reuse(report)
    assert program.words in report.left_behind


@pytest.mark.smoke
@pytest.mark.cases(1)
@pytest.mark.parametrize("program", programs(Finder.SETTING), ids=by_name)
def test_a_setting_is_restored(program: Leaking, project: Path) -> None:
    report = checked(program, project, program.words)
    assert report.verdict is ReuseVerdict.PASSED, render_reuse(report)


@pytest.mark.parametrize("program", programs(Finder.NOTHING), ids=by_name)
def test_a_program_that_leaves_nothing_passes(program: Leaking, project: Path) -> None:
    report = checked(program, project, "0")
    assert report.verdict is ReuseVerdict.PASSED, render_reuse(report)


@pytest.mark.smoke
@pytest.mark.cases(1)
@pytest.mark.parametrize("program", programs(Finder.CHECK), ids=by_name)
def test_what_nothing_else_sees_is_found(program: Leaking, project: Path) -> None:
    read, named = UNSEEN[program.name]
    report = checked(program, project, read)
    assert report.verdict is ReuseVerdict.FAILED, render_reuse(report)
    found = [*report.files, *(one.finding for one in (*report.changed, *report.also_changed))]
    assert any(named in one for one in found), render_reuse(report)


@pytest.mark.parametrize("program", programs(Finder.DEATH), ids=by_name)
def test_a_trial_that_ends_its_process_is_refused(program: Leaking, project: Path) -> None:
    with pytest.raises(CheckError, match="ended without a message"):
        checked(program, project, "0")
