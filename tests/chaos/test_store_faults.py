"""A round of each fault of stores and checkpoints; `make chaos` runs twenty."""

from pathlib import Path

import pytest
import scenario_stores

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.mark.parametrize("fault", ["away", "damage"])
def test_a_fault_of_the_store_is_charged_to_nobody_and_every_study_ends(tmp_path: Path, fault: str) -> None:
    record = scenario_stores.run(tmp_path, print, times=1, fault=fault)
    assert record["holds"], record
