"""Samplers as a user names them, and the rules between a sampler and the rest of a spec.

`random`, `grid` and `sobol` propose only by trial number, `best_of` uses what another study found, and `own` is
a sampler in an installed package. The others are *model-based*: they learn from the results so far, and only
they can start with the results of an earlier study.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainValidator

from headrace.bounds import numbers
from headrace.spec.domains import CategoricalDomain, Domain, FloatDomain, IntDomain, SpecModel
from headrace.spec.names import StudyName
from headrace.spec.objective import Constraint, Objective, WarmStart
from headrace.spec.own import OwnSampler
from headrace.spec.problems import Loc, Problem, Unknown, fault
from headrace.spec.scalars import Count, Real, Text, integer_within, meaning

GridPoints = Annotated[int, PlainValidator(integer_within(1, numbers.GRID_POINTS))]
Candidates = Annotated[int, PlainValidator(integer_within(1, numbers.POPULATION))]
MaxResults = Annotated[int, PlainValidator(integer_within(20, numbers.RESULTS))]
FewResults = Annotated[int, PlainValidator(integer_within(20, numbers.RESULTS_OF_A_MATRIX))]
Population = Annotated[int, PlainValidator(integer_within(2, numbers.POPULATION))]
CmaEsPopulation = Annotated[int, PlainValidator(integer_within(4, numbers.POPULATION))]


def _eager(value: float) -> float:
    if not 0 < value <= 1:
        raise fault(
            "must be above 0 and at most 1", "It is a share of the other study's trials, such as 0.5."
        )
    return value


Eager = Annotated[Real, AfterValidator(_eager)]


class RandomSampler(SpecModel):
    """Independent draws; trial n's configuration depends only on the seed and n."""

    kind: Literal["random"] = "random"


class GridSampler(SpecModel):
    """Every point of the grid once, the last parameter varying fastest."""

    kind: Literal["grid"] = "grid"
    points: dict[Text, GridPoints] = Field(default_factory=dict)


class SobolSampler(SpecModel):
    """A scrambled Sobol sequence: points that fill the space more evenly than independent draws."""

    kind: Literal["sobol"] = "sobol"


class TpeSampler(SpecModel):
    """Tree-structured Parzen estimators. The first `startup_trials` results come from random draws."""

    kind: Literal["tpe"] = "tpe"
    startup_trials: Count = 10
    candidates: Candidates = 24
    max_results: MaxResults = 1000


class GpSampler(SpecModel):
    """A Gaussian process with expected improvement, fitted to at most `max_results` results."""

    kind: Literal["gp"] = "gp"
    startup_trials: Count = 10
    max_results: MaxResults = 200


class MultiFidelitySampler(SpecModel):
    """A Gaussian process over configuration and budget, fitted to at most `max_results` results at all rungs."""

    kind: Literal["multi_fidelity"] = "multi_fidelity"
    startup_trials: Count = 10
    max_results: FewResults = 400


class CmaEsSampler(SpecModel):
    """CMA-ES on the numeric parameters that always exist; `population` None means 4 + ⌊3 ln d⌋."""

    kind: Literal["cmaes"] = "cmaes"
    startup_trials: Count = 1
    population: CmaEsPopulation | None = None


class Nsga2Sampler(SpecModel):
    """The genetic algorithm NSGA-II."""

    kind: Literal["nsga2"] = "nsga2"
    population: Population = 50


class Nsga3Sampler(SpecModel):
    """The genetic algorithm NSGA-III."""

    kind: Literal["nsga3"] = "nsga3"
    population: Population = 50


class BestOfSampler(SpecModel):
    """The best configurations of another study, best first, once that study has completed.

    With `eager`, the best ones so far may be taken before its end: on idle slots, and the first one as soon as
    this fraction of the other study's trials has ended or is paused. One is always taken at the end.
    """

    kind: Literal["best_of"] = "best_of"
    study: StudyName
    eager: Eager | None = None


StartsWithDraws = TpeSampler | GpSampler | MultiFidelitySampler
"""The samplers whose first `startup_trials` results come from random draws."""
ModelBased = StartsWithDraws | CmaEsSampler | Nsga2Sampler | Nsga3Sampler
Sampler = Annotated[
    RandomSampler | GridSampler | SobolSampler | ModelBased | BestOfSampler | OwnSampler,
    Field(discriminator="kind"),
]
SAMPLERS: dict[str, type[SpecModel]] = {
    "random": RandomSampler,
    "grid": GridSampler,
    "sobol": SobolSampler,
    "tpe": TpeSampler,
    "gp": GpSampler,
    "multi_fidelity": MultiFidelitySampler,
    "cmaes": CmaEsSampler,
    "nsga2": Nsga2Sampler,
    "nsga3": Nsga3Sampler,
    "best_of": BestOfSampler,
    "own": OwnSampler,
}
"""The models by kind."""


def sampler_problems(
    sampler: Sampler,
    *,
    further: Iterable[Objective],
    constraints: Iterable[Constraint],
    warm_start: WarmStart | None,
    max_trials: int | None,
) -> list[Problem]:
    """Conflicts between a sampler and the objectives, the constraints, the warm start and the number of trials."""
    problems: list[Problem] = []
    if isinstance(sampler, BestOfSampler) and max_trials is not None:
        problems += eager_problems(sampler.eager, max_trials, ("sampler", "eager"), "trials")
    if isinstance(sampler, CmaEsSampler | MultiFidelitySampler) and any(True for _ in further):
        problems.append(_unfit(sampler.kind, "knows one objective only", "tpe, gp, nsga2 or nsga3"))
    if isinstance(sampler, CmaEsSampler) and any(True for _ in constraints):
        others = "tpe, gp, multi_fidelity, nsga2 or nsga3"
        problems.append(_unfit(sampler.kind, "heeds no constraints", others))
    if warm_start is not None and not isinstance(sampler, ModelBased):
        problems.append(
            Problem(
                loc=("warm_start",),
                message=f"has no use for the {sampler.kind} sampler, which does not learn from results",
                remedy="Remove it, or choose tpe, gp, multi_fidelity, cmaes, nsga2 or nsga3.",
            )
        )
    return problems


def eager_problems(eager: float | None, most: int, loc: Loc, count: str) -> list[Problem]:
    """Conflicts between an early start and the number of configurations to take, which the field `count` gives."""
    if eager is None or most > 1:
        return []
    return [
        Problem(
            loc=loc,
            value=eager,
            message=f"has no effect with {count}: {most}, because the last one is taken at the end of the other study",
            remedy=f"Leave it out, or set {count} to 2 or more.",
        )
    ]


def _unfit(kind: str, why: str, others: str) -> Problem:
    return Problem(loc=("sampler", "kind"), value=kind, message=why, remedy=f"Choose {others}.")


def grid_problems(
    sampler: Sampler, declared: Collection[str], space: Mapping[str, Domain]
) -> Iterator[Problem]:
    """Conflicts between a grid and the space."""
    if not isinstance(sampler, GridSampler):
        return
    if not is_countable(space):
        yield Problem(
            loc=("sampler", "kind"),
            value=sampler.kind,
            message="would have too many branches: a parameter depends on too many others at once",
            remedy="Use the random sampler, or fewer conditions.",
        )
        return
    for name in sampler.points:
        domain = space.get(name)
        at = ("sampler", "points", name)
        if name not in declared:
            unknown = Unknown(word=name, known=declared, noun="parameter")
            yield Problem(loc=at, message="is not a parameter", unknown=unknown)
        elif domain is not None and not isinstance(domain, IntDomain) and domain.count is not None:
            yield Problem(
                loc=at,
                value=sampler.points[name],
                message=f"is not needed, as the {domain.count} values of {name} are all used",
                remedy="Remove it.",
            )
    for name, domain in space.items():
        if isinstance(domain, FloatDomain) and domain.step is None and name not in sampler.points:
            yield Problem(
                loc=("sampler", "points", name),
                message=f"is missing: {name} is continuous, so the grid would be empty",
                remedy=f"Say how many points of {name} to take, or give {name} a step.",
            )


def is_countable(space: Mapping[str, Domain]) -> bool:
    """Whether the branches to distinguish, over all parameters, are few enough to count the grid.

    A context is the choice of values, as far as later conditions distinguish them. Each parameter that
    conditions name, or that has conditions, is visited once per context. The others do not branch.
    """
    named: dict[str, set[object]] = {}
    last: dict[str, str] = {}
    for name, domain in space.items():
        for condition in domain.conditions:
            told = named.setdefault(condition.parameter, set())
            told.update(condition.meanings)
            told.update(condition.bounds.items())  # each splits the numbers in two
            compared = space.get(condition.parameter) if condition.bounds else None
            if isinstance(compared, CategoricalDomain):
                told.update(map(meaning, compared.values))  # these have no order
            last[condition.parameter] = name
    branches, contexts = 0, 1
    for name, domain in space.items():
        ways = len(named.get(name, ())) + 1
        if ways > 1 or domain.conditions:
            branches += contexts * ways
        if branches > numbers.GRID_BRANCHES:
            return False
        contexts *= ways
        for parent in {condition.parameter for condition in domain.conditions}:
            if last[parent] == name and parent in space:
                contexts //= len(named[parent]) + 1
    return True
