"""The table of bounds against the contract: every field has one bound, and no bound is left over."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pkgutil import iter_modules

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

import headrace.v1
from headrace.bounds import specs
from headrace.bounds.checker import UnboundedError, bound_of, check_of, map_value
from headrace.bounds.kinds import Entries, Items, Span
from headrace.bounds.table import SIZES, TABLE
from headrace.v1 import event_pb2

MODULES = [
    import_module(f"headrace.v1.{module.name}")
    for module in iter_modules(headrace.v1.__path__)
    if module.name.endswith("_pb2")
]
REQUESTS = [
    method.input_type
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def below(message: Descriptor, within: tuple[str, ...] = ()) -> Iterator[Descriptor]:
    """The message and all messages in it. A message within itself would need a bound on its depth."""
    assert message.full_name not in within, f"{message.full_name} can hold itself"
    yield message
    for field in message.fields:
        held = field.message_type
        if held is not None and held.full_name.startswith("headrace."):
            yield from below(held, (*within, message.full_name))


RECEIVED = {message.full_name: message for message in chain.from_iterable(map(below, REQUESTS))}
FIELDS = [
    field for message in RECEIVED.values() if not message.GetOptions().map_entry for field in message.fields
]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.full_name.removeprefix("headrace.v1."))
def test_every_field_that_is_received_has_a_bound_of_its_kind(field: FieldDescriptor) -> None:
    bound = bound_of(field)
    assert isinstance(bound, Entries) == (map_value(field) is not None)
    assert isinstance(bound, Items) == (field.is_repeated and map_value(field) is None)
    duration = field.message_type is not None and field.message_type.full_name == "google.protobuf.Duration"
    assert isinstance(bound, Span) == duration


def test_the_walk_sees_the_contract() -> None:
    assert len(REQUESTS) >= 50
    assert {
        "CreateStudyRequest",
        "StudySpec",
        "Report",
        "PlanQuestion",
        "FinishRequest",
        "ShareProgressRequest",
    } <= {message.name for message in RECEIVED.values()}


def test_a_field_without_a_bound_is_an_error() -> None:
    event = event_pb2.Event.DESCRIPTOR  # nobody sends it to a service
    with pytest.raises(UnboundedError, match=r"headrace\.v1\.Event\.cursor has no bound"):
        check_of(event)


def test_no_bound_is_left_over() -> None:
    fields = {(field.containing_type.name, field.name) for field in FIELDS}
    assert {(message, field) for message, bounds in TABLE.items() for field in bounds} <= fields
    assert set(TABLE) <= _names()
    assert set(specs._OWN) <= set(specs.SPECS)
    assert set(SIZES) <= _names()


def _names() -> set[str]:
    return {message.name for message in RECEIVED.values()}


def test_the_table_needs_no_heavy_library() -> None:
    heavy = ["pydantic", "sqlalchemy", "numpy", "torch", "optuna", "yaml", "rich", "typer"]
    program = f"import sys, headrace.bounds; print([name for name in {heavy} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
