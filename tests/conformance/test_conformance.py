"""Every scenario with every client that can run here now, and the table of wrong studies on the server itself.

`make test-clients` builds the clients in other languages first, and skips nothing.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import client_driver
import grpc
import pytest
from client_driver import NotReadyError
from conformance_site import Site
from google.protobuf import json_format
from matching import mismatch
from report import outcomes, table
from scenario_run import Scenario, changed, expected_error, scenarios, wrong_studies

from headrace.error_status import from_rpc_error
from headrace.errors import InvalidFieldError
from headrace.spec import from_proto
from headrace.v1 import spec_pb2, study_pb2_grpc
from headrace.v1 import study_pb2 as pb

TABLE = wrong_studies()


@pytest.fixture
def site(database_url: str, tmp_path: Path) -> Iterator[Site]:
    with Site(database_url, tmp_path) as made:
        yield made


@pytest.mark.cases(1)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("client", client_driver.names())
def test_the_scenarios(client: str, site: Site) -> None:
    """One test per client: a scheduler and a driver take longer to start than most scenarios."""
    run(client, site, [one for one in scenarios() if not one.long])


@pytest.mark.skipif(
    "HEADRACE_LONG_SCENARIOS" not in os.environ, reason="`make test-clients` runs the long ones"
)
@pytest.mark.parametrize("client", client_driver.names())
def test_the_long_scenarios(client: str, site: Site) -> None:
    run(client, site, [one for one in scenarios() if one.long])


def run(client: str, site: Site, wanted: list[Scenario]) -> None:
    try:
        driver = client_driver.driver(client)
    except NotReadyError as error:
        pytest.skip(f"{client}: {error}; `make test-clients` builds it")
    with driver:
        found = outcomes(wanted, driver, site)
    failed = [f"{name}: {one.why}" for name, one in found.items() if one.cell == "failed"]
    assert not failed, "\n".join(failed)
    assert "passed" in {one.cell for one in found.values()}


@pytest.fixture(scope="module")
def refusals(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, migrated_template: str
) -> Iterator[dict[str, object]]:
    """A scheduler's answer to each wrong study sent as a bare message."""
    import psycopg

    name = "wrong_studies"
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {migrated_template}")
    head, _, query = postgres_url.partition("?")
    url = f"{head.rpartition('/')[0]}/{name}?{query}"
    found: dict[str, object] = {}
    with (
        Site(url, tmp_path_factory.mktemp("site")) as site,
        grpc.insecure_channel(site.scheduler.address) as channel,
    ):
        stub = study_pb2_grpc.StudyServiceStub(channel)
        for number, case in enumerate(TABLE["cases"]):
            request = pb.CreateStudyRequest(study_id=f"s{number}", spec=_spec(case))
            try:
                found[case["name"]] = stub.CreateStudy(request, timeout=60)
            except grpc.RpcError as error:
                found[case["name"]] = from_rpc_error(error)
    yield found
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["name"].replace(" ", "-"))
def test_the_server_refuses_a_wrong_study_as_the_client_does(
    case: dict[str, object], refusals: dict[str, object]
) -> None:
    """The path and the remedy are those of the table: from the server, and in Python before anything is sent."""
    told = refusals[str(case["name"])]
    with pytest.raises(InvalidFieldError) as own:
        from_proto(_spec(case))
    for error in (told, own.value):
        assert isinstance(error, InvalidFieldError), error
        violations = [
            {"field": one.field, "message": one.message, "remedy": one.remedy} for one in error.violations
        ]
        assert mismatch(expected_error(case)["violations"], violations) is None


def test_the_base_of_the_table_is_a_sound_study() -> None:
    """Otherwise its cases would be refused for another reason."""
    from_proto(_spec({}))


def test_what_a_scenario_expects() -> None:
    """A check that accepts everything would make every scenario pass."""
    found = {"a": 1, "b": "text", "c": [1, {"d": True}]}
    assert mismatch({"a": 1, "b": "/^te/", "c": [{"least": 1}, {"d": True}]}, found) is None
    for wrong in ({"a": 2}, {"b": "/^x/"}, {"c": [1]}, {"c": [{"most": 0}, {}]}, {"d": None}, {"a": True}):
        assert mismatch(wrong, found) is not None
    assert mismatch({"one_of": [1, 2]}, 2) is None
    assert mismatch({"one_of": [1, 2]}, 3) == "answer is 3, not one of [1, 2]"


def test_the_table_of_the_report() -> None:
    shown = table(["create"], ["go", "typescript"], {("create", "go"): "0.1 s"})
    assert shown.splitlines()[-1] == "| create | 0.1 s | – |"


def _spec(case: dict[str, object]) -> spec_pb2.StudySpec:
    return json_format.ParseDict(changed(TABLE["base"], case), spec_pb2.StudySpec())
