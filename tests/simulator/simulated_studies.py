"""Small studies, and curves simple enough to compute by hand."""

from typing import Any

from headrace.spec import StudySpec
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.recorded import RecordedCurve, RecordedCurves
from headrace_services.scheduler.simulator.study import StudySimulation

ASHA = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}


def make_spec(**changes: Any) -> StudySpec:
    """Return a small study; `changes` replace whole fields."""
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": ASHA,
        "max_trials": 9,
        "max_steps": 9,
        "seed": 1,
    }
    return StudySpec.model_validate({**fields, **changes})


def flat(values: list[float | None], *, steps: int = 9, step_s: float = 10.0) -> RecordedCurves:
    """Curves with a constant value at every step, in the order given; a step takes `step_s`."""
    return RecordedCurves(
        tuple(
            RecordedCurve(
                name=str(number),
                steps=tuple(range(1, steps + 1)),
                seconds=tuple(step_s * step for step in range(1, steps + 1)),
                values=(value,) * steps,
                params={"x": number / 100},
            )
            for number, value in enumerate(values)
        )
    )


def simulate(
    spec: StudySpec, curves: Any, *, workers: int = 1, **more: Any
) -> tuple[Simulation, StudySimulation]:
    """Run a study to its end on workers of one slot, unless `machines` says otherwise."""
    study = StudySimulation.of(spec, curves, costs=more.pop("costs", None), log=more.pop("log", False))
    cluster = more.pop("machines", None) or machines(workers)
    simulation = Simulation(cluster, [study], **more)
    simulation.run()
    return simulation, study
