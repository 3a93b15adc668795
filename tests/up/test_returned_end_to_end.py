"""A study whose function returns its result, for real: a larger budget is refused, but more configurations are not."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ready_home import furnish
from test_outcomes_end_to_end import Service
from test_up_end_to_end import up

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

STUDY = """
objective: {metric: loss, goal: minimize}
trial: {callable: PROGRAM:train}
space: {x: {type: float, low: 0, high: 5}}
trials: 3
steps: 1
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # short: Unix sockets are created in it
    home = folder / "home"
    furnish(home)
    with up(home):
        yield Service(home, folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_larger_budget_is_refused_and_further_trials_complete(service: Service) -> None:
    done = service.run("once", "def train(t):\n    return (t['x'] - 2) ** 2\n", STUDY)
    assert done.code == 0, done
    refused = service.cli("extend", "once", "--steps", "5", "--yes")
    assert refused.code != 0
    assert "their function returns its result" in refused.err
    assert service.json("show", "once")["state"] == "completed"
    assert service.cli("extend", "once", "--trials", "1").code == 0
    assert service.cli("attach", "once").code == 0
    assert [one["reason"] for one in service.json("trials", "once")] == ["completed"] * 4
