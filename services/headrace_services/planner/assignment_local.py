"""Level 2 as the paper has it: a local search over stages and recomputed layers (H²O, section 2, Algorithm 1).

The paper says that it "adaptively balances recomputation strategies and layer-stage assignment" and no more. This one
begins with equal stages and everything recomputed where that is needed, then takes the first improvement among: move
a boundary by one layer, stop recomputing a layer, recompute one more. It is offered for comparison with
`assignment.solve`, which is exact.
"""

from collections.abc import Iterator
from itertools import pairwise

from headrace_services.planner.problem import Problem, Recompute, Solution


def solve_locally(problem: Problem, *, rounds: int = 1000) -> Solution | None:
    """A local optimum; None when it finds no assignment that fits, although one may exist."""
    count, s = len(problem.links), problem.stages
    boundaries = problem.boundaries or tuple(round(j * count / s) for j in range(s + 1))
    may = frozenset(i for i, link in enumerate(problem.links) if link.recomputable)
    recomputed = frozenset() if problem.recompute is Recompute.NONE else may
    state = (boundaries, recomputed)
    best = _score(problem, *state)
    for _ in range(rounds):
        for candidate in _neighbours(problem, *state, may):
            score = _score(problem, *candidate)
            if score < best:
                state, best = candidate, score
                break
        else:
            break
    if best[0]:
        return None
    return Solution(boundaries=state[0], recomputed=tuple(sorted(state[1])), objective_s=best[1], exact=False)


def _score(problem: Problem, boundaries: tuple[int, ...], recomputed: frozenset[int]) -> tuple[int, float]:
    """(bytes that do not fit, objective): first make it fit, then make it fast."""
    alpha, omega = problem.fill
    reserve = max((k.saved_bytes - k.kept_bytes for k in problem.links if k.recomputable), default=0)
    missing, filling, worst = 0, 0.0, 0.0
    for stage, (a, b) in enumerate(pairwise(boundaries)):
        seconds = problem.receive_forward_s[stage] + problem.receive_backward_s[stage]
        static = saved = 0
        weight, any_ = 0.0, False
        for i in range(a, b):
            link, again = problem.links[i], i in recomputed
            seconds += link.forward_s + link.backward_s + (link.recompute_s if again else 0.0)
            static += link.static_bytes
            saved += link.kept_bytes if again else link.saved_bytes
            weight += link.weight_s
            any_ = any_ or again
        used = problem.stage_bytes(stage, static, saved, any_, reserve)
        missing += max(0, used - problem.capacity_bytes)
        filling += alpha * seconds - omega * weight
        worst = max(
            worst, (problem.micro_batches - alpha) * seconds + problem.stage_tail_s(problem.links[a:b])
        )
    return missing, filling + worst


def _neighbours(
    problem: Problem, boundaries: tuple[int, ...], recomputed: frozenset[int], may: frozenset[int]
) -> Iterator[tuple[tuple[int, ...], frozenset[int]]]:
    if problem.boundaries is None:
        for j in range(1, problem.stages):
            for step in (-1, 1):
                moved = boundaries[j] + step
                if boundaries[j - 1] < moved < boundaries[j + 1]:
                    yield (*boundaries[:j], moved, *boundaries[j + 1 :]), recomputed
    if problem.recompute is Recompute.FREE:
        for i in sorted(may):
            yield boundaries, recomputed ^ {i}
