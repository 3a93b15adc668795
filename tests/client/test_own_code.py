"""What an ask/tell program reports of its code, once per lease."""

from collections import OrderedDict

import pytest

from headrace.client import own_code
from headrace.sources import SourceFile

MODEL, LOSS = SourceFile("model.py", "1"), SourceFile("loss.py", "2")


class Watched:
    """The files that a program imports, as set by a test."""

    def __init__(self) -> None:
        self.new: list[SourceFile] = []

    def new_files(self) -> list[SourceFile]:
        taken, self.new = self.new, []
        return taken


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched()
    monkeypatch.setattr(own_code, "_files", [])
    monkeypatch.setattr(own_code, "_told", OrderedDict())
    monkeypatch.setattr(own_code, "watch", lambda: found)
    return found


def untold(lease: str) -> list[str]:
    code = own_code.untold(lease)
    return [file.path for file in code.files] if code is not None else []


def test_each_lease_is_told_each_file_once(watched: Watched) -> None:
    watched.new = [MODEL]
    for lease in ("one", "two"):
        own_code.told(lease, own_code.untold(lease))
        assert untold(lease) == []
    watched.new = [LOSS]
    assert untold("one") == untold("two") == ["loss.py"]


def test_two_reports_of_a_lease_at_once_skip_no_file(watched: Watched) -> None:
    watched.new = [MODEL]
    first, second = own_code.untold("one"), own_code.untold("one")
    assert first == second
    own_code.told("one", first)
    own_code.told("one", second)
    watched.new = [LOSS]
    assert untold("one") == ["loss.py"]


def test_an_answer_that_comes_late_takes_nothing_back(watched: Watched) -> None:
    watched.new = [MODEL]
    early = own_code.untold("one")
    watched.new = [LOSS]
    own_code.told("one", own_code.untold("one"))
    own_code.told("one", early)
    assert untold("one") == []
