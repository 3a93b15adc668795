"""`benchmarks/launch/many_workers.py` in small: three launches at once keep their bounds, and leave nothing."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "launch"))
import many_workers

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]


def test_launches_of_three_engines_keep_their_bounds_and_leave_nothing(
    database_url: str, tmp_path: Path
) -> None:
    found = many_workers.run(database_url, tmp_path, count=12, most=2)
    assert found.faults == []
    assert found.started >= 12
    assert all(0 < one["most"] <= 2 for one in found.launches.values())
    assert sum(one["trials"] for one in found.launches.values()) > 0
    assert found.left["certificates"] == sum(one["joined"] for one in found.launches.values())
    assert (found.left_later["join tokens"], found.left_later["certificates"]) == (0, 0)
