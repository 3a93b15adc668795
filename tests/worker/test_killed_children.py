"""A process that a program itself started was killed: nobody is charged, as if the program itself had been killed.

The errors come from the libraries themselves, whose processes are really killed.
"""

import os
import signal
import subprocess
import sys
import traceback

import pytest
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, Dataset

from headrace.v1 import worker_pb2
from headrace_worker.exits import Finished, classify


class _Killed(Dataset[torch.Tensor]):
    """A signal ends each process that reads it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        os.kill(os.getpid(), self.number)
        return torch.tensor(index)


def _loader(number: int) -> None:
    list(DataLoader(_Killed(number), num_workers=1, multiprocessing_context="fork"))


def _subprocess(number: int) -> None:
    subprocess.run([sys.executable, "-c", f"import os; os.kill(os.getpid(), {number:d})"], check=True)


def _joblib(number: int) -> None:
    Parallel(n_jobs=2)(delayed(exec)(f"import os; os.kill(os.getpid(), {number:d})") for _ in range(2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside threads, which the loader does
@pytest.mark.parametrize("library", [_loader, _subprocess, _joblib])
@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (signal.SIGKILL, worker_pb2.EXIT_OUTCOME_LOST),
        (signal.SIGUSR2, worker_pb2.EXIT_OUTCOME_FAILED),
        # The program's own doing, or that of a batch job, which `Place.judged` knows.
        (signal.SIGTERM, worker_pb2.EXIT_OUTCOME_FAILED),
    ],
)
def test_a_killed_process_of_a_program_is_not_its_failure(library, number, outcome):
    with pytest.raises((RuntimeError, subprocess.CalledProcessError)) as caught:
        library(number)
    said = Finished(
        error=f"{type(caught.value).__name__}: {caught.value}",
        traceback="".join(traceback.format_exception(caught.value)),
    )
    verdict = classify(1, ending=None, finished=said, last_line="")
    assert (verdict.outcome, verdict.error[:9]) == (outcome, said.error[:9])


def test_a_program_that_handled_it_fails_by_its_own_error():
    try:
        try:
            _subprocess(signal.SIGKILL)
        except subprocess.CalledProcessError:
            {}["missing"]
    except KeyError as error:
        said = Finished(error="KeyError: 'missing'", traceback="".join(traceback.format_exception(error)))
    verdict = classify(1, ending=None, finished=said, last_line="")
    assert verdict.outcome == worker_pb2.EXIT_OUTCOME_FAILED
