"""Listeners that would share one address: refused before anything starts, and the message names the option to
change."""

from pathlib import Path

import pytest
from admission_site import admission_site

from headrace.errors import HeadraceError, InvalidFieldError
from headrace_services.identity.listening import at_one_address
from headrace_services.planner.service import server as planner
from headrace_services.scheduler import process as scheduler
from headrace_services.serving.admission import AdmissionInterceptor
from headrace_services.serving.server import Server


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1:7440", "127.0.0.1:7440", True),
        ("localhost:7440", "127.0.0.1:7440", True),
        ("127.0.0.1:7440", "0.0.0.0:7440", True),
        ("[::]:7440", "10.0.0.7:7440", True),
        ("[::1]:7440", "[0:0:0:0:0:0:0:1]:7440", True),
        ("head.internal:7440", "head.internal:7440", True),
        ("127.0.0.1:7440", "127.0.0.1:7442", False),
        ("127.0.0.1:7440", "127.0.0.2:7440", False),
        ("0.0.0.0:0", "0.0.0.0:0", False),
        ("127.0.0.1:7440", None, False),
        ("127.0.0.1:7440", "", False),
    ],
)
def test_addresses_that_are_one(one: str, other: str | None, same: bool) -> None:
    found = at_one_address({"--listen": one, "--worker-listen": other})
    assert [violation.field for violation in found] == ["--worker-listen"] * same
    for violation in found:
        assert violation.value == other
        assert "is the address of --listen" in violation.message
        assert violation.remedy


def test_a_scheduler_says_which_of_its_ports_are_one() -> None:
    settings = scheduler.Settings(
        database_url="postgresql://x/y",
        listen="127.0.0.1:7440",
        worker_listen="0.0.0.0:7440",
        metrics_listen="127.0.0.1:7440",
        ca=Path("ca"),
    )
    with pytest.raises(InvalidFieldError) as refused:
        scheduler.check(settings)
    said = {violation.field: violation.message for violation in refused.value.violations}
    assert said == dict.fromkeys(
        ("--worker-listen", "--metrics-listen"), "is the address of --listen (127.0.0.1:7440) already"
    )


def test_a_planner_says_which_of_its_ports_are_one() -> None:
    settings = planner.Settings(listen="127.0.0.1:7441", metrics_listen="localhost:7441")
    with pytest.raises(InvalidFieldError, match="--metrics-listen"):
        planner.check(settings)


async def test_a_port_that_somebody_else_has_is_reported_with_its_option() -> None:
    async with admission_site() as site:
        door = AdmissionInterceptor()
        with pytest.raises(HeadraceError, match=f"cannot listen on {site.address}: ") as refused:
            Server((door,), door.connections).bind("--worker-listen", site.address, None)
        assert refused.value.remedy == "Choose another --worker-listen."
