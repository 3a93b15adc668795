"""Policies and samplers of installed packages on a server: a bad one harms only the study that names it."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rpc_site import RpcSite, make_spec

from headrace.errors import InternalError, InvalidFieldError
from headrace.spec import to_proto
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.core import plugins
from headrace_services.scheduler.rpc import new_studies

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins"))

import plugin_packages as packages


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    packages.install(tmp_path, "a_broken_one", packages.BROKEN, policies="broken = a_broken_one:make")
    leaving = packages.BROKEN.replace('ZeroDivisionError("of the plugin")', "SystemExit(3)")
    packages.install(tmp_path, "a_leaving_one", leaving, policies="leaving = a_leaving_one:make")
    packages.install(
        tmp_path, "a_bad_import", "raise RuntimeError('no licence')", policies="bad = a_bad_import:make"
    )
    slow = "import time\ntime.sleep(1)\n" + packages.WAITS
    packages.install(tmp_path, "a_slow_one", slow, policies="slow = a_slow_one:make")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    plugins.factory.cache_clear()
    yield
    plugins.factory.cache_clear()
    sys.modules.pop("a_broken_one", None)
    sys.modules.pop("a_leaving_one", None)
    sys.modules.pop("a_slow_one", None)


def own(name: str) -> dict[str, object]:
    return {"kind": "own", "name": name, "rungs": [1, 3, 9]}


@pytest.mark.parametrize(
    ("name", "said"), [("none", "not a policy of any installed package"), ("bad", "RuntimeError: no licence")]
)
async def test_a_study_that_no_package_serves_is_refused_before_it_is_created(
    site: RpcSite, name: str, said: str
) -> None:
    spec = to_proto(make_spec(policy=own(name)))
    for method, request in (
        ("CreateStudy", pb.CreateStudyRequest(study_id="s", spec=spec)),
        ("PreviewStudy", pb.PreviewStudyRequest(spec=spec, slots=1)),
    ):
        error = await site.refusal(method, request)
        assert isinstance(error, InvalidFieldError)
        assert [one.field for one in error.violations] == ["policy.name"]
        assert said in str(error)
    assert (await site.call("ListStudies", pb.ListStudiesRequest())).studies == []


@pytest.mark.parametrize("method", ["CreateStudy", "PreviewStudy"])
async def test_a_slow_import_is_waited_for_beside_other_calls_and_not_forever(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(new_studies, "LOAD_S", 0.1)
    spec = to_proto(make_spec(policy=own("slow")))
    create = pb.CreateStudyRequest(study_id="s", spec=spec)
    request = create if method == "CreateStudy" else pb.PreviewStudyRequest(spec=spec, slots=1)
    error = await site.refusal(method, request)
    assert isinstance(error, InvalidFieldError)
    assert [one.field for one in error.violations] == ["policy.name"]
    assert "was not imported within 0.1 s" in str(error)


@pytest.mark.parametrize("name", ["broken", "leaving"])
async def test_a_policy_that_raises_is_told_to_who_reports_and_hurts_no_other_study(
    site: RpcSite, name: str
) -> None:
    """On workers its study is quarantined, as after any defect of a policy: see `test_quarantined_studies`."""
    await site.create("broken", policy=own(name))
    await site.create("sound")
    asked = await site.suggest("broken")
    for _ in range(2):
        with pytest.raises(InternalError, match="the scheduler failed on this call"):
            await site.report(asked.lease, 1, 0.5)
    other = await site.suggest("sound")
    assert (await site.report(other.lease, 1, 0.5)).reason
    await site.call("StopStudy", pb.StopStudyRequest(name="studies/broken", reason="enough"))
    assert (await site.study("broken")).state == pb.STUDY_STATE_STOPPED
