"""The backstop's judgement, and an agent's conclusions about a stage and about a job."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace_services.bubble_agent.backstop import LAST, Action, GateSeen, Record, judge
from headrace_services.bubble_agent.budget import DISABLED, LEVELS
from headrace_services.bubble_agent.job import Job, PeerSaid
from headrace_services.bubble_agent.stage import MemorySeen, Registration, StepSeen, WindowSeen

MS = 1_000_000
CLOSED = GateSeen(open=False, ran=10 * MS, waiting=False, collective=False, quantum=MS)


def test_a_trial_that_runs_two_quanta_after_its_gate_is_stopped_and_continues_with_the_next_window() -> None:
    assert judge(Record(), replace(CLOSED, ran=2 * MS)) == (Record(), [])
    record, actions = judge(Record(), replace(CLOSED, ran=2 * MS + 1))
    assert actions == [Action.STOP]
    assert judge(record, CLOSED) == (record, [])
    record, actions = judge(record, replace(CLOSED, open=True))
    assert (record, actions) == (Record(offences=1), [Action.CONTINUE])


def test_a_trial_is_not_stopped_while_it_waits_or_is_inside_a_collective() -> None:
    assert judge(Record(), replace(CLOSED, waiting=True)) == (Record(), [])
    assert judge(Record(), replace(CLOSED, collective=True)) == (Record(), [])


def test_three_offences_evict_once() -> None:
    record, told = Record(), []
    for _ in range(LAST - 1):
        record, actions = judge(record, CLOSED)
        told += actions
        record, _ = judge(record, replace(CLOSED, open=True))
    assert told.count(Action.STOP) == 5
    assert told.count(Action.EVICT) == 1
    assert told.index(Action.EVICT) == 2
    record, _ = judge(record, CLOSED)
    assert judge(record, replace(CLOSED, open=True)) == (record, []), "the sixth stop is the last"


@given(st.integers(0, 10**12))
def test_a_trial_cannot_claim_patience(quantum: int) -> None:
    late = replace(CLOSED, ran=101 * MS, quantum=quantum)
    assert judge(Record(), late)[1] == [Action.STOP]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 100 * MS))))
def test_stops_and_continues_take_turns(history: list[tuple[bool, bool, bool, int]]) -> None:
    record, signals = Record(), []
    for is_open, waiting, collective, age in history:
        seen = replace(CLOSED, open=is_open, waiting=waiting, collective=collective, ran=age)
        record, actions = judge(record, seen)
        signals += [one for one in actions if one is not Action.EVICT]
    assert signals == [Action.STOP, Action.CONTINUE] * (len(signals) // 2) + [Action.STOP] * (
        len(signals) % 2
    )


def registration(stage: int = 0, *, micro_batches: int = 4, pid: int = 1) -> Registration:
    return Registration(
        job="gpt", replica=0, stage=stage, stages=2, micro_batches=micro_batches, device="cpu", pid=pid
    )


def fed(job: Job, key: tuple[int, int], *, steps: int, window: int = 20 * MS, control: bool = False) -> None:
    for number in range(steps):
        began = number * 100 * MS
        windows = [WindowSeen(step=number, slot=2, began=began, ended=began + window, generation=0)]
        job.observe(
            key, windows, [StepSeen(step=number, began=began, ended=began + 100 * MS, control=control)]
        )


def test_a_stage_is_ordered_what_it_has_shown() -> None:
    job = Job("gpt")
    stage = job.register(registration())
    assert stage.orders(LEVELS[0], quantum=MS).table == {}
    fed(job, (0, 0), steps=10)
    orders = stage.orders(LEVELS[0], quantum=MS)
    assert orders.table == {2: 20 * MS}
    assert stage.duty(orders) == 0.2
    assert stage.waiting_share() == 0.2
    assert stage.orders(LEVELS[1], quantum=MS).table == {2: 10 * MS}
    for number in range(10, 19):
        began = number * 100 * MS
        window = WindowSeen(step=number, slot=4, began=began, ended=began + 30 * MS, generation=0)
        step = StepSeen(step=number, began=began, ended=began + 100 * MS, control=False)
        job.observe((0, 0), [window], [step])
    assert stage.orders(LEVELS[0], quantum=7 * MS).table == {4: 30 * MS}, (
        "the other has fewer than three quanta"
    )
    assert stage.orders(LEVELS[0], quantum=70 * MS).table == {4: 30 * MS}, "the longest one is always tried"
    assert stage.orders(LEVELS[DISABLED], quantum=MS).table == {}


def test_hints_learn_their_lag() -> None:
    job = Job("gpt")
    stage = job.register(registration())
    for number in range(6):
        began = number * 100 * MS
        stage.hint(number, 2, began + 15 * MS)
        windows = [WindowSeen(step=number, slot=2, began=began, ended=began + 20 * MS, generation=0)]
        job.observe((0, 0), windows, [])
    assert stage.hint(7, 2, 700 * MS) == 705 * MS
    # A pass that starts before the wait still predicts its end; one that had ended before predicts nothing.
    for number in range(8, 130):
        began = number * 100 * MS
        stage.hint(number, 2, began - 10 * MS)
        length = 0 if number % 2 else 20 * MS
        windows = [WindowSeen(step=number, slot=2, began=began, ended=began + length, generation=0)]
        job.observe((0, 0), windows, [])
    assert stage.hint(200, 2, 20_000 * MS) == 20_030 * MS


def test_free_memory_needs_five_steps() -> None:
    job = Job("gpt")
    stage = job.register(registration())
    stage.memory = MemorySeen(free=1000, reserved=100, peak=300)
    fed(job, (0, 0), steps=4)
    assert stage.free_bytes() == 0
    fed(job, (0, 0), steps=1)
    assert stage.free_bytes() == 760


def test_ranks_that_disagree_are_named_wherever_they_are() -> None:
    job = Job("gpt")
    job.register(registration())
    job.register(registration(1))
    assert job.disagreement() == ""
    job.register(registration(1, micro_batches=8))
    assert "stage 1 of replica 0 says 2 stages and 8 micro-batches" in job.disagreement()
    job.register(registration(1))
    job.peer("10.0.0.2:7442", PeerSaid(stages=4, micro_batches=4))
    assert "agent 10.0.0.2:7442 says 4 stages" in job.disagreement()


def test_a_primary_that_starts_again_is_relearnt() -> None:
    job = Job("gpt")
    job.register(registration())
    job.controller.alarm("memory")
    job.register(registration(1))
    assert job.controller.disabled
    job.register(registration(pid=2))
    assert not job.controller.disabled
