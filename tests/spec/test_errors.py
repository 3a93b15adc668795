"""Errors: one catalogue, and the same exception on both sides of the network."""

import pickle
from concurrent import futures

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from headrace import errors
from headrace.error_status import from_rpc_error, to_status
from headrace.errors import (
    CATALOGUE,
    HeadraceError,
    InternalError,
    InvalidFieldError,
    StudyExistsError,
    UnreachableError,
    Violation,
)
from headrace.v1 import error_pb2

VIOLATIONS = (
    Violation(
        field="space.lr.low", message="is above high, which is 0.1", value="0.5", remedy="Swap the two."
    ),
    Violation(field="policy.eta", message="must be at least 2", remedy="Choose ⌊n/η⌋ — 3."),
    Violation(field="", message="is empty"),
)


@pytest.fixture
def call():
    """Raises an error in a real server and returns what a real client caught."""
    raised: list[HeadraceError] = []

    def answer(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort_with_status(rpc_status.to_status(to_status(raised[-1])))
        return b""

    handler = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", {"Fail": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

        def call(error: HeadraceError) -> HeadraceError:
            raised.append(error)
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/test.Service/Fail")(b"", timeout=60)
            return from_rpc_error(caught.value)

        yield call
    server.stop(None).wait(10)


def examples():
    for entry in CATALOGUE:
        if entry.error is InvalidFieldError:
            yield InvalidFieldError(VIOLATIONS)
        else:
            yield entry.error("The study 'digits' is like that.")


@pytest.mark.parametrize(
    "error", [e for e in examples() if e.__class__ in {x.error for x in CATALOGUE if x.reason}], ids=repr
)
def test_over_the_wire(call, error):
    back = call(error)
    assert type(back) is type(error)
    assert back.remedy == error.remedy
    assert back.retryable == error.retryable
    assert str(back) == str(error)
    if isinstance(error, InvalidFieldError):
        assert back.violations == VIOLATIONS
    else:
        assert back.message == error.message


def test_a_remedy_of_its_own(call):
    assert call(StudyExistsError("Taken.", remedy="Call it digits-2.")).remedy == "Call it digits-2."


@pytest.mark.parametrize("character", ["x", "é", "語", "\U0001f600", "\n"])
def test_hundreds_of_violations_fit_in_the_metadata(call, character):
    many = [
        Violation(
            field=f"space.{character * 30}{k}.low",
            message=character * 300,
            value=character * 80,
            remedy=character * 100,
        )
        for k in range(500)
    ]
    back = call(InvalidFieldError(many))
    assert isinstance(back, InvalidFieldError)
    assert 1 < len(back.violations) < 500
    assert "more fields are invalid" in back.violations[-1].message
    shown = len(back.violations) - 1
    assert back.violations[-1].message.startswith(str(500 - shown))


def test_a_very_long_message_fits(call):
    assert call(StudyExistsError("語" * 5000)).message.endswith("...")


def test_other_clients_find_standard_details():
    status = to_status(InvalidFieldError(VIOLATIONS))
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("headrace", "INVALID_FIELD")
    assert status.details[1].Unpack(request)
    assert [field.field for field in request.field_violations] == ["space.lr.low", "policy.eta", ""]
    assert "above high" in request.field_violations[0].description
    assert "Swap" in request.field_violations[0].description


def test_every_reason_is_in_the_catalogue():
    names = {name.removeprefix("ERROR_REASON_") for name in error_pb2.ErrorReason.keys()} - {"UNSPECIFIED"}  # noqa: SIM118
    assert {entry.reason for entry in CATALOGUE if entry.reason} == names


def test_every_error_is_in_the_catalogue_with_a_remedy():
    classes = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, HeadraceError) and value is not HeadraceError
    }
    assert {entry.error for entry in CATALOGUE} == classes
    assert all(entry.remedy.endswith(".") for entry in CATALOGUE)
    assert len({entry.error for entry in CATALOGUE}) == len(CATALOGUE)


class Bare(grpc.RpcError):
    """An error as gRPC makes it, without Headrace's details."""

    def __init__(self, code, details, trailing=()):
        self._code, self._details, self._trailing = code, details, trailing

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._trailing


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, UnreachableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineError),
        (grpc.StatusCode.CANCELLED, errors.CallCancelledError),
        (grpc.StatusCode.UNKNOWN, InternalError),
        (grpc.StatusCode.UNIMPLEMENTED, InternalError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, InternalError),
    ],
)
def test_without_details(code, error):
    found = from_rpc_error(Bare(code, "failed to\nconnect"))
    assert type(found) is error
    assert "failed to connect" in found.message


def test_a_message_that_grpc_refuses():
    text = "SERVER: Received message larger than max (5242880 vs. 4194304)"
    found = from_rpc_error(Bare(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
    assert type(found) is errors.TooLargeError
    assert "5242880" in found.message
    assert found.remedy.startswith("Ask for less")


def test_a_call_that_a_busy_server_drops_may_be_made_again():
    found = from_rpc_error(Bare(grpc.StatusCode.CANCELLED, "CANCELLED"))
    assert type(found) is errors.BusyError
    assert found.retryable


def test_a_status_that_grpc_lost_while_it_wrote_may_be_asked_for_again():
    found = from_rpc_error(Bare(grpc.StatusCode.INTERNAL, "Internal error from Core"))
    assert type(found) is errors.BusyError
    assert found.retryable


def test_a_call_that_an_older_server_does_not_have():
    found = from_rpc_error(Bare(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
    assert found.message.endswith(": Method not found.")
    assert found.remedy == "Update the server: it is older than this client."


@pytest.mark.parametrize(
    "trailing", [None, (), (("grpc-status-details-bin", b"\xff\xff"),), (("other", "x"),)]
)
def test_broken_details(trailing):
    assert type(from_rpc_error(Bare(grpc.StatusCode.UNAVAILABLE, None, trailing))) is UnreachableError


def test_a_naked_rpc_error():
    assert type(from_rpc_error(grpc.RpcError())) is InternalError


def test_a_subclass_goes_by_its_parent():
    class DigitsExistError(StudyExistsError):
        pass

    assert to_status(DigitsExistError("Taken.")).code == grpc.StatusCode.ALREADY_EXISTS.value[0]
    assert "choose another name" in DigitsExistError("Taken.").remedy


def test_an_error_of_an_unknown_class_is_internal():
    assert to_status(HeadraceError("what")).code == grpc.StatusCode.INTERNAL.value[0]


@pytest.mark.parametrize("error", list(examples()), ids=repr)
def test_errors_survive_a_process_boundary(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_how_it_reads():
    assert str(VIOLATIONS[0]) == "space.lr.low: is above high, which is 0.1 (got 0.5). Swap the two."
    assert str(InvalidFieldError(VIOLATIONS[:2])).count("\n") == 1
    assert InvalidFieldError(VIOLATIONS[:2]).message == "2 fields are invalid: space.lr.low, policy.eta."
    assert str(StudyExistsError("Taken.", remedy="Rename.")) == "Taken. Rename."
    assert str(StudyExistsError("'a' is taken", remedy="Rename.")) == "'a' is taken. Rename."
