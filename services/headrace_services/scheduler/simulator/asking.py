"""The options of `headrace simulate` as values, or a clear error that says what is wrong with them."""

from pathlib import Path

from headrace.cli.failure import USAGE, CommandError
from headrace.spec import StudySpec
from headrace_services.scheduler.samplers import expected_trials
from headrace_services.scheduler.simulator.cluster import MAX_SLOTS, machines_for, parse_types
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.recorded import COLUMN, REPORTS, CurveFile, read_curves
from headrace_services.scheduler.simulator.scenario import Scenario
from headrace_services.scheduler.simulator.stages import Stages, parse_stages, with_and_without
from headrace_services.scheduler.simulator.variants import OWN, Variant, compared, swept

MAX_REPORTS = 2_000_000
"""For one simulated study: this takes some minutes, and about a gigabyte."""


def check_size(scenario: Scenario) -> None:
    """Refuse a study that is too large for a simulation."""
    reports = max(expected_trials(one.spec) * len(one.spec.rungs()) for one in scenario.variants)
    if scenario.file is None and reports > MAX_REPORTS:
        trials = expected_trials(scenario.spec)
        raise CommandError(
            f"{trials} trials would make up to {reports} reports; a simulation takes at most {MAX_REPORTS}.",
            remedy="Simulate fewer trials (trials in the study file), or fewer rungs.",
            code=USAGE,
        )


def recorded(path: Path | None, steps: str, spec: StudySpec) -> CurveFile | None:
    """The runs of --curves, if they fit the study."""
    if steps not in (REPORTS, COLUMN):
        raise CommandError(
            f"--curve-steps: '{steps}' is neither reports nor column.", remedy="Choose one.", code=USAGE
        )
    if path is None:
        return None
    found = read_curves(path, steps=steps)
    objective = spec.objective
    if found.goal is not None and found.goal != objective.goal.value:
        raise CommandError(
            f"{path}: the runs {found.goal} their metric, but the study is to {objective.goal.value} it.",
            remedy="Change objective.goal in the study.",
            code=USAGE,
        )
    if found.metric is not None and found.metric != objective.metric:
        raise CommandError(
            f"{path}: the runs recorded '{found.metric}', the study's objective is '{objective.metric}'.",
            remedy=f"Write objective.metric: {found.metric} in the study.",
            code=USAGE,
        )
    if found.longest < spec.rungs()[0]:
        raise CommandError(
            f"{path}: the longest run has {found.longest} steps and never reaches the first rung, {spec.rungs()[0]}.",
            remedy="Choose a smaller budget and lower rungs, or --curve-steps column.",
            code=USAGE,
        )
    return found


def variants(spec: StudySpec, compare: str | None, sweep: str | None) -> tuple[Variant, ...]:
    """The policies of --compare and --sweep; the study's own if neither is given."""
    found = compared(spec, compare or OWN)
    if sweep is not None:
        if len(found) > 1:
            raise CommandError(
                "--sweep varies one policy, but --compare names several.",
                remedy="Name one policy with --compare, or none for the study's own.",
                code=USAGE,
            )
        _, found = swept(found[0].spec, sweep)
    for one in found:
        if one.spec.policy.kind == "pbt":
            raise CommandError(
                "population-based training changes configurations on the way; no recorded or drawn curve can follow.",
                remedy="Simulate another policy: --compare asha.",
                code=USAGE,
            )
    return found


def crowding(text: str | None, spec: StudySpec) -> dict[int, float]:
    """How the time of a step grows with the number of members of a bundle, from --bundle."""
    if text is None:
        return {}
    if spec.fuse is None:
        raise CommandError(
            "--bundle says how trials slow each other down in one process, but the study has no fuse.",
            remedy="Add fuse to the study file, such as fuse: auto, or leave out --bundle.",
            code=USAGE,
        )
    found: dict[int, float] = {}
    for part in text.split(","):
        members, _, times = part.partition(":")
        try:
            found[int(members)] = float(times)
            Costs(crowding=found)
        except ValueError:
            raise CommandError(
                f"--bundle: '{part.strip()}' is not a number of members, at least 2, with a factor of at least 1.0.",
                remedy="Write it as in --bundle 8:1,32:4.",
                code=USAGE,
            ) from None
    return found


def stages(text: str | None, stage_gb: float | None, spec: StudySpec) -> Stages | None:
    """The large job of --stages, if the study may run in its bubbles."""
    if text is None:
        if stage_gb is not None:
            raise CommandError(
                "--stage-gb is the memory of the stages of --stages, which is not given.",
                remedy="Give both, as in --stages 4x8/16@0.5 --stage-gb 20.",
                code=USAGE,
            )
        return None
    if not spec.bubbles:
        raise CommandError(
            "--stages offers the bubbles of a large job, and the study does not run in bubbles.",
            remedy="Add bubbles: true to the study file, or leave out --stages.",
            code=USAGE,
        )
    try:
        return parse_stages(text)
    except ValueError as error:
        raise CommandError(f"--stages: {error}.", code=USAGE) from None


def scenario(
    policies: tuple[Variant, ...],
    reports_at: tuple[int, ...],
    workers: int,
    types: str | None,
    file: CurveFile | None,
    *,
    shuffled: bool,
    seconds_per_step: float | None,
    within: float,
    costs: tuple[float, float, float, float],
    crowding: dict[int, float],
    failures: tuple[float | None, float, float],
    beside: Stages | None = None,
    stage_gb: float | None = None,
) -> Scenario:
    """The cluster, curves, costs and failures that the options describe."""
    try:
        cluster = parse_types(types) if types is not None else machines_for(policies[0].spec, workers)
    except ValueError as error:
        raise CommandError(f"--types: {error}.", code=USAGE) from None
    if beside is not None:
        memory = None if stage_gb is None else int(stage_gb * 1e9)
        cluster += beside.machines(policies[0].spec, first=len(cluster) + 1, memory_bytes=memory)
        policies = with_and_without(policies)
    slots = sum(machine.slots for machine in cluster)
    if slots > MAX_SLOTS:
        raise CommandError(
            f"the cluster would have {slots} slots; a simulation takes at most {MAX_SLOTS}.",
            remedy="Ask for fewer workers, or for trials with fewer slots.",
            code=USAGE,
        )
    size, bandwidth, start_s, apart = costs
    mttf, detect, repair = failures
    return Scenario(
        variants=policies,
        machines=cluster,
        file=file,
        shuffled=shuffled,
        reports_at=reports_at,
        seconds_per_step=seconds_per_step or 1.0,
        costs=Costs.of_size(size * 1e9, bandwidth * 1e9, start_s=start_s, apart=apart, crowding=crowding),
        failures=Failures(mean_time_s=mttf, detect_s=detect, repair_s=repair),
        within=within,
    )
