"""Random level 2 problems, and a slow, obvious solution: every split, every set of recomputed layers."""

import itertools
import random
from itertools import pairwise

from headrace_services.planner.problem import Link, Problem
from headrace_services.planner.schedules import Schedule, in_flight

FILLS = [(1.0, 0.0), (1.0, 1.5), (0.5, 0.0)]


def random_problem(rng: random.Random, layers: int | None = None, stages: int | None = None) -> Problem:
    layers = layers or rng.randint(2, 10)
    stages, micro_batches = stages or rng.randint(1, min(4, layers)), rng.randint(1, 12)
    links = []
    for _ in range(layers):
        forward = rng.uniform(0.5, 2)
        links.append(
            Link(
                forward_s=forward,
                backward_s=2 * forward * rng.uniform(0.8, 1.2),
                recompute_s=forward,
                weight_s=0.8 * forward,
                static_bytes=rng.randint(1, 20),
                saved_bytes=rng.randint(2, 15),
                kept_bytes=rng.randint(0, 2),
                tail_s=rng.uniform(0, 1),
                reduce_s=rng.uniform(0, 4),
                reduce_behind_s=rng.choice([0.0, 2 * forward]),
                gather_s=rng.uniform(0, 2),
                gather_behind_s=rng.choice([0.0, forward]),
                recomputable=rng.random() > 0.1,
            )
        )
    return Problem(
        links=tuple(links),
        stages=stages,
        micro_batches=micro_batches,
        in_flight=in_flight(Schedule.ONE_F_ONE_B, stages, micro_batches),
        capacity_bytes=rng.randint(40, 130),
        receive_forward_s=tuple(0.1 * (j > 0) for j in range(stages)),
        receive_backward_s=tuple(0.1 * (j < stages - 1) for j in range(stages)),
        tail_s=0.05,
        fill=rng.choice(FILLS),
    )


def brute_force(problem: Problem) -> float | None:
    """The least objective, straight from its definition; None if nothing fits."""
    count = len(problem.links)
    splits = itertools.combinations(range(1, count), problem.stages - 1)
    values = [_value(problem, (0, *cuts, count)) for cuts in splits]
    return min((value for value in values if value is not None), default=None)


def _value(problem: Problem, boundaries: tuple[int, ...]) -> float | None:
    alpha, omega = problem.fill
    filling, worst = 0.0, []
    for stage, (a, b) in enumerate(pairwise(boundaries)):
        links = problem.links[a:b]
        fitting = [
            _seconds(problem, stage, a, b, again)
            for again in itertools.product([False, True], repeat=b - a)
            if _bytes(problem, stage, a, b, again) <= problem.capacity_bytes
            and all(link.recomputable for link, one in zip(links, again, strict=True) if one)
        ]
        if not fitting:
            return None
        seconds = min(fitting)
        filling += alpha * seconds - omega * sum(link.weight_s for link in links)
        reduced = sum(link.reduce_s - link.reduce_behind_s for link in links)
        gathered = sum(link.gather_s - link.gather_behind_s for link in links)
        tail = problem.tail_s + sum(link.tail_s for link in links) + max(reduced, 0) + max(gathered, 0)
        worst.append((problem.micro_batches - alpha) * seconds + tail)
    return filling + max(worst)


def _seconds(problem: Problem, stage: int, a: int, b: int, again: tuple[bool, ...]) -> float:
    links = problem.links[a:b]
    passes = sum(k.forward_s + k.backward_s + k.recompute_s * r for k, r in zip(links, again, strict=True))
    return passes + problem.receive_forward_s[stage] + problem.receive_backward_s[stage]


def _bytes(problem: Problem, stage: int, a: int, b: int, again: tuple[bool, ...]) -> int:
    links = problem.links[a:b]
    saved = sum(k.kept_bytes if r else k.saved_bytes for k, r in zip(links, again, strict=True))
    rebuild = max((k.saved_bytes - k.kept_bytes for k in problem.links if k.recomputable), default=0)
    return sum(k.static_bytes for k in links) + problem.in_flight[stage] * saved + rebuild * any(again)
