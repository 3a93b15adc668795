"""Reads study files, and lists what is wrong with them."""

import textwrap

import pytest

from headrace.errors import InvalidFieldError
from headrace.spec import (
    load_study_file,
)


@pytest.fixture
def load(tmp_path):
    def load(text, name="study.yaml"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return load_study_file(path)

    return load


@pytest.fixture
def faults(load):
    def faults(text):
        with pytest.raises(InvalidFieldError) as raised:
            load(text)
        return {violation.field: violation for violation in raised.value.violations}

    return faults
