"""The cost of a search: nothing is solved twice, only shortlist candidates are simulated, and large clusters are
quick."""

from collections import Counter

import pytest
from tiers import processor_time

from headrace_services.planner import asking, plan, search
from headrace_services.planner.asking import Options
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.modes import FULL, MODES, Mode
from headrace_services.planner.search import Method, Search

pytestmark = pytest.mark.full


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize(
    ("model", "cluster", "batch", "bound_s"),
    [("deepseek-141b", "ascend910-128", 2048, 1.0), ("megatron-1t", "a100-3072", 6144, 10.0)],
)
def test_large_clusters_take_seconds(
    model: str, cluster: str, batch: int, bound_s: float, method: Method
) -> None:
    """CPU seconds of what `headrace plan` requests: the plan and its shortlist."""
    asked = asking.request(model, cluster, Options(batch=batch))
    with processor_time(at_most_s=bound_s):
        found = Search(asked, method=method).near(FULL)
    assert found


def test_nothing_is_solved_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: Counter[tuple[Mode, Degrees]] = Counter()
    solve = search.problem_of

    def counting(costing: object, mode: Mode, degrees: Degrees) -> object:
        solved[mode, degrees] += 1
        return solve(costing, mode, degrees)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(search, "problem_of", counting)
    here = Search(asking.request("gpt3-175b", "a100-128", Options(batch=256)))
    here.near(FULL)
    for mode in MODES.values():
        here.run(mode)
    assert len(solved) > 20
    # The expert also asks what a tuple lacks that does not fit.
    assert {key for key, times in solved.items() if times > 1 and not key[0].greedy} == set()


def test_what_cannot_be_in_a_shortlist_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = 0
    simulate = plan.simulate

    def counting(*told: object) -> object:
        nonlocal simulated
        simulated += 1
        return simulate(*told)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(plan, "simulate", counting)
    here = Search(asking.request("gpt3-175b", "a100-128", Options(batch=256)))
    here.run(FULL)
    before = simulated
    found = here.near(FULL)
    assert simulated - before <= len(found)
