"""The ladder for ending a client of MPS, and who is charged for a fault: the pure rules."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.mps import Card, ComputeMode, Control, Facts, closed, obstacle
from headrace.v1 import worker_pb2
from headrace_worker.exits import Verdict
from headrace_worker.mps_rules import (
    KEPT_S,
    LADDER,
    WINDOW_S,
    Blame,
    Company,
    Evidence,
    Rung,
    Step,
    evidence_of,
)

FAILED = Verdict(outcome=worker_pb2.EXIT_OUTCOME_FAILED, exit_code=1)
ASSERTION = "Indexing.cu:1: block: [0,0,0], thread: [1,0,0] Assertion `i < n` failed."
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"


def test_every_way_down_the_ladder_ends_with_a_kill() -> None:
    def ways(rung: Rung) -> set[tuple[Rung, ...]]:
        if rung is Rung.KILL:
            return {(rung,)}
        nexts = {LADDER[rung, step] for step in Step if (rung, step) in LADDER}
        assert nexts, f"{rung} leads nowhere"
        return {(rung, *rest) for one in nexts for rest in ways(one)}

    assert ways(Rung.TERMINATE) == {
        (Rung.TERMINATE, Rung.KILL),
        (Rung.TERMINATE, Rung.DRAIN, Rung.KILL),  # it left by itself, or nothing can be done
        (Rung.TERMINATE, Rung.DRAIN, Rung.RESTART, Rung.KILL),
    }


def test_nobody_is_disturbed_for_one_that_is_gone_or_that_nothing_can_be_done_about() -> None:
    for rung in (Rung.TERMINATE, Rung.DRAIN, Rung.RESTART):
        assert {LADDER[rung, step] for step in (Step.GONE, Step.POWERLESS)} == {Rung.KILL}


@pytest.mark.parametrize(
    ("verdict", "words", "evidence"),
    [
        (FAILED, "ValueError: loss is nan", Evidence.OWN),
        (FAILED, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", Evidence.OWN),
        (FAILED, ILLEGAL, Evidence.SHARED),
        (FAILED, "CUDA error: device-side assert triggered", Evidence.SHARED),
        (
            FAILED,
            f"{ASSERTION}\nCUDA error: device-side assert triggered",
            Evidence.ASSERTION,
        ),
        (FAILED, "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", Evidence.SHARED),
        (FAILED, "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorLaunchFailure", Evidence.SHARED),
        (FAILED, "[719] Call to cuMemFree results in CUDA_ERROR_LAUNCH_FAILED", Evidence.SHARED),
        (FAILED, "CUDA_ERROR_OUT_OF_MEMORY: out of memory", Evidence.OWN),
        (
            FAILED,
            "the remote procedural call between the MPS server and the MPS client failed",
            Evidence.SERVER,
        ),
        (FAILED, "CUDA_ERROR_MPS_CLIENT_TERMINATED", Evidence.SERVER),
        (FAILED, "the MPS server is not ready to accept new MPS client requests", Evidence.UNREADY),
        (FAILED, "cudaErrorMpsMaxClientsReached", Evidence.CROWDED),
        (
            FAILED,
            "the hardware resources required to create MPS client have been exhausted",
            Evidence.CROWDED,
        ),
        (FAILED, "Triton Error [CUDA]: an illegal memory access was encountered", Evidence.SHARED),
        (FAILED, "CUDA driver error: unknown error", Evidence.SHARED),
        (FAILED, "CUDA error: operation not supported on global/shared address space", Evidence.SHARED),
        (FAILED, "RuntimeError: cuFFT error: CUFFT_EXEC_FAILED", Evidence.SHARED),
        (FAILED, "OSError: unknown error", Evidence.OWN),
        (Verdict(outcome=worker_pb2.EXIT_OUTCOME_LOST, exit_code=137), "Killed", Evidence.CRASHED),
        (Verdict(outcome=worker_pb2.EXIT_OUTCOME_FAILED, exit_code=139), "", Evidence.CRASHED),
        (
            Verdict(outcome=worker_pb2.EXIT_OUTCOME_FAILED, exit_code=-signal.SIGABRT),
            ILLEGAL,
            Evidence.SHARED,
        ),
        (Verdict(outcome=worker_pb2.EXIT_OUTCOME_LOST, exit_code=-signal.SIGKILL), "", Evidence.CRASHED),
        (Verdict(outcome=worker_pb2.EXIT_OUTCOME_RELEASED, exit_code=-signal.SIGTERM), "", Evidence.CLEAN),
        (Verdict(outcome=worker_pb2.EXIT_OUTCOME_FINISHED), ILLEGAL, Evidence.CLEAN),
    ],
)
def test_what_an_end_says(verdict: Verdict, words: str, evidence: Evidence) -> None:
    assert evidence_of(verdict, words) is evidence


def _company(*clients: str, card: str = "GPU-0") -> Company:
    company = Company()
    for client in clients:
        company.joins(client, [card], f"trial {client}", 0.0)
    return company


def _blames(company: Company, *clients: str) -> list[Blame]:
    return [company.blame(client)[0] for client in clients]


def test_one_end_while_the_others_train_on_is_its_own() -> None:
    company = _company("a", "b")
    company.ends("a", Evidence.SHARED, 1.0)
    assert company.blame("a") == (Blame.OWN, "")
    assert not company.was_alone("a")


def test_two_ends_in_the_words_of_a_fault_are_an_event_of_all_who_were_there() -> None:
    company = _company("a", "b", "late")
    company.ends("a", Evidence.SHARED, 1.0)
    company.ends("b", Evidence.SHARED, 1.2)
    assert _blames(company, "a", "b") == [Blame.NOBODY, Blame.NOBODY]
    company.ends("late", Evidence.SHARED, 300.0)
    assert company.blame("late")[0] is Blame.NOBODY, "it notices the fault at its next call"
    assert company.faults == 1


def test_a_card_is_not_struck_by_the_fault_of_another() -> None:
    company = _company("a", "b")
    company.joins("c", ["GPU-1"], "trial c", 0.0)
    for client in "abc":
        company.ends(client, Evidence.SHARED, 1.0)
    assert company.blame("c")[0] is Blame.OWN
    assert company.was_alone("c")


def test_two_faults_of_two_trials_hours_apart_are_their_own() -> None:
    company = _company("a", "b", "c")
    company.ends("a", Evidence.SHARED, 1.0)
    company.ends("b", Evidence.SHARED, 1.0 + WINDOW_S + 1)
    assert _blames(company, "a", "b") == [Blame.OWN, Blame.OWN]


def test_a_crash_explains_the_fault_of_the_only_other_trial_although_the_server_has_recovered() -> None:
    company = _company("a", "b")
    company.ends("a", Evidence.CRASHED, 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    assert [company.blame(client) for client in "ab"] == [(Blame.OWN, ""), (Blame.ANOTHER, "trial a")]
    company = _company("a", "b")
    company.exits("a", 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    company.ends("a", Evidence.CRASHED, 1.5)
    assert [company.blame(client) for client in "ab"] == [(Blame.OWN, ""), (Blame.ANOTHER, "trial a")]


def test_an_exception_explains_no_fault() -> None:
    company = _company("a", "b", "c")
    company.ends("a", Evidence.OWN, 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    assert _blames(company, "a", "b") == [Blame.OWN, Blame.OWN]
    company.server_failed("b", 1.2)
    company.ends("c", Evidence.SHARED, 2.0)
    assert _blames(company, "b", "c") == [Blame.NOBODY] * 2, "its process let go of the card in good order"


def test_two_crashes_are_no_fault() -> None:
    company = _company("a", "b")
    company.ends("a", Evidence.CRASHED, 1.0)
    company.ends("b", Evidence.CRASHED, 1.1)
    assert _blames(company, "a", "b") == [Blame.OWN, Blame.OWN]


@pytest.mark.parametrize("first", [Evidence.CRASHED, Evidence.ASSERTION])
def test_who_ended_before_the_others_in_its_own_way_is_the_culprit(first: Evidence) -> None:
    company = _company("a", "b", "c")
    company.ends("a", first, 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    company.server_failed("b", 1.2)
    company.ends("c", Evidence.SHARED, 5.0)
    assert company.blame("a") == (Blame.OWN, "")
    assert [company.blame(client) for client in "bc"] == [(Blame.ANOTHER, "trial a")] * 2


def test_the_order_is_that_of_the_exits_not_of_what_is_known_about_them() -> None:
    company = _company("a", "b")
    company.exits("a", 1.0)
    company.exits("b", 1.1)
    company.ends("b", Evidence.SHARED, 1.3)
    company.server_failed("b", 1.4)
    assert not company.is_settled("b")
    company.ends("a", Evidence.CRASHED, 2.0)
    assert company.is_settled("b")
    assert company.blame("b") == (Blame.ANOTHER, "trial a")


def test_who_crashes_after_the_fault_has_shown_is_not_its_cause() -> None:
    company = _company("a", "b", "c")
    company.ends("a", Evidence.SHARED, 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    company.ends("c", Evidence.CRASHED, 1.2)
    assert _blames(company, "a", "b", "c") == [Blame.NOBODY] * 3


def test_a_failed_assertion_is_the_cause_even_if_it_is_read_last() -> None:
    company = _company("a", "b", "c")
    company.ends("b", Evidence.SHARED, 1.0)
    company.ends("c", Evidence.SHARED, 1.1)
    company.ends("a", Evidence.ASSERTION, 1.2)
    assert _blames(company, "a", "b", "c") == [Blame.OWN, Blame.ANOTHER, Blame.ANOTHER]


def test_who_ended_well_before_a_fault_was_not_there() -> None:
    company = _company("a", "b", "c")
    company.ends("a", Evidence.CLEAN, 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    company.ends("c", Evidence.SHARED, 1.2)
    assert company.blame("a")[0] is Blame.OWN
    assert _blames(company, "b", "c") == [Blame.NOBODY] * 2


def test_what_a_restart_ends_is_the_workers_doing() -> None:
    company = _company("a", "b")
    company.restarts(0.5)
    company.ends("a", Evidence.SHARED, 1.0)
    company.ends("b", Evidence.SHARED, 1.0)
    assert _blames(company, "a", "b") == [Blame.WORKER] * 2
    assert company.faults == 0


def test_a_restart_that_failed_excuses_nobody() -> None:
    company = _company("a", "b")
    company.withdraw(company.restarts(0.5))
    company.ends("a", Evidence.SHARED, 1.0)
    assert _blames(company, "a") == [Blame.OWN]


def test_what_a_trial_says_after_it_was_taken_off_the_card_is_no_fault() -> None:
    company = _company("a", "b")
    company.taken_off("a")
    company.ends("a", Evidence.SERVER, 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    assert _blames(company, "a", "b") == [Blame.OWN, Blame.OWN]
    assert company.faults == 0


def test_the_death_of_the_server_is_never_the_error_of_a_trial_alone_on_its_card() -> None:
    company = _company("a")
    company.joins("c", ["GPU-1"], "trial c", 0.0)
    company.ends("c", Evidence.SERVER, 1.0)
    assert _blames(company, "c") == [Blame.NOBODY]
    company.ends("a", Evidence.SERVER, 300.0)
    assert _blames(company, "a") == [Blame.NOBODY], "all cards lose their server with one"
    assert company.faults == 1


def test_who_crashes_long_after_a_fault_crashes_by_itself() -> None:
    company = _company("a", "b", "c", "d")
    company.ends("a", Evidence.SHARED, 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    company.ends("c", Evidence.CRASHED, 2.0)
    company.ends("d", Evidence.CRASHED, 1.0 + WINDOW_S + 1)
    assert [company.in_event(client, within_s=WINDOW_S) for client in "cd"] == [True, False]


def test_who_survives_a_fault_answers_for_the_next_one() -> None:
    company = _company("a", "b", "survivor")
    company.ends("a", Evidence.SHARED, 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    company.ends("survivor", Evidence.SHARED, 1.0 + KEPT_S + 1)
    assert _blames(company, "survivor") == [Blame.OWN]


def test_a_client_on_two_cards_is_there_at_the_faults_of_both() -> None:
    company = _company("a")
    company.joins("both", ["GPU-0", "GPU-1"], "trial both", 0.0)
    company.ends("both", Evidence.CRASHED, 1.0)
    company.ends("a", Evidence.SHARED, 1.1)
    assert company.blame("a") == (Blame.ANOTHER, "trial both")


@pytest.mark.parametrize("known", ["abc", "bac", "bca"])
def test_what_a_killed_client_does_to_others_is_the_workers_doing_if_its_work_could_not_be_ended(
    known: str,
) -> None:
    company = _company("a", "b", "c")
    company.taken_off("a")
    company.harms("a", 1.0)
    for place, client in enumerate(known):  # its own end may be the last that is known
        company.ends(client, Evidence.CRASHED if client == "a" else Evidence.SHARED, 1.0 + place / 10)
    assert _blames(company, "a", "b", "c") == [Blame.OWN, Blame.WORKER, Blame.WORKER]


@pytest.mark.parametrize("known", ["ab", "ba"])
def test_who_ended_by_itself_and_left_processes_behind_is_not_charged_for_their_end(known: str) -> None:
    company = _company("a", "b")
    company.exits("a", 1.0)
    company.harms("a", 1.0)
    for place, client in enumerate(known):
        company.ends(client, Evidence.SHARED, 1.0 + place / 10)
    assert _blames(company, "a", "b") == [Blame.WORKER, Blame.WORKER]
    assert company.faults == 1
    assert company.is_settled("a")


def test_a_killed_client_whose_end_never_becomes_known_excuses_nobody_later() -> None:
    company = _company("a", "b")
    company.taken_off("a")
    company.harms("a", 1.0)
    company.ends("b", Evidence.SHARED, 1.0 + 2 * WINDOW_S)
    assert _blames(company, "b") == [Blame.OWN]


def test_an_event_is_settled_by_its_culprit_or_by_the_ends_of_all() -> None:
    company = _company("a", "b", "c")
    company.ends("a", Evidence.SHARED, 1.0)
    company.ends("b", Evidence.SHARED, 1.1)
    assert not company.is_settled("a"), "the third may say that it was the cause"
    company.ends("c", Evidence.ASSERTION, 1.5)
    assert company.is_settled("a")
    assert company.blame("a") == (Blame.ANOTHER, "trial c")


FACTS = Facts(pipe=Path("/run/headrace/mps"), binary="/usr/bin/nvidia-cuda-mps-control")


@pytest.mark.parametrize(
    ("changed", "uid", "trials_uid", "says"),
    [
        ({}, 0, 0, ""),
        ({}, 0, 1000, ""),
        ({"driver": "580.65.06"}, 0, 0, ""),
        ({"binary": None}, 0, 0, "nvidia-cuda-mps-control is not on the PATH. Install it"),
        ({"driver": "470.57.02"}, 0, 0, "driver 470.57.02 cannot limit the memory"),
        ({"control": Control(pid=7, uid=0)}, 1000, 1000, ""),
        ({"control": Control(pid=7, uid=1001)}, 1000, 1000, "(process 7) belongs to user 1001"),
        ({"control": Control(pid=7, uid=1001)}, 0, 1000, "(process 7) belongs to user 1001"),
        ({"pipe_uid": 1001}, 1000, 1000, "belongs to user 1001, and no control daemon runs there"),
        ({}, 1000, 1001, "trials run as user 1001, whom a control daemon of user 1000 does not serve"),
        ({"pipe": FACTS.pipe / ("x" * 90)}, 0, 0, "more than 90 bytes"),
    ],
)
def test_what_keeps_a_machine_from_sharing_its_gpus(
    changed: dict[str, object], uid: int, trials_uid: int, says: str
) -> None:
    found = obstacle(replace(FACTS, **changed), uid=uid, trials_uid=trials_uid)  # type: ignore[arg-type]  # fields by name, from the table
    assert says in str(found) if says else found is None


def test_a_card_that_accepts_one_process_is_not_shared_and_its_mode_stays_as_it_is() -> None:
    exclusive = Card(uuid="GPU-1", mode=ComputeMode.EXCLUSIVE)
    prohibited = Card(uuid="GPU-2", mode=ComputeMode.PROHIBITED)
    facts = replace(FACTS, cards=(exclusive, Card(uuid="GPU-0"), prohibited))
    first, second = closed(facts)
    assert first.text == (
        "GPU GPU-1 is in exclusive mode and accepts one process at a time, so trials cannot share it"
    )
    assert "compute-mode=DEFAULT" in first.remedy
    assert "GPU-2 is in prohibited mode" in second.text
    of_worker = replace(facts, control=Control(pid=7, uid=0, owner="home-1"))
    assert len(closed(of_worker)) == 2, "trials with whole GPUs are no clients of it"
    assert closed(replace(facts, control=Control(pid=7, uid=0))) == [second], "an administrator's serves all"


def test_the_folder_must_be_open_to_the_trials_user() -> None:
    found = obstacle(FACTS, uid=0, trials_uid=1000, enters=False)
    assert "the trials' user 1000 cannot enter the MPS folder /run/headrace/mps" in str(found)
