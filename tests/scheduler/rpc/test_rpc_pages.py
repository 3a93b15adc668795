"""Pages: every item once and in order, at any page size. Tokens of other lists or other filters are refused."""

import base64
from typing import Any

import pytest
from rpc_site import RpcSite

from headrace.errors import BadPageTokenError
from headrace.v1 import spec_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc import pages
from headrace_services.scheduler.rpc.caller import Caller
from headrace_services.scheduler.store import workers
from headrace_services.scheduler.store.database import transaction

LISTS: dict[str, tuple[Any, str]] = {
    "ListStudies": (pb.ListStudiesRequest(), "studies"),
    "ListTrials": (pb.ListTrialsRequest(study="studies/s"), "trials"),
    "ListReports": (pb.ListReportsRequest(parent="studies/s"), "reports"),
    "ListWorkers": (pb.ListWorkersRequest(), "workers"),
}
FOREIGN: dict[str, tuple[str, Any]] = {
    "another method": ("ListStudies", pb.ListStudiesRequest()),
    "another study": ("ListTrials", pb.ListTrialsRequest(study="studies/t")),
    "another filter": (
        "ListTrials",
        pb.ListTrialsRequest(study="studies/s", states=[trial_pb2.TRIAL_STATE_PENDING]),
    ),
    "another parent": ("ListReports", pb.ListReportsRequest(parent="studies/s/trials/0")),
}


@pytest.fixture
async def full_site(site: RpcSite) -> RpcSite:
    """Five studies, six trials with two reports each, and five workers."""
    await site.create("s", policy={"kind": "run_all"}, max_trials=6, max_steps=3)
    for name in "tuvw":
        await site.create(name)
    for number in range(6):
        lease = (await site.suggest(client=f"c{number}")).lease
        for step in (1, 2):
            await site.report(lease, step, 0.5)
    async with transaction(site.engine) as conn:
        for name in "edcba":
            device = workers.Device(index=0, kind="CPU", model="cpu", memory_bytes=1, uuid="")
            greeting = workers.Greeting(
                name=name, incarnation="1", devices=(device,), labels={}, version="1", log_dir="/l"
            )
            await workers.greet(conn, greeting, 3600)
    return site


async def listed(site: RpcSite, method: str, request: Any, items: str, size: int) -> list[Any]:
    found: list[Any] = []
    ask = type(request)()
    ask.CopyFrom(request)
    ask.page_size = size
    while True:
        page = await site.call(method, ask)
        assert len(getattr(page, items)) <= (size or pages.DEFAULT_SIZE)
        found += getattr(page, items)
        ask.page_token = page.next_page_token
        if not page.next_page_token:
            return found


@pytest.mark.full
async def test_pages_of_every_size_make_the_whole_list_once(full_site: RpcSite) -> None:
    for method, (request, items) in LISTS.items():
        whole = await listed(full_site, method, request, items, 0)
        assert len(whole) >= 5
        for size in (1, 2, 5, 6, 1000, 2**31 - 1):
            assert await listed(full_site, method, request, items, size) == whole, (method, size)
    studies = await listed(full_site, "ListStudies", *LISTS["ListStudies"], 2)
    assert [study.name[-1] for study in studies] == ["w", "v", "u", "t", "s"]
    trials = await listed(full_site, "ListTrials", *LISTS["ListTrials"], 2)
    assert [trial.number for trial in trials] == list(range(6))
    reports = await listed(full_site, "ListReports", *LISTS["ListReports"], 5)
    assert [(r.trial_number, r.sequence) for r in reports] == [(n, s) for n in range(6) for s in (1, 2)]
    of_one = await listed(
        full_site, "ListReports", pb.ListReportsRequest(parent="studies/s/trials/3"), "reports", 1
    )
    assert [(r.trial_number, r.step) for r in of_one] == [(3, 1), (3, 2)]
    names = [worker.name for worker in await listed(full_site, "ListWorkers", *LISTS["ListWorkers"], 2)]
    assert names == [f"workers/{name}" for name in "abcde"]


async def test_a_list_that_changes_between_pages_repeats_and_hides_nothing(full_site: RpcSite) -> None:
    first = await full_site.call("ListStudies", pb.ListStudiesRequest(page_size=2))
    await full_site.create("x")
    await full_site.call("StopStudy", pb.StopStudyRequest(name="studies/v"))
    await full_site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/v"))
    token = first.next_page_token
    second = await full_site.call("ListStudies", pb.ListStudiesRequest(page_size=9, page_token=token))
    assert [study.name[-1] for study in second.studies] == ["u", "t", "s"]


async def test_filters_choose_trials_by_state(full_site: RpcSite) -> None:
    await full_site.call("StopTrial", pb.StopTrialRequest(name="studies/s/trials/2"))
    for states, numbers in (
        ([trial_pb2.TRIAL_STATE_TERMINATED], [2]),
        ([trial_pb2.TRIAL_STATE_RUNNING], [0, 1, 3, 4, 5]),
        ([trial_pb2.TRIAL_STATE_TERMINATED, trial_pb2.TRIAL_STATE_RUNNING], list(range(6))),
        ([trial_pb2.TRIAL_STATE_PAUSED], []),
    ):
        request = pb.ListTrialsRequest(study="studies/s", states=states)
        found = await listed(full_site, "ListTrials", request, "trials", 2)
        assert [trial.number for trial in found] == numbers


async def test_tokens_from_elsewhere_are_refused(full_site: RpcSite) -> None:
    whole = pb.ListTrialsRequest(study="studies/s", page_size=2)
    token = (await full_site.call("ListTrials", whole)).next_page_token
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for what, (method, request) in FOREIGN.items():
        request.page_token = token
        assert isinstance(await full_site.refusal(method, request), BadPageTokenError), what
    forged = base64.urlsafe_b64encode(raw[:-2] + b"9]").decode().rstrip("=")
    for bad in ("x", "!", "ünlesbar", token[:-1], token + "AA", forged, "A" * 5000):
        request = pb.ListTrialsRequest(study="studies/s", page_token=bad)
        error = await full_site.refusal("ListTrials", request)
        assert isinstance(error, BadPageTokenError), bad
        assert "unchanged" in error.remedy


async def test_a_token_works_at_every_replica_and_with_another_size(full_site: RpcSite) -> None:
    other = await full_site.add_replica()
    token = (await full_site.call("ListStudies", pb.ListStudiesRequest(page_size=2))).next_page_token
    page = await other.call("ListStudies", pb.ListStudiesRequest(page_size=3, page_token=token))
    assert [study.name[-1] for study in page.studies] == ["u", "t", "s"]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a member of the default project."""
    monkeypatch.setattr(pages, "caller", lambda: Caller(peer="p"))


@pytest.mark.usefixtures("called")
def test_a_page_ends_before_it_outgrows_a_message() -> None:
    values = {"x": spec_pb2.ParameterValue(string_value="v" * 1_000_000)}
    trial = trial_pb2.Trial(parameters=spec_pb2.ParameterAssignment(values=values))
    window = pages.window(pb.ListTrialsRequest(study="studies/s", page_size=9), (int,))
    page = window.fill(range(5), range(5), lambda _: trial, lambda number: (number,), str)
    assert len(page.messages) == 3
    after = pages.window(pb.ListTrialsRequest(study="studies/s", page_token=page.token), (int,)).after
    assert after == (2,)


@pytest.mark.usefixtures("called")
def test_an_element_that_no_message_holds_is_left_out_and_named() -> None:
    trial, huge = trial_pb2.Trial(number=1), trial_pb2.Trial(detail="x" * 4_000_000)
    window = pages.window(pb.ListTrialsRequest(study="studies/s", page_size=9), (int,))
    page = window.fill(range(3), [trial, huge, trial], lambda found: found, lambda number: (number,), str)
    assert page.messages == [trial, trial]
    assert [item.name for item in page.unshown] == ["1"]
    assert "3.8 MiB" in page.unshown[0].reason
    assert not page.token
