"""The cost of a small spec: some tens of milliseconds, whatever it multiplies. A generous second is allowed here."""

from collections.abc import Callable, Iterator

import pytest
from tiers import processor_time

from headrace import bounds
from headrace.errors import InvalidFieldError
from headrace.spec import from_proto
from headrace.v1 import spec_pb2 as pb
from headrace_services.scheduler.samplers import make_sampler

pytestmark = pytest.mark.timeout(60)
MOST_S = 1.0
MOST_PROBLEMS = 50


def spec(*, parameters: int = 0, sampler: str = "random") -> pb.StudySpec:
    """A valid spec with that many float parameters."""
    message = pb.StudySpec(max_trials=10_000, max_steps=9)
    message.objective.metric, message.objective.goal = "loss", pb.GOAL_MINIMIZE
    message.policy.run_all.SetInParent()
    getattr(message.sampler, sampler).SetInParent()
    for number in range(parameters):
        message.space.add(name=f"p{number}").float.high = 1
    return message


def flags(message: pb.StudySpec, count: int) -> None:
    for number in range(count):
        values = [pb.ParameterValue(bool_value=value) for value in (False, True)]
        message.space.add(name=f"b{number}").categorical.values.extend(values)


def under(parameter: pb.Parameter, parent: str, *, times: int = 1) -> None:
    """A parameter that exists only if the parent is true."""
    for _ in range(times):
        parameter.conditions.add(parameter=parent).values.add(bool_value=True)


def parameters(message: pb.StudySpec, count: int) -> Iterator[pb.Parameter]:
    for number in range(count):
        yield message.space.add(name=f"p{number}")


def nothing_enqueued(message: pb.StudySpec) -> None:
    message.enqueued.extend([pb.ParameterAssignment()] * 200)


def unknown_enqueued(message: pb.StudySpec) -> None:
    strange = {f"q{number}": pb.ParameterValue(int_value=1) for number in range(50)}
    message.enqueued.extend([pb.ParameterAssignment(values=strange)] * 20)


def long_names(message: pb.StudySpec) -> None:
    for number, parameter in enumerate(message.space):
        parameter.name = "ab" * 10 + f"{number:03}" + "ba" * 10
    for number in range(100):
        message.enqueued.add().values["ba" * 20 + str(number)].int_value = 1


def unknown_mutable(message: pb.StudySpec) -> None:
    message.policy.pbt.mutable.extend(f"q{number}" for number in range(1000))


def unknown_points(message: pb.StudySpec) -> None:
    message.sampler.grid.points.update({f"q{number}": 3 for number in range(1000)})


def unknown_placeholders(message: pb.StudySpec) -> None:
    message.template.command.args.append("{q}" * 5000)


def unknown_parents(message: pb.StudySpec) -> None:
    for parameter in message.space:
        under(parameter, "q")


def contradictions(message: pb.StudySpec) -> None:
    message.space.add(name="a").int.high = 10**6
    child = message.space.add(name="z")
    child.float.high = 1
    for number in range(32):
        values = [pb.ParameterValue(int_value=value) for value in range(number * 600, (number + 1) * 600)]
        child.conditions.add(parameter="a", values=values)


def long_cycles(message: pb.StudySpec) -> None:
    for number, parameter in enumerate(parameters(message, 1000)):
        parameter.int.high = 1
        for ahead in (1, 2):
            condition = parameter.conditions.add(parameter=f"p{(number + ahead) % 1000}")
            condition.values.add(int_value=1)


def values_unset(message: pb.StudySpec) -> None:
    for parameter in parameters(message, 10):
        parameter.categorical.values.extend([pb.ParameterValue()] * 1900)


def no_domains(message: pb.StudySpec) -> None:
    list(parameters(message, 1000))


UNSOUND = [
    *((change, 1000) for change in (nothing_enqueued, unknown_enqueued, long_names, unknown_mutable)),
    *((change, 1000) for change in (unknown_points, unknown_placeholders, unknown_parents)),
    *((change, 0) for change in (contradictions, long_cycles, values_unset, no_domains)),
]


@pytest.mark.parametrize(("change", "sound"), UNSOUND, ids=[change.__name__ for change, _ in UNSOUND])
def test_a_small_unsound_spec_is_refused_quickly(change: Callable[[pb.StudySpec], None], sound: int) -> None:
    message = spec(parameters=sound)
    change(message)
    assert message.ByteSize() < 100_000
    with processor_time(at_most_s=MOST_S):
        assert bounds.violations(message) == []
        with pytest.raises(InvalidFieldError) as refused:
            from_proto(message)
    assert len(refused.value.violations) <= MOST_PROBLEMS


def off_branches() -> pb.StudySpec:
    """Configurations of one value, each of which must be checked against all conditions."""
    message = spec()
    flags(message, 1)
    for number in range(999):
        parameter = message.space.add(name=f"p{number}")
        parameter.float.high = 1
        under(parameter, "b0")
    for _ in range(100):
        message.enqueued.add().values["b0"].bool_value = False
    return message


def long_chain() -> pb.StudySpec:
    message = spec()
    flags(message, 1000)
    for number, parameter in enumerate(message.space):
        for before in (1, 2):
            if number >= before:
                under(parameter, f"b{number - before}")
    return message


def branching_grid() -> pb.StudySpec:
    """A reviewer's grid, which counted 4096 contexts at each of 200 parameters."""
    message = spec(sampler="grid")
    flags(message, 12)
    for number in range(200):
        message.space.add(name=f"n{number}").int.high = 9
    last = message.space.add(name="z")
    last.int.high = 1
    for number in range(12):
        under(last, f"b{number}")
    return message


def honest_grid() -> pb.StudySpec:
    """120,000 points, with a few conditions."""
    message = spec(sampler="grid")
    flags(message, 3)
    for number in range(4):
        message.space.add(name=f"n{number}").int.high = 9
    for number in range(3):
        parameter = message.space.add(name=f"z{number}")
        parameter.int.high = 1
        under(parameter, f"b{number}")
    return message


def honest_start() -> pb.StudySpec:
    """100 parameters and 1000 configurations."""
    message = spec()
    flags(message, 1)
    tried = {"b0": pb.ParameterValue(bool_value=False)}
    for number in range(99):
        parameter = message.space.add(name=f"p{number}")
        parameter.int.high = 9
        if number < 59:
            tried[parameter.name] = pb.ParameterValue(int_value=1)
        else:
            under(parameter, "b0")
    message.enqueued.extend([pb.ParameterAssignment(values=tried)] * 1000)
    return message


SOUND = [off_branches, long_chain, branching_grid, honest_grid, honest_start]


@pytest.mark.parametrize("make", SOUND, ids=lambda make: make.__name__)
def test_a_sound_spec_is_taken_quickly(make: Callable[[], pb.StudySpec]) -> None:
    message = make()
    assert bounds.violations(message) == []
    with processor_time(at_most_s=MOST_S):
        sampler = make_sampler(from_proto(message))
        assert sampler.suggest(0)
