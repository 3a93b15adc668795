"""How many cores and loader workers a script should use."""

import os

import pytest

from headrace.trial import cores

GPU = {"CUDA_VISIBLE_DEVICES": "GPU-1"}
CPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("environ", "cpus", "workers"),
    [
        ({"HEADRACE_CPUS": "2", **GPU}, 2, 1),
        ({"HEADRACE_CPUS": "32", "LOCAL_WORLD_SIZE": "4", **GPU}, 8, 7),
        ({"HEADRACE_CPUS": "1", "LOCAL_WORLD_SIZE": "4", **GPU}, 1, 0),
        ({"HEADRACE_CPUS": "96", **GPU}, 96, 16),
        ({"HEADRACE_CPUS": "2", **CPU}, 2, 0),
        ({"HEADRACE_CPUS": "8", **CPU}, 8, 2),
    ],
)
def test_cores_and_loader_workers_follow_the_grant(environ: dict[str, str], cpus: int, workers: int) -> None:
    assert cores.cpus(environ) == cpus
    assert cores.loader_workers(cpus, environ) == workers


def test_by_hand_the_machine_says_it() -> None:
    here = len(os.sched_getaffinity(0))
    assert cores.cpus({}) == here
    assert cores.cpus({"LOCAL_WORLD_SIZE": str(2 * here)}) == 1
