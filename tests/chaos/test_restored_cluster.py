"""`make chaos ARGS=restore`, once: pg_dump of a live cluster, restored while its workers run. Half a minute."""

import os
from pathlib import Path

import pytest
import scenario_restore

pytestmark = pytest.mark.full


@pytest.mark.skipif(
    "HEADRACE_RESTORES" not in os.environ, reason="half a minute: set HEADRACE_RESTORES=1 (`make restores`)"
)
@pytest.mark.skipif(
    not (scenario_restore.program("pg_dump") and scenario_restore.program("psql")),
    reason="neither the embedded server nor the system has pg_dump and psql",
)
def test_a_dump_that_is_restored_behind_its_workers(tmp_path: Path) -> None:
    found = scenario_restore.run(tmp_path, print, times=int(os.environ["HEADRACE_RESTORES"]))
    print(found)
    assert found["holds"], found
    assert found["values_wrong"] == 0, found
