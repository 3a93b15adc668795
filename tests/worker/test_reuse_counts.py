"""What a worker says about the processes that it reuses."""

from headrace_worker.reuse_counts import Counts


def test_nothing_is_said_before_there_is_something() -> None:
    assert Counts().in_words() == ""


def test_each_kind_of_reason_is_counted() -> None:
    counts = Counts()
    counts.again = 46
    for kind in ("state", "left", "state", "trial", "what a program makes up"):
        counts.ended(kind)
    assert counts.in_words() == (
        "46 trials ran in a reused process; processes ended because: the trial changed its own modules (2), "
        "the trial left something behind (1), the trial failed, or its lease ended (1), another reason (1)"
    )
