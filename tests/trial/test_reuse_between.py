"""Between two trials of a process: errors of the checks themselves, connections, threads and memory."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from leaking_modules import Finder, Leaking
from leaking_run import run

from headrace.trial.reuse import descriptors, memory
from headrace.trial.reuse.descriptors import Descriptors
from headrace.trial.reuse.leftovers import Leftovers
from headrace.trial.reuse.memory import LEAST_GROWTH_BYTES, MOST_OF_GPU_BYTES, Memory

BROKEN = {
    "a setting": "settings.Settings.restore = None",
    "a leftover": "leftovers.Leftovers.find = None",
    "the state": "module_state.ModuleState.changed = None",
    "an import": "settings.Settings.import_begins = None\n    import leaking_late\n    assert leaking_late.ROWS == []",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_error_of_a_check_ends_the_process(broken: str, tmp_path: Path) -> None:
    source = (
        "from headrace.trial.reuse import leftovers, module_state, settings\n"
        f"def train(t):\n    {BROKEN[broken]}\n"
    )
    result = run(Leaking(name=broken, source=source, finder=Finder.NOTHING), tmp_path)
    assert len(result.reasons) == 1
    assert result.reasons[0].startswith("it cannot be checked: TypeError")


def test_error_before_the_first_trial(tmp_path: Path) -> None:
    source = (
        "from headrace.trial.reuse import settings\nsettings.Settings.take = None\ndef train(t):\n    pass\n"
    )
    result = run(Leaking(name="take", source=source, finder=Finder.NOTHING), tmp_path)
    assert result.reasons[0].startswith("it cannot be checked")


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address at which a worker daemon listens."""
    monkeypatch.chdir(tmp_path)  # a path may be too long for a socket
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("daemon")
        listening.listen()
        yield "unix:daemon"


def _connect(path: str) -> int:
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    return one.detach()


def test_connection_to_the_daemon_is_not_the_trials(daemon: str) -> None:
    kept = _connect("daemon")
    found = Descriptors(daemon)
    found.take()
    os.close(kept)
    other = _connect("daemon")
    assert found.changed() == ""
    os.close(other)
    of_trial = Descriptors("unix:elsewhere")
    of_trial.take()
    other = _connect("daemon")
    assert "it left a socket open" in of_trial.changed()
    os.close(other)


def test_descriptors_of_libraries_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "MOST_NEW", 3)
    found = Descriptors()
    found.take()
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    assert found.changed() == ""
    found.take()  # for the next trial
    opened.append(os.open(os.devnull, os.O_RDONLY))
    assert "files open, such as /dev/null" in found.changed()
    for one in opened:
        os.close(one)


def test_pipes_of_libraries_stay() -> None:
    """A library that wakes its own thread has both ends; CUDA has pipes to others."""
    found = Descriptors()
    found.take()
    pipe = os.pipe()
    assert found.changed() == ""
    leads_out, other_end = os.pipe()
    os.close(other_end)
    assert "it left a pipe open" in found.changed()
    assert found.changed(cuda_began=True) == ""
    assert found.changed() == ""
    os.close(leads_out)
    found.take()
    reads, writes = os.pipe()
    with os.fdopen(writes, "wb", buffering=0):
        assert "it left a pipe open (a FileIO)" in found.changed(cuda_began=True)
    for one in (*pipe, reads):
        os.close(one)


def test_thread_that_is_about_to_end() -> None:
    found = Leftovers()
    found.take_connections()
    go = threading.Event()
    one = threading.Thread(target=go.wait, name="loader")
    one.start()
    assert found._threads_left() == [
        "it left the thread 'loader' running: join it before the function returns"
    ]
    go.set()
    assert found._threads_left() == []


def test_thread_of_a_progress_bar_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Leftovers()
    found.take_connections()
    go = threading.Event()
    monkeypatch.setattr(_Monitor, "__module__", "tqdm._monitor")
    one = _Monitor(target=go.wait)
    one.start()
    assert found._threads_left() == []
    go.set()
    one.join()


class _Monitor(threading.Thread):
    """As tqdm's."""


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1 << 30
    monkeypatch.setattr(memory, "resident_bytes", lambda: now)
    found = Memory()
    found.take()
    assert found.grown() == ""  # the level of the first trial
    now += LEAST_GROWTH_BYTES
    assert found.grown() == ""
    now += 1
    assert "its memory grew from 1.0 GiB after the first trial to 1.3 GiB" in found.grown()


def test_memory_of_a_large_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10 << 30
    monkeypatch.setattr(memory, "resident_bytes", lambda: now)
    found = Memory()
    assert found.grown() == ""
    now = int(12.5 * (1 << 30))
    assert found.grown() == ""
    now += 1
    assert found.grown()


def test_memory_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1 << 30, 0]
    monkeypatch.setattr(memory, "_allocated", lambda: list(now))
    found = Memory()
    found.take()
    now[1] = MOST_OF_GPU_BYTES
    assert found.grown() == ""
    now[1] += 1 << 20
    assert "it left 65 MiB of tensors on GPU 1" in found.grown()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_bytes_without_mapped_files(tmp_path: Path) -> None:
    before = memory.resident_bytes()
    held = b"x" * (64 << 20)
    assert memory.resident_bytes() - before > 60 << 20
    del held


def test_a_watchdog_that_a_trial_left_armed_ends_no_other_trial() -> None:
    program = (
        "import faulthandler, time\n"
        "from headrace.trial.reuse.between import Baseline\n"
        "baseline = Baseline()\n"
        "baseline.take()\n"
        "faulthandler.dump_traceback_later(0.2, exit=True)\n"
        "print(baseline.after_trial())\n"
        "time.sleep(0.5)\n"  # longer than the watchdog waits
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "")
