"""`python -m headrace.trial.process`, and scripts started by a command, as real processes under a scripted daemon."""

import bz2
import gzip
from collections.abc import Callable

import psutil
import pytest
from scripted_daemon import Daemon

StartDaemon = Callable[..., Daemon]

COUNT = """
from headrace import trial

def train(t):
    for step in t.steps():
        t.state["sum"] = t.state.get("sum", 0) + step
        t.report(loss=t.state["sum"])
    print("ended" if t.ended else "not ended")
"""


def test_a_trial_is_told_who_it_is(daemon: StartDaemon) -> None:
    source = """
def train(t):
    assert dict(t.params) == {"lr": 0.5, "layers": 3, "act": "relu", "bias": True}, t.params
    assert type(t.params["layers"]) is int and type(t.params["bias"]) is bool
    assert t.id == "studies-moons-trials-7", "this worker names no lease"
    assert (t.name, t.number, t.seed, t.max_steps, t.step) == ("studies/moons/trials/7", 7, 11, 9, 0)
    assert (t.slots, t.world_size, t.resumed) == ((0, 1), 2, False)
    assert (t.slot_share, t.memory_bytes) == (0.25, 2**34)
    import random
    t.report(loss=random.random(), step=1)
"""
    params = {"lr": 0.5, "layers": 3, "act": "relu", "bias": True}
    one, other = (daemon(source, params=params, rungs=(1, 9)) for _ in range(2))
    for place in (one, other):
        ended = place.start()
        assert ended.returncode == 0, ended.stderr
        assert [end.error for end in place.finished] == [""]
    assert one.metrics("loss") == other.metrics("loss"), "the generators are seeded with the trial's seed"
    assert "studies/moons/trials/7 from step 0 of 9: act=relu bias=True layers=3 lr=0.5" in ended.stdout


def test_it_saves_at_milestones_only_and_leaves_when_told(daemon: StartDaemon) -> None:
    place = daemon(COUNT, rungs=(2, 5), pauses=(2,))
    first, second = place.start(), place.start()
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert [report.step for report in place.reports] == [1, 2, 3, 4, 5]
    assert [report.sequence for report in place.reports] == [1, 2, 1, 2, 3], (
        "each process counts its own reports"
    )
    assert [bool(report.checkpoint_dir) for report in place.reports] == [False, True, False, False, True]
    assert [report.metrics["loss"] for report in place.reports] == [1, 3, 6, 10, 15]
    assert "from step 2 of 5" in second.stdout
    assert first.stdout.endswith("ended\n")
    assert len(place.restored) == 1


@pytest.mark.full
def test_a_loop_of_another_kind_is_ended_by_an_exception_that_is_no_failure(daemon: StartDaemon) -> None:
    source = """
def train(t):
    while True:
        try:
            t.report(loss=1.0)
        except Exception as error:
            print("swallowed", error)
"""
    place = daemon(source, rungs=(3,))
    ended = place.start()
    assert ended.returncode == 0
    assert [report.step for report in place.reports] == [1, 2, 3]
    assert [end.error for end in place.finished] == [""]
    assert "swallowed" not in ended.stdout


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("def train(t):\n    raise ValueError('lr too high')", "script:train", "ValueError: lr too high"),
        ("import sys\ndef train(t):\n    sys.exit(3)", "script:train", "SystemExit: 3"),
        (
            "def train(t):\n    t.report(loss='low')",
            "script:train",
            "TypeError: metric 'loss' is 'low' of type str",
        ),
        ("def train(t):\n    t.track(model=3)", "script:train", "TypeError: t.track(model=...) got a int"),
        ("def train(t)\n    pass", "script:train", "SyntaxError: expected ':'"),
        ("import no_such_library", "script:train", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("", "scripd:train", "no module 'scripd' in {folder}; there are script"),
        ("", "script.train", "callable 'script.train' is not of the form module:function"),
        (
            "def trane(t):\n    pass",
            "script:train",
            "({folder}/script.py) has no 'train'; did you mean 'trane'?",
        ),
        ("def fit(t): ...\ndef load(): ...", "script:train", "has no 'train'; it has fit, load"),
        ("train = 3", "script:train", "is a int in {folder}/script.py, not a function"),
    ],
)
def test_a_failure_is_reported_with_its_last_line(
    daemon: StartDaemon, source: str, target: str, error: str
) -> None:
    place = daemon(source, target)
    ended = place.start()
    assert ended.returncode == 1
    (finish,) = place.finished
    assert error.format(folder=place.folder.resolve()) in finish.error
    assert finish.traceback.rstrip().endswith(finish.error)
    if not error.startswith("SystemExit"):
        assert finish.error in ended.stderr, "the log has it too"


@pytest.mark.parametrize("template", ["main", "current"])
def test_a_command_template_attaches_by_itself(daemon: StartDaemon, template: str) -> None:
    scripts = {
        "main": COUNT + "trial.main(train, steps=99)",
        "current": COUNT + "train(trial.current())",
    }
    place = daemon(scripts[template], target="", rungs=(2, 4), pauses=(2,))
    for _ in range(2):
        ended = place.start(str(place.folder / "script.py"), "--the", "scripts own arguments")
        assert ended.returncode == 0, ended.stderr
    assert [report.metrics["loss"] for report in place.reports] == [1, 3, 6, 10]
    assert [end.error for end in place.finished] == ["", ""]


@pytest.mark.full
def test_a_script_with_current_reports_what_it_raises_and_ends_cleanly_when_told(daemon: StartDaemon) -> None:
    place = daemon("from headrace import trial\nt = trial.current()\nt.report(loss=1)\n1 / 0", rungs=(2,))
    assert place.start(str(place.folder / "script.py")).returncode == 1
    assert [end.error for end in place.finished] == ["ZeroDivisionError: division by zero"]

    script = "from headrace import trial\nt = trial.current()\nt.report(loss=1)\n1 / 0"
    place = daemon(script, rungs=(1, 2), pauses=(1,))
    ended = place.start(str(place.folder / "script.py"))
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
    assert "what follows this report does not run" in ended.stderr
    assert [end.error for end in place.finished] == [""]


@pytest.mark.full
def test_what_follows_a_loop_of_its_own_runs_where_the_trial_reached_its_full_budget(
    daemon: StartDaemon,
) -> None:
    loop = "from headrace import trial\nt = trial.current()\nfor _ in range(2): t.report(loss=1)\n"
    place = daemon(f"{loop}print('the model is saved')", rungs=(2,))
    ended = place.start(str(place.folder / "script.py"))
    assert ended.stdout.strip() == "the model is saved"
    assert [end.error for end in place.finished] == [""]
    place = daemon(f"{loop}t.report(loss=2)\nprint('never')", rungs=(2,))  # a loop that is too long ends here
    ended = place.start(str(place.folder / "script.py"))
    assert (ended.returncode, ended.stdout) == (0, "")
    assert len(place.reports) == 2


def test_a_daemon_that_is_busy_is_asked_again(daemon: StartDaemon) -> None:
    place = daemon(COUNT, rungs=(2,), unavailable=3)
    assert place.start().returncode == 0
    assert [report.step for report in place.reports] == [1, 2]


def test_what_looks_wrong_is_prominent_in_the_log(daemon: StartDaemon) -> None:
    source = """
def train(t):
    for _ in t.steps():
        t.report(accuracy=1.0)
        t.report(f1=1.0)
        t.report(recall=1.0)
        if t.step == 2:
            t.report(accuracy=1.0, step=1)
"""
    place = daemon(source, rungs=(3, 9), pauses=(3,))
    log = place.start().stderr
    assert log.count("THIS REPORT HAS NO 'loss' (the study's objective); it has accuracy.") == 1
    assert log.count("nothing is tracked, so after a pause this trial starts again from the beginning") == 1
    assert (
        log.count("is reported twice; the first report counts at a rung. Report all metrics of a step") == 1
    )
    assert "step 1 is reported after step 2" in log
    assert [report.step for report in place.reports] == [1, 1, 1, 2, 2, 2, 1, 3], (
        "all are passed on, until it is told to leave"
    )


@pytest.mark.full
def test_the_log_shows_where_a_program_left_with_an_error(daemon: StartDaemon) -> None:
    ended = daemon("import sys\ndef train(t):\n    sys.exit(3)\n").start()
    assert ended.returncode == 1
    assert ended.stderr.endswith("SystemExit: 3\n")
    assert "in train" in ended.stderr


@pytest.mark.full
def test_a_process_that_waits_for_threads_says_so(daemon: StartDaemon) -> None:
    source = """
import threading, time
def train(t):
    threading.Thread(target=time.sleep, args=(5,), name="feeder").start()
    t.report(loss=1.0, step=1)
"""
    ended = daemon(source, rungs=(1, 9)).start()
    assert ended.returncode == 0
    assert (
        ended.stderr.count("headrace: the trial is over, but its process waits for the threads feeder") == 1
    )


def test_a_process_without_a_worker_says_what_to_do(daemon: StartDaemon) -> None:
    place = daemon("")
    place.address = ""
    ended = place.start()
    assert ended.returncode == 1
    assert ended.stderr == (
        "headrace: HEADRACE_RUNTIME not set: a worker starts this program; by hand, run the script itself\n"
    )


LEAVES_MUCH_BEHIND = """
import atexit, bz2, concurrent.futures, gzip, multiprocessing, pathlib, sys, threading, time, weakref

here = pathlib.Path(__file__).parent
class Held:
    early = open(here / "early.txt", "w")

early = Held.early
packed = gzip.open(here / "packed.gz", "wt")
pool = concurrent.futures.ThreadPoolExecutor(2)

def late(name):
    time.sleep(0.2)
    (here / name).write_text("done")

def for_ever():
    while True:
        time.sleep(1)

def train(t):
    global unclosed, child, bzipped, proxy
    proxy = weakref.proxy(type("Gone", (), {})())  # dead at once: whoever looks at it raises
    bzipped = bz2.open(here / "bzipped.bz2", "wb")
    bzipped.write(b"not compressed yet")
    packed.write("not packed yet")
    unclosed = open(here / "unclosed.txt", "w")
    unclosed.write("not flushed yet")
    early.write("not flushed either")
    threading.Thread(target=late, args=("thread.txt",)).start()
    pool.submit(late, "pool.txt")
    child = multiprocessing.get_context("fork").Process(target=for_ever, daemon=True)
    child.start()
    (here / "child.txt").write_text(str(child.pid))
    atexit.register(late, "atexit.txt")
    sys.stdout.write("no newline")
    t.report(loss=1.0, step=1)
"""


@pytest.mark.parametrize("orderly", ["", "1"])
def test_the_short_way_out_does_what_the_long_one_does(
    daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch, orderly: str
) -> None:
    monkeypatch.setenv("HEADRACE_ORDERLY_EXIT", orderly)
    place = daemon(LEAVES_MUCH_BEHIND, rungs=(1,))
    ended = place.start()
    assert ended.returncode == 0, ended.stderr
    written = {path.stem: path.read_text() for path in place.folder.glob("*.txt")}
    child = int(written.pop("child"))
    assert written == {
        "early": "not flushed either",
        "unclosed": "not flushed yet",
        "thread": "done",
        "pool": "done",
        "atexit": "done",
    }
    assert gzip.decompress((place.folder / "packed.gz").read_bytes()) == b"not packed yet"
    assert bz2.decompress((place.folder / "bzipped.bz2").read_bytes()) == b"not compressed yet"
    assert "no newline" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert not psutil.pid_exists(child), "the daemonic child went with it"
