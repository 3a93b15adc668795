"""What the commands of `headrace launch` share: options that are refused, and what a turn says."""

import pytest

from headrace.cli.launching import _said, kind_of, scheduler_for
from headrace.errors import InvalidFieldError
from headrace.launch.decision import Decision
from headrace.launch.engine import Member, Stage
from headrace.launch.loop import Cluster, Turn
from headrace.target import Target


def found(*whys: str, resting: frozenset[int] = frozenset()) -> Turn:
    members = tuple(
        Member(seat=seat, id=f"{seat}", stage=Stage.PENDING, worker="w", why=why)
        for seat, why in enumerate(whys)
    )
    cluster = Cluster(needs=(), free=(), connected=frozenset())
    return Turn(cluster=cluster, members=members, decision=Decision(), resting=resting)


def test_the_reasons_of_pending_members_are_shown_together() -> None:
    said = _said(found("Priority", "Resources", "Priority", ""), 8)
    assert said.endswith("; 2 pending because of Priority; 1 pending because of Resources")
    assert "because" not in _said(found(""), 8)


def test_seats_that_rest_are_explained() -> None:
    assert "2 workers ended and never connected" in _said(found(resting=frozenset({0, 3})), 8)


def test_a_label_that_begins_like_headrace_s_own_is_refused_before_any_worker_refuses_it() -> None:
    with pytest.raises(InvalidFieldError, match="begins like Headrace's own labels"):
        kind_of(0, 1, ["headrace/ephemeral=no"])


def test_workers_reach_a_scheduler_with_certificates_over_tls_alone() -> None:
    secure = Target.of("tls://head:7440")
    assert scheduler_for(None, secure) == "tls://head:7440"
    assert scheduler_for("tls://other:7440", secure) == "tls://other:7440"
    assert scheduler_for("other:7440", Target.of("head:7440")) == "other:7440"
    with pytest.raises(InvalidFieldError, match=r"Write tls://other:7440"):
        scheduler_for("other:7440", secure)
