"""What is shown of a trial that ran other code than its study started with."""

import pytest

from headrace.client.convert import trial as client_trial
from headrace.client.wording import other_code
from headrace.v1 import trial_pb2


@pytest.mark.parametrize("doubted", [False, True])
def test_a_result_from_before_an_edit_is_not_doubted(doubted: bool) -> None:
    proto = trial_pb2.Trial(
        name="studies/s/trials/0", code_changed=["train.py"], result_of_other_code=doubted
    )
    trial = client_trial(proto)
    assert trial.result_of_other_code is doubted
    assert ("after the result that counts" in other_code(trial)) is not doubted


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (("a.py",), "ran other code than the study started with: a.py"),
        (
            ("a.py?",),
            "may have run other code than the study started with: a.py? (changed while the program was starting)",
        ),
        (
            ("a.py", "b.py?"),
            "ran other code than the study started with: a.py, b.py? (changed while the program was starting)",
        ),
    ],
)
def test_a_version_that_is_not_known_is_reported_as_such(listed: tuple[str, ...], said: str) -> None:
    trial = client_trial(
        trial_pb2.Trial(name="studies/s/trials/0", code_changed=listed, result_of_other_code=True)
    )
    assert other_code(trial) == said
