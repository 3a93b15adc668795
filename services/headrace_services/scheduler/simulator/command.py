"""`headrace simulate`: a study on a virtual cluster, before any GPU is used and without a server."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.failure import USAGE, CommandError
from headrace.cli.output import Output
from headrace.cli.session import AsJson, Session
from headrace.client.wording import goals
from headrace.spec import load_study_file

if TYPE_CHECKING:
    from headrace_services.scheduler.simulator.reporting import Times
    from headrace_services.scheduler.simulator.scenario import Scenario

CLUSTER, CURVES, SEVERAL, COSTS = "Cluster", "Curves", "Several policies, several seeds", "Costs and failures"


def simulate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file.", show_default=False)],
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=100_000,
            help="Virtual workers, each with the slots of one trial. Where trials differ in size: slots in all. "
            "Without it and --types the output says that it assumes 4.",
            rich_help_panel=CLUSTER,
        ),
    ] = 4,
    types: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:WORKERS[xSLOTS][~ISLAND][@SPEED],…",
            help="Machines of several types, as in h100:2x8@2.5,a100:4x8~4. Speed 1 is that of the curves. ~4: NVLink "
            "joins each four slots.",
            rich_help_panel=CLUSTER,
            show_default=False,
        ),
    ] = None,
    stages: Annotated[
        str | None,
        typer.Option(
            metavar="STAGES[xREPLICAS]/MICRO_BATCHES@HARVEST",
            help="A pipeline job beside them, in whose idle windows trials run. 4x8/16@0.5: 4 stages in 8 replicas, so "
            "32 devices, and 16 micro-batches a step; trials use half of its idle time. The study needs bubbles: true. "
            "Each policy is also simulated without the job.",
            rich_help_panel=CLUSTER,
            show_default=False,
        ),
    ] = None,
    stage_gb: Annotated[
        float | None,
        typer.Option(
            min=1e-9,
            help="Memory that the job leaves on each device, in GB. Default: enough for a trial, or a full bundle.",
            rich_help_panel=CLUSTER,
            show_default=False,
        ),
    ] = None,
    curves: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv[.gz]",
            help="Recorded runs to replay. Default: the synthetic model, one unit of time a step.",
            rich_help_panel=CURVES,
            show_default=False,
        ),
    ] = None,
    curve_steps: Annotated[
        str,
        typer.Option(
            metavar="reports|column",
            help="What a step of the study is in the file: a report of the run, or the file's own step column.",
            rich_help_panel=CURVES,
        ),
    ] = "reports",
    in_order: Annotated[
        bool,
        typer.Option(
            "--in-order",
            help="Take recorded runs in the file's order, not in random order.",
            rich_help_panel=CURVES,
        ),
    ] = False,
    seconds_per_step: Annotated[
        float | None,
        typer.Option(
            min=1e-9,
            help="How long a step takes, for synthetic curves.",
            rich_help_panel=CURVES,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The first seed. Default: the study's own.",
            rich_help_panel=SEVERAL,
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=100_000,
            help="How many seeds: other trials, in another order.",
            rich_help_panel=SEVERAL,
        ),
    ] = 1,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY,…",
            help="Policies side by side: a kind with settings, as in asha:eta=4, or `study` for the file's own.",
            rich_help_panel=SEVERAL,
            show_default=False,
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING=VALUE,…",
            help="One policy (of --compare, else the study's) with several values of a setting: eta=2,3,4,8.",
            rich_help_panel=SEVERAL,
            show_default=False,
        ),
    ] = None,
    within: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="How near a report must be to the best value at the full budget, as a share of it, to be on target.",
            rich_help_panel=SEVERAL,
        ),
    ] = 0.01,
    checkpoint_gb: Annotated[
        float, typer.Option(min=0.0, help="Size of a checkpoint, in GB (10⁹ bytes).", rich_help_panel=COSTS)
    ] = 0.0,
    bandwidth: Annotated[
        float, typer.Option(min=1e-9, help="How fast it is written and read, in GB/s.", rich_help_panel=COSTS)
    ] = 2.0,
    start_s: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds from an assignment to the first step of training.", rich_help_panel=COSTS
        ),
    ] = 0.0,
    apart: Annotated[
        float,
        typer.Option(
            min=1e-3,
            max=1.0,
            help="How fast a gang trains that is not joined by NVLink, compared with one that is.",
            rich_help_panel=COSTS,
        ),
    ] = 1.0,
    bundle: Annotated[
        str | None,
        typer.Option(
            metavar="MEMBERS:TIMES,…",
            help="How many times as long a bundle's step takes as a lone trial's, as in 8:1,32:4, interpolated "
            "linearly. Default: 1 with any number of members.",
            rich_help_panel=COSTS,
            show_default=False,
        ),
    ] = None,
    mttf: Annotated[
        float | None,
        typer.Option(
            min=1e-9,
            help="Mean time to failure of a worker, in seconds. Default: never.",
            rich_help_panel=COSTS,
            show_default=False,
        ),
    ] = None,
    repair: Annotated[
        float, typer.Option(min=0.0, help="Seconds until a failed worker is back.", rich_help_panel=COSTS)
    ] = 0.0,
    detect: Annotated[
        float, typer.Option(min=0.0, help="Seconds until the scheduler notices.", rich_help_panel=COSTS)
    ] = 0.0,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|FILE.html",
            help="Draw one simulation (slots over time, rungs), or cost against risk over several seeds.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a study on a virtual cluster, and compare it with running every trial to its end.

    Policy, placement, pauses and explanations are the scheduler's own code. Time, machines and training are simulated.
    Values come from a synthetic model, or from runs that you recorded (see docs/reference/curve-file.md).

    [bold]Examples[/bold]

    headrace simulate study.yaml --workers 8 --plot gantt.svg

    headrace simulate study.yaml --compare run_all,asha,hyperband,median --seeds 50

    headrace simulate study.yaml --sweep eta=2,3,4,8 --seeds 200 --plot tradeoff.svg

    headrace simulate study.yaml --curves runs.csv.gz --workers 16 --seeds 20

    headrace simulate study.yaml --types h100:2x8@2.5,a100:4x8 --mttf 86400 --repair 600

    headrace simulate study.yaml --workers 1 --stages 4x8/16@0.5
    """
    from headrace_services.scheduler.simulator import asking
    from headrace_services.scheduler.simulator.reporting import Times

    output = Session.of(context).output
    if plot is not None and plot.suffix.lower() not in (".svg", ".html"):
        raise CommandError(
            f"--plot: '{plot}' is neither .svg nor .html.", remedy="Choose one of the two.", code=USAGE
        )
    loaded = load_study_file(file)
    recorded = asking.recorded(curves, curve_steps, loaded.spec)
    variants = asking.variants(loaded.spec, compare, sweep)
    beside = asking.stages(stages, stage_gb, loaded.spec)
    scenario = asking.scenario(
        variants,
        loaded.spec.rungs(),
        workers,
        types,
        recorded,
        shuffled=not in_order,
        seconds_per_step=seconds_per_step,
        within=within,
        costs=(checkpoint_gb, bandwidth, start_s, apart),
        crowding=asking.crowding(bundle, loaded.spec),
        failures=(mttf, detect, repair),
        beside=beside,
        stage_gb=stage_gb,
    )
    asking.check_size(scenario)
    timeless = (curves, seconds_per_step, mttf) == (None, None, None) and not checkpoint_gb and not start_s
    times = Times(in_steps=timeless)
    first = loaded.spec.seed if seed is None else seed
    if not as_json:
        given = context.get_parameter_source("workers")
        assumed = types is None and given is not None and given.name == "DEFAULT"
        output.line(_headline(loaded.name, scenario, assumed=assumed))
        if beside is not None:
            output.line(
                f"Beside it: a job of {beside.stages} stages on {beside.devices} devices with {beside.micro_batches} "
                f"micro-batches. Each is idle for {beside.idle:.1%} of a step, and trials have {beside.duty:.1%} of it."
            )
        output.line()
    if seeds == 1:
        written = _once(output, scenario, first, times, plot, loaded.name, as_json=as_json, swept=bool(sweep))
    else:
        written = _many(
            output,
            scenario,
            range(first, first + seeds),
            times,
            plot,
            loaded.name,
            as_json=as_json,
            sweep=sweep,
        )
    if written:
        output.note(f"wrote {plot}")


def _headline(name: str, scenario: "Scenario", *, assumed: bool) -> str:
    spec = scenario.spec
    own = [machine for machine in scenario.machines if not machine.owner]
    slots = sum(machine.slots for machine in own)
    runs = len(scenario.file.curves) if scenario.file is not None else spec.max_trials
    of = f" of {len(scenario.file.curves)} recorded" if scenario.file is not None else ""
    return (
        f"{name}: {min(spec.max_trials, runs)}{of} trials, up to {spec.max_steps} steps each, {goals(spec)}, "
        f"on {len(own)} workers"
        + (f" with {slots} slots" if slots != len(own) else "")
        + (" (assumed: give --workers or --types)" if assumed else "")
    )


def _once(
    output: Output,
    scenario: "Scenario",
    seed: int,
    times: "Times",
    plot: Path | None,
    name: str,
    *,
    as_json: bool,
    swept: bool,
) -> bool:
    """One seed: run-all, then every variant, with the last one's rungs and lanes in full."""
    from headrace_services.scheduler.simulator import reporting
    from headrace_services.scheduler.simulator.drawing.gantt import gantt_svg
    from headrace_services.scheduler.simulator.summary import summarise

    curves = scenario.curves(seed)
    first = scenario.run_all()
    todo = [first, *(one for one in scenario.variants if one.label != first.label)]
    runs: list[tuple[str, Any]] = []
    with reporting.progress(output, "simulating", 0) as say:
        for one in todo:
            simulation, study = scenario.simulate(one, curves if not runs else curves.fork(), seed, say)
            runs.append((one.label, summarise(simulation, study, within=scenario.within)))
    if as_json:
        output.json(
            {"study": name, "seed": seed, "runs": [{"policy": label, **asdict(one)} for label, one in runs]}
        )
    else:
        reporting.show_runs(output, runs, times)
        reporting.show_bubbles(output, {label: one.wall_s for label, one in runs}, times)
        reporting.show_target(output, runs, times, scenario.within)
        if not swept:
            output.line()
            output.line(f"{todo[-1].label}: trials at each rung")
            reporting.show_rungs(output, study)
            output.line()
            output.line(f"{todo[-1].label}: slots over time")
            reporting.show_lanes(output, simulation, study, times)
    if plot is None:
        return False
    title = f"{name}, {todo[-1].label}, seed {seed}"
    _write(plot, gantt_svg(simulation, study, title=title, unit=times.unit(study.record.end_s)), title)
    return True


def _many(
    output: Output,
    scenario: "Scenario",
    seeds: range,
    times: "Times",
    plot: Path | None,
    name: str,
    *,
    as_json: bool,
    sweep: str | None,
) -> bool:
    """Several seeds: means with intervals, and the trade-off."""
    from headrace_services.scheduler.simulator import reporting
    from headrace_services.scheduler.simulator.drawing.tradeoff import Point, tradeoff_svg
    from headrace_services.scheduler.simulator.estimates import row_record, rows
    from headrace_services.scheduler.simulator.scenario import simulate_seeds

    with reporting.progress(output, "seeds", len(seeds)) as say:
        found = rows(simulate_seeds(scenario, seeds, say))
    if as_json:
        output.json(
            {
                "study": name,
                "seeds": list(seeds),
                "within": scenario.within,
                "policies": [row_record(row) for row in found],
            }
        )
    else:
        reporting.show_rows(output, found, times, within=scenario.within)
        reporting.show_bubbles(output, {row.label: row.wall_s.mean for row in found}, times)
    if plot is None:
        return False
    points = [Point(label=row.label, cost=row.cost, panels=(row.regret, row.survived)) for row in found]
    panels = (("regret", ""), ("the best trial was trained to the end", "percent"))
    title = f"{name}: {f'sweep of {sweep}' if sweep else 'policies'} over {len(seeds)} seeds"
    _write(plot, tradeoff_svg(points, panels, title=title, joined=sweep is not None), title)
    return True


def _write(path: Path, svg: str, title: str) -> None:
    from html import escape

    page = svg
    if path.suffix.lower() == ".html":
        head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
        body = f'<body style="margin:24px">\n{svg}</body>'
        page = f'<!doctype html>\n<html lang="en"><head>{head}</head>\n{body}</html>\n'
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"--plot: {path} cannot be written: {error.strerror or error}.", code=USAGE
        ) from error
