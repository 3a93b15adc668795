"""A trial in a batch job outlives the job's SIGTERM, and ends at its worker's."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import pytest

from headrace_worker.job_signals import VARIABLE, TermMark, in_batch_job

TRIAL = """
import os, signal, sys, time
from headrace.trial import job_signals
job_signals.hold()
if sys.argv[1] == "library":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    job_signals.hold_again()
ready, says = os.pipe()
if sys.argv[1] == "child" and not (child := os.fork()):
    os.write(says, b"1")
    time.sleep(600)
if sys.argv[1] == "child":
    os.read(ready, 1)  # Python drops signals that arrive while it forks
    os.kill(child, signal.SIGTERM)
    print(os.waitpid(child, 0)[1], flush=True)
print("up", flush=True)
for line in sys.stdin:
    print(line.strip(), flush=True)
"""


@contextmanager
def trial(
    mark: TermMark | None,
    kind: str = "plain",
    *,
    variables: Mapping[str, str] = MappingProxyType({}),
    passes: tuple[int, ...] = (),
) -> Iterator["subprocess.Popen[str]"]:
    if mark is not None:
        variables, passes = mark.variables, (mark.descriptor,)
    process = subprocess.Popen(
        [sys.executable, "-c", TRIAL, kind],
        env={**os.environ, **variables},
        pass_fds=passes,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def says(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def answers(process: "subprocess.Popen[str]", text: str) -> bool:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()
    return says(process) == text


@pytest.fixture
def mark() -> Iterator[TermMark]:
    made = TermMark()
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["plain", "library"])
def test_a_trial_ignores_sigterm_until_its_worker_sends_it(mark: TermMark, kind: str) -> None:
    with trial(mark, kind) as process:
        assert says(process) == "up"
        process.send_signal(signal.SIGTERM)
        assert answers(process, "still here")
        mark.set()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_a_mark_whose_number_leads_to_another_file_is_none() -> None:
    """A process that a trial starts has its variables, but not its descriptors."""
    with tempfile.TemporaryFile() as other:
        variables = {VARIABLE: str(other.fileno())}
        with trial(None, variables=variables, passes=(other.fileno(),)) as process:
            assert says(process) == "up"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == -signal.SIGTERM


def test_a_trial_outside_a_batch_job_dies_as_ever() -> None:
    with trial(None) as process:
        assert says(process) == "up"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_process_that_the_trial_forks_dies_of_sigterm(mark: TermMark) -> None:
    with trial(mark, "child") as process:
        assert int(says(process)) == signal.SIGTERM


def test_a_mark_may_be_closed_and_set_in_any_order() -> None:
    mark = TermMark()
    mark.close()
    mark.close()
    mark.set()


def test_only_a_batch_job_has_marks() -> None:
    assert in_batch_job({"SLURM_JOB_ID": "7"})
    assert not in_batch_job({"PATH": "/bin"})
