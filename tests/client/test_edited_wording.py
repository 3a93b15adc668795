"""What is said of a trial that ran other code than its study began with."""

from dataclasses import replace

import pytest

from headrace.client.convert import trial as client_trial
from headrace.client.model import EarlierEnd, TerminationReason
from headrace.client.wording import other_code, result_of_other_code
from headrace.v1 import trial_pb2


@pytest.mark.parametrize("edited", ["", "train.py"])
def test_a_result_from_before_an_edit_is_not_doubted(edited: str) -> None:
    code = (edited,) if edited else ()
    end = EarlierEnd(
        reason=TerminationReason.COMPLETED,
        step=9,
        budget=9,
        score=0.5,
        score_step=9,
        metrics={},
        checkpoint=None,
        ended=None,
        code_changed=code,
    )
    trial = replace(client_trial(trial_pb2.Trial(name="studies/s/trials/0")), code_changed=("train.py",))
    assert result_of_other_code(trial)
    continued = replace(trial, earlier_ends=(end,), counted_end=end)
    assert result_of_other_code(continued) is bool(edited)
    assert ("after the result that counts" in other_code(continued)) is not bool(edited)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (("a.py",), "ran other code than the study began with: a.py"),
        (
            ("a.py?",),
            "may have run other code than the study began with: a.py? (changed while the program was starting)",
        ),
        (
            ("a.py", "b.py?"),
            "ran other code than the study began with: a.py, b.py? (changed while the program was starting)",
        ),
    ],
)
def test_a_version_that_is_not_known_is_told_as_such(listed: tuple[str, ...], said: str) -> None:
    trial = replace(client_trial(trial_pb2.Trial(name="studies/s/trials/0")), code_changed=listed)
    assert other_code(trial) == said
