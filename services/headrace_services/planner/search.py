"""Both levels together: all tuples of degrees, best bound first, each solved exactly until no remaining bound can
win.

Every tuple has a bound that no assignment of it beats (`Costing.bound_s`). Tuples are solved in the order of their
bounds, and the search ends when the next bound is not below the best time found: nothing was sampled, and nothing
that could win was skipped. The best `FINALISTS` are then simulated, and the fastest of them is the plan. The full
search simulates the winners of the restricted modes too (they are plans of its own space), so it never loses to
one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from headrace.errors import HeadraceError
from headrace_services.planner.assignment import least_memory, solve
from headrace_services.planner.assignment_local import solve_locally
from headrace_services.planner.costing import Costing, Request
from headrace_services.planner.degrees import Degrees, tuples
from headrace_services.planner.expert import greedy
from headrace_services.planner.modes import FULL, MODES, Mode
from headrace_services.planner.plan import Plan, assemble
from headrace_services.planner.problem import Problem, Solution
from headrace_services.planner.shortlist import LEAST, MOST, NEAR, shortlist

FINALISTS: Final = 4
EVERY: Final = 64
"""How many tuples are bounded between two reports of progress."""


class Method(StrEnum):
    """How level 2 is solved."""

    EXACT = "exact"
    LOCAL = "local"


class SearchStoppedError(HeadraceError):
    """The search was told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a search."""

    mode: str
    bounded: int
    """Tuples whose bound is known."""
    solved: int
    total: int
    best_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished search: its plan, or None if nothing fits, and how it ended."""

    mode: str
    plan: Plan | None
    tuples: int
    impossible: int
    """Tuples that cannot fit in memory, however they are assigned."""
    solved: int
    finalists: tuple[Plan, ...] = ()
    complete: bool = True
    """Whether the search was completed, and not ended by its limit."""
    bound_s: float | None = None
    """No plan of the mode has a smaller analytic time. None if the limit ended the search before that was known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """When a search ends early. What it has found by then is its answer."""

    tuples: int | None = None
    """The paper's budget N: tuples solved at level 2."""
    enough: Callable[[], bool] | None = None
    """Called between two tuples; only the caller knows the time."""

    def reached(self, solved: int) -> bool:
        """Whether to end now."""
        return (self.tuples is not None and solved >= self.tuples) or (
            self.enough is not None and self.enough()
        )


Watch = Callable[[Progress], None]
"""Called at intervals; may raise SearchStoppedError."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tuple with its best assignment."""

    objective_s: float
    degrees: Degrees
    mode: Mode
    problem: Problem
    places: tuple[tuple[int, ...], ...]
    solution: Solution


def problem_of(
    costing: Costing, mode: Mode, degrees: Degrees
) -> tuple[Problem, tuple[tuple[int, ...], ...]] | None:
    """The level 2 problem of a tuple on a mode's axes."""
    return costing.problem(
        degrees, recompute=mode.recomputation, equal=mode.equal_stages, versions=mode.versions
    )


def assemble_below(limit_s: float, costing: Costing, candidate: Candidate) -> Plan | None:
    """The plan of a candidate, or None if no run of its stages is faster than the limit."""
    return assemble(
        costing,
        candidate.mode.name,
        candidate.degrees,
        candidate.problem,
        candidate.places,
        candidate.solution,
        limit_s=limit_s,
    )


@dataclass(slots=True)
class Search:
    """The searches of one request; they share tuples' costs and bounds."""

    request: Request
    method: Method = Method.EXACT
    watch: Watch | None = None
    limit: Limit = Limit()
    _costing: Costing = field(init=False)
    _bounds: list[tuple[float, Degrees]] | None = field(init=False, default=None)
    _impossible: list[Degrees] = field(init=False, default_factory=list)
    _total: int = field(init=False, default=0)
    _outcomes: dict[str, Outcome] = field(init=False, default_factory=dict)
    _candidates: dict[tuple[Mode, Degrees], Candidate | None] = field(init=False, default_factory=dict)
    _solved: int = field(init=False, default=0)
    _complete: bool = field(init=False, default=True)
    _cut: bool = field(init=False, default=False)
    """Whether the limit ended the search while tuples were still being bounded."""

    def __post_init__(self) -> None:
        self._costing = Costing(self.request)

    @property
    def costing(self) -> Costing:
        """The costs of tuples."""
        return self._costing

    def run(self, mode: Mode = FULL) -> Outcome:
        """The best plan of a mode."""
        if mode.name not in self._outcomes:
            self._outcomes[mode.name] = self._run(mode)
        return self._outcomes[mode.name]

    def _run(self, mode: Mode) -> Outcome:
        found, solved, open_, bound = self._found(mode)
        plans = self._simulated(mode, found)
        complete = self._complete
        if mode is FULL:
            for other in MODES.values():
                if other is FULL or self.limit.reached(self._solved):
                    continue
                best = min((plan.simulated_s for plan in plans), default=math.inf)
                faster = self._simulated(other, self._found(other)[0], best)
                plans += [replace(plan, mode=FULL.name) for plan in faster]
        plans.sort(key=lambda plan: (plan.simulated_s, plan.analytic_s, plan.degrees))
        return Outcome(
            mode=mode.name,
            plan=plans[0] if plans else None,
            tuples=open_,
            impossible=sum(mode.allows(d, self.request) for d in self._impossible),
            solved=solved,
            finalists=tuple(plans),
            complete=complete,
            bound_s=bound,
        )

    def near(self, mode: Mode = FULL) -> list[Plan]:
        """The shortlist: the best plan and the nearest plans that differ from it, simulated, fastest first
        (`shortlist`).

        Every tuple whose bound is close enough is solved, so no split that belongs here is missing, unless the
        limit ended the search.
        """
        outcome = self.run(mode)
        if outcome.plan is None:
            return []
        best: dict[tuple[int, int, int], Candidate] = {}
        reach = (1 + NEAR) * outcome.plan.analytic_s
        for bound, degrees in self.bounds():
            far = bound > reach and len(best) >= LEAST
            if far or not outcome.complete or (self.limit.enough is not None and self.limit.enough()):
                break
            split = _split(degrees)
            if not mode.allows(degrees, self.request) or (split in best and best[split].objective_s <= bound):
                continue
            self._tell(mode, self._total, self._solved, self._total, outcome.plan.simulated_s)
            candidate = self.candidate(mode, degrees)
            if candidate is not None and (
                split not in best or candidate.objective_s < best[split].objective_s
            ):
                best[split] = candidate
        plans = [outcome.plan, *outcome.finalists]
        for one in sorted(best.values(), key=lambda one: one.objective_s)[: 2 * MOST]:
            # A plan that cannot belong to the shortlist of the earlier ones needs no simulation.
            chosen = _nearest(plans)
            limit = max((1 + NEAR) * chosen[0].simulated_s, chosen[-1].simulated_s)
            limit_s = math.nextafter(limit, math.inf) if len(chosen) >= LEAST else math.inf
            plan = assemble_below(limit_s, self._costing, one)
            if plan is not None:
                plans.append(replace(plan, mode=mode.name))
        return _nearest(plans)

    def bounds(self) -> list[tuple[float, Degrees]]:
        """Every tuple that may fit, with its bound in seconds, smallest first."""
        if self._bounds is None:
            request, bounds = self.request, []
            for degrees in tuples(request.model, request.cluster, request.batch):
                if self._total % EVERY == 0:
                    self._tell(FULL, self._total, 0, 0, None)
                    if self._total and self.limit.enough is not None and self.limit.enough():
                        self._cut, self._complete = True, False
                        break
                self._total += 1
                bound = self._costing.bound_s(degrees)
                if bound is None:
                    self._impossible.append(degrees)
                else:
                    bounds.append((bound, degrees))
            bounds.sort()
            self._bounds = bounds
        return self._bounds

    def candidate(self, mode: Mode, degrees: Degrees) -> Candidate | None:
        """A tuple solved, or None if it does not fit. Solved once: shortlists and explanations ask again."""
        if (mode, degrees) not in self._candidates:
            self._candidates[mode, degrees] = self._solved_at(mode, degrees)
        return self._candidates[mode, degrees]

    def _solved_at(self, mode: Mode, degrees: Degrees) -> Candidate | None:
        made = problem_of(self._costing, mode, degrees)
        if made is None:
            return None
        problem, places = made
        solution = solve(problem) if self.method is Method.EXACT else solve_locally(problem)
        if solution is None:
            return None
        total = solution.objective_s + self.request.cluster.device.efficiencies.iteration_s
        return Candidate(total, degrees, mode, problem, places, solution)

    def assembled(self, candidate: Candidate) -> Plan:
        """The plan of a candidate."""
        plan = assemble_below(float("inf"), self._costing, candidate)
        assert plan is not None
        return plan

    def _found(self, mode: Mode) -> tuple[list[Candidate], int, int, float | None]:
        """Candidates, best first; how many were solved and allowed; and a time that no plan of the mode beats."""
        return self._expert(mode) if mode.greedy else self._solve(mode)

    def _solve(self, mode: Mode) -> tuple[list[Candidate], int, int, float | None]:
        bounds = [pair for pair in self.bounds() if mode.allows(pair[1], self.request)]
        allowed = len(bounds) + sum(mode.allows(d, self.request) for d in self._impossible)
        best, solved = float("inf"), 0
        left = float("inf")
        found: list[Candidate] = []
        for bound, degrees in bounds:
            if bound >= best:
                break
            if self.limit.reached(self._solved) and solved:
                left, self._complete = bound, False
                break
            self._tell(mode, len(bounds), solved, allowed, None if best == float("inf") else best)
            candidate = self.candidate(mode, degrees)
            solved += 1
            self._solved += 1
            if candidate is not None:
                found.append(candidate)
                best = min(best, candidate.objective_s)
        found.sort(key=lambda one: (one.objective_s, one.degrees))
        known = min(best, left)
        return found, solved, allowed, None if self._cut or known == float("inf") else known

    def _expert(self, mode: Mode) -> tuple[list[Candidate], int, int, float | None]:
        """The expert's plan, with everything recomputed or nothing, whichever is faster."""
        known = [d for _, d in self.bounds()] + self._impossible
        nothing = replace(mode, everything=False)
        solved = 0

        def score(degrees: Degrees) -> tuple[float, float]:
            nonlocal solved
            solved += 1
            found = self.candidate(mode, degrees)
            if found is not None:
                return 0.0, found.objective_s
            made = problem_of(self._costing, mode, degrees)
            return (float(least_memory(made[0])[0]) if made else float("inf")), float("inf")

        chosen = greedy(known, score)
        both = [self.candidate(one, chosen) for one in (mode, nothing)] if chosen else []
        found = sorted((one for one in both if one), key=lambda one: one.objective_s)
        return found, solved, len(known), found[0].objective_s if found else None

    def _simulated(self, mode: Mode, found: list[Candidate], best: float = math.inf) -> list[Plan]:
        """The finalists, simulated, except those whose own lower bound is beaten by `best` or by another one's
        simulation."""
        plans: list[Plan] = []
        for candidate in found[:FINALISTS]:
            self._tell(mode, self._total, len(found), self._total, found[0].objective_s)
            plan = assemble_below(best, self._costing, candidate)
            if plan is not None:
                plans.append(plan)
                best = min(best, plan.simulated_s)
        return plans

    def _tell(self, mode: Mode, bounded: int, solved: int, total: int, best_s: float | None) -> None:
        if self.watch is not None:
            self.watch(Progress(mode=mode.name, bounded=bounded, solved=solved, total=total, best_s=best_s))


def _nearest(plans: list[Plan]) -> list[Plan]:
    return shortlist(plans, lambda plan: plan.simulated_s, lambda plan: _split(plan.degrees))


def _split(degrees: Degrees) -> tuple[int, int, int]:
    return degrees.d, degrees.m, degrees.s
