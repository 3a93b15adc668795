"""The position of a rank is read without stopping its process."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, get_ident

import pytest

from headrace_torch.hdet import watch
from headrace_torch.hdet.stacks import formatted, stack_of
from headrace_torch.hdet.watch import Watch

COLLECTS = """
import gc
import threading

import torch.distributed as dist

from headrace_torch.hdet import watch

watch._default_store = dist.HashStore
rank = watch.Watch([0], rank=0, name="one", timeout_s=60.0)
rank._main = threading.get_ident()
gc.set_threshold(20, 1, 1)
for number in range(600):
    held = threading.Event()
    fresh = [threading.Thread(target=held.wait) for _ in range(8)]  # a look makes objects of what it has not seen
    for thread in fresh:
        thread.start()
    own = threading.local()
    own.held = True  # its end asks for the lock that guards the list of threads
    ring = [own]
    ring.append(ring)
    del own, ring
    counted = [[] for _ in range(number % 20)]  # so that some collection begins within a look
    rank._pulse()
    held.set()
    for thread in fresh:
        thread.join()
print("alive")
"""

COMES = """
import ctypes
import threading
from time import monotonic

from headrace_torch.hdet.stacks import stack_of

threads = ctypes.CDLL(None)
start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)

until = monotonic() + 8  # how many come in that time is the system's affair

def comes():  # threads of C that call Python, as those of a process group do
    while monotonic() < until:
        some = [ctypes.c_ulong() for _ in range(400)]
        for thread in some:
            threads.pthread_create(ctypes.byref(thread), None, start, None)
        for thread in some:
            threads.pthread_join(thread, None)

coming = threading.Thread(target=comes)
coming.start()
while coming.is_alive():
    stack_of(threading.main_thread().ident)
print("alive")
"""


@contextmanager
def standing(target: object = None) -> Iterator[int]:
    """A waiting thread; yields its id."""
    free, there = Event(), Event()

    def wait_here() -> None:
        there.set()
        free.wait()

    thread = Thread(target=target or wait_here, args=(there, free) if target else ())
    thread.start()
    there.wait()
    assert thread.ident is not None
    try:
        yield thread.ident
    finally:
        free.set()
        thread.join()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(COLLECTS, id="a collection"),
        pytest.param(COMES, id="threads that come", marks=pytest.mark.full),
    ],
)
def test_a_look_at_a_rank_neither_freezes_nor_crashes_it(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stdout == "alive\n"


def test_a_look_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    gc.set_threshold(321, 7, 9)
    try:
        stack_of(get_ident())
        assert gc.get_threshold() == (321, 7, 9)
    finally:
        gc.set_threshold(*before)


def test_a_stack_is_that_of_the_thread_with_its_lines() -> None:
    with standing() as thread:
        stack = stack_of(thread)
    assert [call.function for call in stack][:2] == ["wait", "wait"]
    (here,) = [call for call in stack if call.function == "wait_here"]
    assert here.file == __file__
    assert Path(__file__).read_text(encoding="utf-8").splitlines()[here.line - 1].strip() == "free.wait()"
    text = formatted(stack)
    assert text.index("in wait_here\n    free.wait()") < text.index("in wait\n")
    assert stack_of(thread) == (), "it has ended"
    assert stack_of(get_ident())[0].function == "stack_of"


def test_names_that_are_not_ascii_are_kept(tmp_path: Path) -> None:
    script = tmp_path / "größe.py"
    script.write_text("def prüfe(there, free):\n    there.set()\n    free.wait()\n", encoding="utf-8")
    names: dict[str, object] = {}
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), names)
    with standing(names["prüfe"]) as thread:
        (here,) = [call for call in stack_of(thread) if call.function == "prüfe"]
    assert (here.file, here.line) == (str(script), 3)


def test_a_rank_that_cannot_be_seen_is_not_taken_for_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_default_store", watch.dist.HashStore)
    rank = Watch([0], rank=0, name="one", timeout_s=60.0)
    rank._main = get_ident()
    assert rank._pulse().place != "an unknown place"
    with standing() as thread:
        rank._main = thread
    pulse = rank._pulse()
    assert (pulse.place, pulse.blocked) == ("an unknown place", False)
