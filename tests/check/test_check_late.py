"""`headrace check`: state missing at the start of a process's loop is lost only if it still differs at the next
report."""

import pytest

from headrace.check.compare import losses
from headrace.check.snapshot import Kind, Moment, Piece, Reported, SegmentResult, Snapshot


def looked(moment: Moment, step: int, averaged: int) -> Snapshot:
    piece = Piece(key="tracked swa", kind=Kind.VALUE, label="Swa", saved_as="swa", parts={"n": str(averaged)})
    return Snapshot(
        moment=moment, step=step, pieces=(piece,), variables={}, holders={}, defaults={}, iterators=()
    )


def process(resume_step: int, *seen: Snapshot) -> SegmentResult:
    reports = tuple(Reported(step=one.step, metrics={}) for one in seen if one.moment is Moment.REPORTED)
    return SegmentResult(attached=True, resume_step=resume_step, reports=reports, snapshots=seen)


STRAIGHT = process(
    0, looked(Moment.BEGUN, 0, 0), looked(Moment.REPORTED, 1, 3), looked(Moment.REPORTED, 2, 4)
)
FIRST = process(0, looked(Moment.BEGUN, 0, 0), looked(Moment.REPORTED, 1, 3))


@pytest.mark.parametrize(("then", "lost"), [(4, 0), (1, 1)], ids=["restored when it is used", "not restored"])
def test_what_is_the_same_again_at_the_next_report_is_no_loss(then: int, lost: int) -> None:
    chain = [FIRST, process(1, looked(Moment.BEGUN, 1, 0), looked(Moment.REPORTED, 2, then))]
    assert len(losses(chain)) == 1, "it is suspected"
    assert len(losses(chain, STRAIGHT)) == lost
    assert len(losses(chain, STRAIGHT, late=True)) == 1 - lost


def test_what_has_no_next_report_to_compare_is_lost_unless_it_came_back_elsewhere() -> None:
    short = [FIRST, process(1, looked(Moment.BEGUN, 1, 0))]
    assert len(losses(short, STRAIGHT)) == 1
    back = process(1, looked(Moment.BEGUN, 1, 0), looked(Moment.REPORTED, 2, 4))
    assert losses([FIRST, back, process(2, looked(Moment.BEGUN, 2, 0))], STRAIGHT) == ()
