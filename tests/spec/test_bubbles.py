"""`bubbles: true` in a study: what is valid, how a file spells it, and the round trip over protobuf."""

from typing import Any

import pytest
from spec_samples import LEARNING_RATE, SMALL, assert_refused

from headrace.spec import from_proto, parse_spec, to_proto
from headrace_services.scheduler.core.placement import Request, suits, with_ephemeral
from headrace_services.scheduler.core.records import Slot

WIDTH = {"type": "categorical", "values": [8, 16]}
STUDY: dict[str, Any] = {**SMALL, "space": {"lr": LEARNING_RATE, "width": WIDTH}, "bubbles": True}


def test_it_goes_over_protobuf_and_json_and_is_off_by_default() -> None:
    spec = parse_spec(STUDY)
    assert spec.bubbles
    assert from_proto(to_proto(spec)) == spec == type(spec).stored(spec.model_dump(mode="json"))
    assert not parse_spec({key: value for key, value in STUDY.items() if key != "bubbles"}).bubbles


def test_a_study_stored_by_an_earlier_version_does_not_allow_it() -> None:
    stored = parse_spec(STUDY).model_dump(mode="json")
    del stored["bubbles"]
    assert not type(parse_spec(STUDY)).stored(stored).bubbles


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"bubbles": "yes"}, "bubbles", "true or false"),
        ({"bubbles": 1}, "bubbles", "true or false"),
        ({"trial": None}, "bubbles", "run on workers"),
        ({"resources": {"gpus": 2, "gpu_memory_bytes": "1GiB"}}, "bubbles", "ask for 2"),
        ({"resources": {"gpu_milli": 250, "gpu_memory_bytes": "1GiB"}}, "bubbles", "share"),
        ({"resources": {"gpus": 1}}, "resources.gpu_memory_bytes", "missing"),
        ({"resources": {"gpus": {"by": "width", 8: 1, 16: 2}}}, "bubbles", "sizes of their own"),
        ({"elastic": {"spare": 4}}, "bubbles", "elastic"),
    ],
)
def test_what_cannot_run_in_bubbles_is_refused(changes: dict[str, Any], field: str, says: str) -> None:
    data = {key: value for key, value in {**STUDY, **changes}.items() if value is not None}
    assert_refused(data, field, says)


def slot(*, kind: str = "GPU", memory_bytes: int = 5, owner: str = "gpt") -> Slot:
    return Slot(
        worker_id=1,
        index=0,
        kind=kind,
        memory_bytes=memory_bytes,
        labels={},
        worker_name="w",
        incarnation="1",
        log_dir="",
        owner=owner,
    )


def test_an_ephemeral_slot_suits_requests_of_its_kind_that_allow_it_and_fit_its_memory() -> None:
    fused = parse_spec({**STUDY, "resources": {"gpus": 1, "gpu_memory_bytes": 16}, "fuse": {"most": 4}})
    request = Request.of(fused.resources)
    assert not suits(slot(), request), "another study's request"
    allowed = with_ephemeral(fused, request)
    assert suits(slot(), allowed), "one member of four fits"
    assert not suits(slot(memory_bytes=3), allowed)
    assert not suits(slot(owner=""), allowed), "a slot of its own must have room for all"
    assert not suits(slot(kind="CPU"), allowed)
    on_cpu = parse_spec(STUDY)
    assert suits(slot(kind="CPU"), with_ephemeral(on_cpu, Request.of(on_cpu.resources)))
    assert not suits(slot(), with_ephemeral(on_cpu, Request.of(on_cpu.resources))), (
        "a GPU stage runs GPU trials"
    )
