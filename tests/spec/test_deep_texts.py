"""Input from others may be nested to any depth. Every reader refuses it with an error of its own."""

import hashlib

import pytest

from headrace.checkpoints.errors import CheckpointCorruptError
from headrace.checkpoints.manifest import parse_manifest
from headrace.errors import InvalidFieldError
from headrace.spec.yaml import read_yaml
from headrace.trial import ends
from headrace.userfile import parse_json
from headrace.v1 import trial_pb2
from headrace_worker.code_cache import UnpreparedError
from headrace_worker.pythons import Pythons

DEEP = "[" * 50_000 + "]" * 50_000


def test_json() -> None:
    for text in (DEEP, DEEP.encode(), '{"a":' * 50_000 + "1" + "}" * 50_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(text)


@pytest.mark.parametrize("text", [DEEP, "- " * 50_000 + "x", "{a: " * 50_000 + "}" * 50_000])
def test_a_study_file(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="nested deeper"):
        read_yaml(text)


def test_the_manifest_of_a_checkpoint() -> None:
    data = DEEP.encode()
    ref = trial_pb2.CheckpointRef(uri="file:///c/1", manifest_sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(CheckpointCorruptError, match="nested too deeply"):
        parse_manifest(data, ref)


def test_the_last_word_of_a_rank() -> None:
    assert ends.heard(DEEP.encode() + b"\n", 1) is None


async def test_what_an_interpreter_says_of_itself() -> None:
    async def output_of(_: tuple[str, ...]) -> bytes:
        return DEEP.encode() + b"\n"

    with pytest.raises(UnpreparedError, match="nested too deeply"):
        await Pythons({}, output_of).base("/usr/bin/python")
