"""`headrace check` on functions with an lru_cache that a pause empties, and on those for which that loses nothing."""

from collections.abc import Callable

import pytest

from headrace.check import CheckReport, render

Check = Callable[..., CheckReport]

CACHED = """
import functools
from headrace import trial

LAST = [0.0]

@functools.lru_cache(None)
def first_loss(decade):
    return LAST[0]

def train(t):
    t.state.setdefault("value", 1.0)
    LAST[0] = t.state.setdefault("LAST", 0.0)
    for step in t.steps():
        t.state["value"] *= 1 - t.params["lr"]
        LAST[0] = t.state["LAST"] = t.state["value"]
        t.report(loss=t.state["value"] / first_loss(step // 10))

if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.1}, steps=9)
"""
NOT_KEPT = (
    ('    LAST[0] = t.state.setdefault("LAST", 0.0)\n', ""),
    ('LAST[0] = t.state["LAST"] = ', "LAST[0] = "),
)


def test_a_cache_that_a_pause_empties_is_named_as_a_suspicion(check: Check) -> None:
    (missing,) = check(source=CACHED).missing
    assert missing.finding == (
        "the cache of function `first_loss` (functools) holds 1 result when saved, and no results after the restore: "
        "what it computes again may differ"
    )
    assert missing.remedy.startswith(
        "make first_loss(...) depend on its arguments alone, without random numbers"
    )
    assert missing.remedy.endswith("or keep its results in t.state in place of the cache")


def test_a_cache_comes_before_a_variable_that_each_step_writes(check: Check) -> None:
    report = check(*NOT_KEPT, source=CACHED)
    cache, variable = report.missing
    assert "cache of function `first_loss`" in cache.finding
    assert "variable `LAST`" in variable.finding
    assert "     - perhaps each step writes it before it is read" in render(report)


@pytest.mark.parametrize("returned", ["2.0", "0.5 + decade"])
def test_a_cache_that_computes_the_same_again_is_no_loss(check: Check, returned: str) -> None:
    report = check(("return LAST[0]", f"return {returned}"), source=CACHED)
    assert (report.passed, report.warnings) == (True, ())


def test_a_variable_is_not_doubted_where_no_cache_is_suspected(check: Check) -> None:
    report = check(
        ("t.report(loss=", "loss, LAST[1] = LAST[1], t.state['value']; t.report(loss="),
        ("first_loss(step // 10))", "loss)"),
        ("LAST = [0.0]", "LAST = [0.0, 1.0]"),
        source=CACHED,
    )
    (missing,) = report.missing
    assert ("variable `LAST`" in missing.finding, missing.evidence) == (True, ())
