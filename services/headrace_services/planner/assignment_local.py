"""Level 2 as in the paper: a local search over stages and recomputed layers (H²O, section 2, Algorithm 1).

The paper says that it "adaptively balances recomputation strategies and layer-stage assignment" and no more. This
search starts with equal stages and everything recomputed where that is needed. Then it cycles through these moves
and makes each one that improves: move a boundary by one layer, stop recomputing a layer, recompute one more. It
ends when a whole round brings no improvement. It is offered for comparison with `assignment.solve`, which is
exact.

A move changes one or two stages by one link. So stages keep their sums, and a neighbour is priced in constant
time.
"""

from itertools import accumulate, pairwise
from typing import NamedTuple

from headrace_services.planner.problem import Link, Problem, Recompute, Solution


class _Stage(NamedTuple):
    """Sums over the links of a stage."""

    seconds: float
    static: int = 0
    saved: int = 0
    weight: float = 0.0
    tail: float = 0.0
    reduce: float = 0.0
    gather: float = 0.0
    recomputed: int = 0

    def changed(self, link: Link, again: bool, sign: int) -> "_Stage":
        """The sums with one link more (sign 1) or less (−1)."""
        return _Stage(
            self.seconds + sign * (link.forward_s + link.backward_s + (link.recompute_s if again else 0.0)),
            self.static + sign * link.static_bytes,
            self.saved + sign * (link.kept_bytes if again else link.saved_bytes),
            self.weight + sign * link.weight_s,
            self.tail + sign * link.tail_s,
            self.reduce + sign * (link.reduce_s - link.reduce_behind_s),
            self.gather + sign * (link.gather_s - link.gather_behind_s),
            self.recomputed + sign * again,
        )


Move = tuple[int, int]
"""A boundary and the step (−1 or 1) by which it moves, or a layer and 0, which toggles whether it is recomputed."""
Change = dict[int, _Stage]
"""The stages that a move changes, by number."""


class _State:
    """An assignment with its stages' sums."""

    def __init__(self, problem: Problem) -> None:
        count, s = len(problem.links), problem.stages
        self.problem = problem
        self.reserve = max((k.saved_bytes - k.kept_bytes for k in problem.links if k.recomputable), default=0)
        self.boundaries = list(problem.boundaries or (round(j * count / s) for j in range(s + 1)))
        may = problem.recompute is not Recompute.NONE
        self.again = [may and link.recomputable for link in problem.links]
        self.stage_of = [j for j, (a, b) in enumerate(pairwise(self.boundaries)) for _ in range(a, b)]
        self.stages = []
        for j, (a, b) in enumerate(pairwise(self.boundaries)):
            stage = _Stage(problem.receive_forward_s[j] + problem.receive_backward_s[j])
            for i in range(a, b):
                stage = stage.changed(problem.links[i], self.again[i], 1)
            self.stages.append(stage)
        self.parts = [self._part(j, stage) for j, stage in enumerate(self.stages)]

    def score(self) -> tuple[int, float]:
        """(bytes that do not fit, objective): first make it fit, then make it fast."""
        missing, filling, worst = zip(*self.parts, strict=True)
        self._missing, self._filling = sum(missing), sum(filling)
        self._before = list(accumulate(worst, max, initial=0.0))
        self._behind = list(accumulate(reversed(worst), max, initial=0.0))[::-1]
        return self._missing, self._filling + self._before[-1]

    def changed_score(self, change: Change) -> tuple[int, float]:
        """The score after a move, from the sums of the last `score`."""
        missing, filling = self._missing, self._filling
        first, last = min(change), max(change)
        worst = max(self._before[first], self._behind[last + 1])
        for j, stage in change.items():
            old, new = self.parts[j], self._part(j, stage)
            missing += new[0] - old[0]
            filling += new[1] - old[1]
            worst = max(worst, new[2])
        return missing, filling + worst

    def moves(self) -> list[Move]:
        """Every conceivable move, whether or not it can be made now."""
        problem = self.problem
        edges = range(1, problem.stages) if problem.boundaries is None else ()
        links = problem.links if problem.recompute is Recompute.FREE else ()
        turned = [(i, 0) for i, link in enumerate(links) if link.recomputable]
        return [(j, step) for j in edges for step in (-1, 1)] + turned

    def change(self, move: Move) -> Change | None:
        """What a move changes; None if it would leave a stage empty."""
        number, step = move
        if not step:
            link, again, j = self.problem.links[number], self.again[number], self.stage_of[number]
            return {j: self.stages[j].changed(link, again, -1).changed(link, not again, 1)}
        edges = self.boundaries
        if not edges[number - 1] < edges[number] + step < edges[number + 1]:
            return None
        i = edges[number] - (step < 0)
        link, again = self.problem.links[i], self.again[i]
        before, after = self.stages[number - 1], self.stages[number]
        return {number - 1: before.changed(link, again, step), number: after.changed(link, again, -step)}

    def apply(self, move: Move, change: Change) -> None:
        """Makes a move."""
        for j, stage in change.items():
            self.stages[j] = stage
            self.parts[j] = self._part(j, stage)
        number, step = move
        if step:
            self.stage_of[self.boundaries[number] - (step < 0)] -= step
            self.boundaries[number] += step
        else:
            self.again[number] = not self.again[number]

    def _part(self, j: int, stage: _Stage) -> tuple[int, float, float]:
        problem, (alpha, omega) = self.problem, self.problem.fill
        used = problem.stage_bytes(j, stage.static, stage.saved, stage.recomputed > 0, self.reserve)
        tail = problem.tail_s + stage.tail + max(stage.reduce, 0.0) + max(stage.gather, 0.0)
        return (
            max(0, used - problem.capacity_bytes),
            alpha * stage.seconds - omega * stage.weight,
            (problem.micro_batches - alpha) * stage.seconds + tail,
        )


def solve_locally(problem: Problem, *, rounds: int = 1000) -> Solution | None:
    """A local optimum; None if it finds no assignment that fits, although one may exist."""
    state = _State(problem)
    best, moves = state.score(), state.moves()
    position = idle = taken = 0
    while idle < len(moves) and taken < rounds:
        move = moves[position]
        change = state.change(move)
        score = state.changed_score(change) if change else best
        # Sums that are updated step by step have rounding errors, which are not improvements.
        if change and (score[0] < best[0] or (score[0] == best[0] and score[1] < best[1] * (1 - 1e-12))):
            # The same move may help again.
            state.apply(move, change)
            best = state.score()
            idle, taken = 0, taken + 1
        else:
            position, idle = (position + 1) % len(moves), idle + 1
    if best[0]:
        return None
    recomputed = tuple(i for i, again in enumerate(state.again) if again)
    return Solution(
        boundaries=tuple(state.boundaries), recomputed=recomputed, objective_s=best[1], exact=False
    )
