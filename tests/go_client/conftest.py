"""The Go client's programs, built once. `make test-clients` runs these tests; elsewhere they are skipped."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "chaos"))  # a cluster that can be damaged
from cluster_site import Cluster, cluster

SOURCES = Path(__file__).parents[2] / "clients/go"
PROGRAMS = ("examples/asktell", "examples/table", "examples/train", "internal/soak")


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built programs."""
    if not os.environ.get("HEADRACE_CLIENT_TESTS"):
        pytest.skip("clients in other languages are tested by `make test-clients`")
    if shutil.which("go") is None:
        pytest.skip('no Go: eval "$(clients/go/toolchain.sh)" fetches one')
    folder = tmp_path_factory.mktemp("go")
    for program in PROGRAMS:
        subprocess.run(
            ["go", "build", "-o", str(folder / Path(program).name), f"./{program}"], cwd=SOURCES, check=True
        )
    return folder


@pytest.fixture(scope="module")
def site(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two CPU slots."""
    with cluster(tmp_path_factory.mktemp("site"), slots=2, lease_ttl_s=3) as running:
        yield running
