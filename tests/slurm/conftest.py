"""A real Slurm and a real Headrace for the tests of this folder."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / folder) for folder in ("joining", "chaos")]

from cluster import SlurmCluster, lacking  # noqa: E402  their folders are on the path from here on
from joined_site import one_database  # noqa: E402  likewise
from slurm_site import SlurmSite, slurm_site  # noqa: E402  likewise


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """Two nodes; skipped with the reason where that is impossible."""
    if why := lacking():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:  # short, because of munge's socket
        started = SlurmCluster(Path(folder))
        try:
            started.start()
            yield started
        finally:
            started.stop()


@pytest.fixture
def site(
    slurm: SlurmCluster, tmp_path: Path, postgres_url: str, migrated_template: str
) -> Iterator[SlurmSite]:
    """A scheduler that requires certificates, and loops that launch workers for it."""
    with (
        one_database(postgres_url, migrated_template) as database,
        slurm_site(tmp_path, database, slurm) as it,
    ):
        yield it
