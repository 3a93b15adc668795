"""Ray for real: a cluster of two nodes on this machine runs a study of a head node. Needs Ray: `make test-ray`."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
from launch_site import HEADRACE, launch_site, process, until

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed here: make test-ray installs it"
    ),
]


@pytest.fixture
def cluster() -> Iterator[str]:
    """Two nodes of one CPU each."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        found.add_node(num_cpus=1)
        yield str(found.address)
    finally:
        found.shutdown()


def test_a_study_runs_on_workers_that_come_and_go(tmp_path: Path, cluster: str) -> None:
    with launch_site(tmp_path) as site, ExitStack() as stack:
        launch = [
            "launch",
            "ray",
            "--cluster",
            cluster,
            "--max",
            "2",
            "--cpu-slots",
            "1",
            "--idle-exit",
            "5s",
        ]
        launch += ["--store", (tmp_path / "store").as_uri(), "--interval", "2s"]
        assert "num_cpus=1" in site.run(*launch, "--dry-run")
        loops = [tmp_path / f"launch-{number}.log" for number in range(2)]
        for log in loops:  # two at once
            stack.enter_context(process([*HEADRACE, *launch], site.env, log))
        seen = site.study(most=2)
        assert len(seen) >= 2, loops[0].read_text()
        assert all(re.fullmatch(r"ray-workers-[01]-[0-9a-f]{12}", name) for name in seen), seen
        until(lambda: not site.connected(), lambda: "idle workers leave")
