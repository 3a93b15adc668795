"""The Go client has each of the server's reasons once: without Go, no other test here would notice."""

import re
from pathlib import Path

from headrace.v1 import error_pb2

ERRORS = Path(__file__).resolve().parents[2] / "clients/go/headrace/errors.go"
OF_THE_CLIENT = ["CANCELLED", "DEADLINE", "STUDY_OVER", "UNREACHABLE", "UNSUPPORTED"]


def test_every_reason_is_there_once() -> None:
    written = re.findall(r"^\s+(\w+) +Reason = \"(\w+)\"$", ERRORS.read_text(encoding="utf-8"), re.MULTILINE)
    reasons = error_pb2.ErrorReason.DESCRIPTOR.values
    names = [one.name.removeprefix("ERROR_REASON_") for one in reasons if one.number]
    assert sorted(reason for _, reason in written) == sorted([*names, *OF_THE_CLIENT])
    assert len({name for name, _ in written}) == len(written)
