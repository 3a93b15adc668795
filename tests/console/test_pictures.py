"""What the server draws: attempts on slots, and the lineage of a population."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.client.events import Event, TrialMoved
from headrace.client.model import TrialState
from headrace.report.data import Stay, stays
from headrace.spec import CategoricalDomain, FloatDomain
from headrace_services.console.pages import gantt, lineage

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def stay(
    trial: int, start_s: float, end_s: float, *, slots: tuple[int, ...] = (0,), ending: str = "paused"
) -> Stay:
    return Stay(
        trial=trial,
        worker="node",
        slots=slots,
        start=BEGAN + timedelta(seconds=start_s),
        end=BEGAN + timedelta(seconds=end_s),
        ending=ending,
        detail="<b>why</b>\nmore",
    )


def test_attempts_lie_on_their_slots_in_percent_of_the_time() -> None:
    found = gantt.picture([stay(0, 0, 5), stay(1, 5, 10, slots=(0, 1), ending="completed")])
    assert [name for name, _ in found.rows] == ["node, slot 0", "node, slot 1"]
    assert [(bar.trial, bar.left, bar.width) for bar in found.bars] == [(0, 0, 50), (1, 50, 50), (1, 50, 50)]
    assert found.bars[1].top < found.bars[2].top
    assert found.endings == ("completed", "paused")
    assert found.bars[0].text.endswith("then paused\n<b>why</b>")
    assert [text for _, text in found.ticks][-1] == "10 s"


@pytest.mark.parametrize(
    ("action", "ending"),
    [("pause", "paused"), ("vacate", "paused"), ("interrupt", "interrupted"), ("retry", "failed")],
)
def test_an_attempt_ends_as_what_broke_it_off(action: str, ending: str) -> None:
    def event(second: int, source: TrialState, target: TrialState, action: str) -> Event:
        moved = TrialMoved(
            from_state=source,
            to_state=target,
            action=action,
            attempt=1,
            worker="node",
            slots=(0,),
            reason=None,
            detail="",
        )
        time = BEGAN + timedelta(seconds=second)
        return Event(cursor=second, time=time, trial=0, message="", detail=moved)

    events = (
        event(1, TrialState.PENDING, TrialState.RUNNING, "launch"),
        event(2, TrialState.RUNNING, TrialState.PENDING, action),
    )
    assert [one.ending for one in stays(events)] == [ending]


def test_a_short_attempt_is_visible_and_inside() -> None:
    found = gantt.picture([stay(0, 0, 1000), stay(1, 1000, 1000)])
    last = found.bars[-1]
    assert last.width == gantt.NARROWEST
    assert last.left + last.width <= 100


def test_only_the_last_attempts_are_drawn_and_the_number_of_others_is_known() -> None:
    found = gantt.picture([stay(n, n, n + 1) for n in range(gantt.MOST_BARS + 7)])
    assert (len(found.bars), found.left_out) == (gantt.MOST_BARS, 7)


def member(number: int, step: int, params: dict[str, Any], *copies: Any) -> Any:
    return SimpleNamespace(
        number=number, step=step, params=params, last_params=params, lineage=copies, other_code=()
    )


def test_a_copy_leads_from_the_donors_value_to_the_mutated_one() -> None:
    copied = SimpleNamespace(
        rung=0,
        step=5,
        donor=0,
        params={"lr": 0.1, "opt": "sgd"},
        previous_params={"lr": 0.001, "opt": "adam"},
    )
    members = [member(0, 10, {"lr": 0.01, "opt": "sgd"}), member(1, 10, {"lr": 0.1, "opt": "sgd"}, copied)]
    space = {"lr": FloatDomain(low=1e-4, high=1, log=True), "opt": CategoricalDomain(values=("adam", "sgd"))}
    lr, opt = lineage.panels(members, space, 1, 10)
    assert (lr.name, lr.low, lr.high) == ("lr", "0.001", "0.1")
    assert (opt.low, opt.high) == ("adam", "sgd")
    (copy,) = [line for line in lr.lines if line.kind == "copy"]
    assert copy.x1 == copy.x2 == 50
    assert copy.y1 > copy.y2, "0.01 lies below 0.1"
    best = [line for line in lr.lines if line.kind == "best"]
    assert [(line.x1, line.x2) for line in best] == [(0, 50), (50, 100)]
    assert "trial 0" in best[0].text, "the state that trial 1 copied was trained by trial 0"


def test_without_a_copy_there_is_no_panel() -> None:
    assert lineage.panels([member(0, 3, {"lr": 0.1})], {"lr": FloatDomain(low=0.0, high=1)}, 0, 3) == []
