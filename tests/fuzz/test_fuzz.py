"""Calls drawn from the contract at real servers under a memory limit: 200 of them here, 20,000 by `make fuzz`."""

import os
import random
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from attack import Attack, calls
from fuzz_site import Site, limited_caller, site
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from lines import OpenLines
from tiers import drawn

from headrace.spec import parse_spec, to_proto
from headrace.v1 import study_pb2

CALLS = int(os.environ.get("HEADRACE_FUZZ_CALLS", drawn(first=40, full=200)))
SEEDS = (1, 2, 3, 4) if CALLS > 1000 else (1,)
GROWTH_BYTES = 100 * 1024**2

pytestmark = [pytest.mark.full, pytest.mark.timeout(7200 if CALLS > 1000 else 600)]


@pytest.mark.smoke
@pytest.mark.parametrize("number", SEEDS)
def test_whatever_is_sent_nobody_else_is_hurt(database_url: str, tmp_path: Path, number: int) -> None:
    with (
        site(tmp_path, database_url) as here,
        contextmanager(calls)(OpenLines(here)) as attack,
        limited_caller(),
    ):
        _begin(attack, here, tmp_path)
        _attack(attack, drawn(first=20, full=100), number + 1000)  # warm-up
        before = here.memory()
        _attack(attack, CALLS, number)
        growth = {name: size - before[name] for name, size in here.memory().items()}
        for study in attack.all_studies():
            attack.end(study)
        left = attack.all_studies()
        shown = {name: f"{size / 2**20:+.0f} MiB" for name, size in growth.items()}
        print(f"\nseed {number}: {attack.tally}\nmemory: {shown}")
        assert not attack.tally.faults, str(attack.tally)
        assert left == []
        assert max(growth.values()) < GROWTH_BYTES, shown
        assert all(process.is_running() for process in here.processes.values())
        assert "Traceback" not in (tmp_path / "scheduler.log").read_text()


def _begin(attack: Attack, here: Site, folder: Path) -> None:
    """Start the study whose trials the site's worker runs, so that the worker's socket can be called."""
    request = study_pb2.CreateStudyRequest(study_id="real", spec=to_proto(parse_spec(here.study())))
    attack.stub.CreateStudy(request, timeout=60)
    until = time.monotonic() + 150
    while not here.runtimes():
        said = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in folder.glob("*.log"))
        assert time.monotonic() < until, f"the worker runs no trial\n{said}"
        time.sleep(0.1)


def _attack(attack: Attack, count: int, number: int) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=True))
    def call(chance: random.Random) -> None:
        attack.one_call(chance)

    call()
