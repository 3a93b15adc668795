"""`headrace plan`: plans, their comparison, explanation and calibration, all without a server.

`headrace plan MODEL CLUSTER` plans; `compare`, `explain` and `calibrate` are subcommands.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from headrace.cli.failure import USAGE, CommandError
from headrace.cli.output import Output
from headrace.cli.session import AsJson, Session
from headrace_services.planner.options import (
    Asked,
    BudgetOption,
    ClusterArgument,
    MethodOption,
    ModelArgument,
    ModeOption,
    SecondsOption,
    asked,
)

if TYPE_CHECKING:
    from headrace_services.planner.costing import Request
    from headrace_services.planner.search import Method


class PlanGroup(TyperGroup):
    """Treats `headrace plan MODEL CLUSTER` as `headrace plan make MODEL CLUSTER`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own Context
        """Inserts the default command before a first word that is not a command."""
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = ["make", *args]
        return super().parse_args(ctx, args)


plan = typer.Typer(
    name="plan",
    cls=PlanGroup,
    no_args_is_help=True,
    help="""Plan how to split a training job over a cluster: degrees, stages and recomputed layers.

    [bold]Examples[/bold]

    headrace plan gpt3-175b a100-64 --batch 64

    headrace plan deepseek-141b ascend910-128 --compare

    headrace plan llama3-70b h100-64 --target megatron --out plan
    """,
)


@plan.command("make")
@asked
def make(
    context: typer.Context,
    model: ModelArgument,
    cluster: ClusterArgument,
    options: Asked,
    mode: ModeOption = "h2o",
    method: MethodOption = "exact",
    target: Annotated[
        str | None, typer.Option(help="Write it for deepspeed or megatron.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write plan, timelines and target.", show_default=False),
    ] = None,
    seconds: SecondsOption = None,
    budget: BudgetOption = None,
    with_front: Annotated[
        bool,
        typer.Option("--front", help="Also list plans that take less memory, and how much slower they are."),
    ] = False,
    with_bubbles: Annotated[
        bool,
        typer.Option("--bubbles", help="Show the stages' idle windows: how much tuning they would carry."),
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            help="Ask the planner's server at HOST:PORT instead of planning here. With --measure: the scheduler's.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the plan: FILE.svg is a picture, FILE.html a page to zoom and point at.",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Time the shortlist as trials of a study on the scheduler's workers; each trial calls the function.",
            show_default=False,
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option(min=1, max=1000, help="How many to time of each plan, after one to warm up.")
    ] = 5,
    comparing: Annotated[bool, typer.Option("--compare", help="All modes of Table 1 side by side.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the fastest plan (this is `headrace plan MODEL CLUSTER`).

    [bold]Example[/bold]

    headrace plan gpt3-175b a100-64 --batch 64 --target megatron --out plan
    """
    from headrace_services.planner import asking, bubbles, picture, reporting
    from headrace_services.planner.explain import nothing_fits
    from headrace_services.planner.record import brief_record, plan_record, shortlist_record
    from headrace_services.planner.tradeoff import front

    given: dict[str, object] = {"--front": with_front, "--plot": plot, "--bubbles": with_bubbles}
    if comparing:
        given |= {"--mode": mode != "h2o", "--target": target, "--out": out, "--measure": measure}
        given |= {"--seconds": seconds is not None, "--budget": budget is not None}
        _refuse("--compare searches all modes to their end and writes no files, so it does not take", given)
    if target is not None and out is None:
        raise CommandError("--target needs --out.", remedy="Say where to write with --out DIR.", code=USAGE)
    output = Session.of(context).output
    options = replace(options, target=asking.target(target))
    # `headrace` accepts --address anywhere on the command line, for its session.
    address = address or Session.of(context).address
    if address is not None and measure is None:
        from headrace_services.planner import remote

        given |= {"--compare": comparing, "--constants": options.constants, "--selective": options.selective}
        _refuse("A planner's server does not take", given)
        remote.show(output, address, model, cluster, options, mode, method, seconds, budget, out, as_json)
        return
    request = asking.request(model, cluster, options)
    chosen, way = asking.mode(mode), asking.method(method)
    if out is not None:
        reporting.writable_folder(out)
    if plot is not None:
        picture.drawable(plot)
    if comparing:
        _compare(output, request, way, as_json)
        return
    with reporting.progress(output, f"planning {request.model.name} on {request.cluster.name}") as watch:
        search = asking.search(request, way, watch, asking.limit(seconds, budget))
        outcome = search.run(chosen)
        near = search.near(chosen)
        points = list(front(request, chosen, way, watch)) if with_front and outcome.plan else []
    found = outcome.plan
    if found is None and not outcome.complete:
        raise asking.nothing_yet(outcome.solved)
    if found is None:
        raise nothing_fits(search, chosen)
    measured = None
    if measure is not None:
        from headrace_services.planner import measuring

        with (
            Session.of(context).client(address) as client,
            output.status(f"measuring {len(near)} plans") as say,
        ):
            measured = measuring.measure(
                client, near, measure, iterations=iterations, folder=Path.cwd(), say=say
            )
        found = measured.winner.plan
    written = reporting.write(found, out, target) if out is not None else []
    if measured is not None and out is not None:
        written.append(measuring.write_constants(measured, out))
    if plot is not None:
        reporting.write_text(plot, picture.drawn(found, plot), "plot")
        written.append(plot)
    if as_json:
        told: dict[str, object] = {"complete": outcome.complete, "bound_s": outcome.bound_s}
        told |= {
            "shortlist": shortlist_record(near),
            "front": [brief_record(one) for one in points],
        }
        if with_bubbles:
            told["bubbles"] = bubbles.records(found)
        if measured is not None:
            told["measured"] = measuring.record(measured)
        output.json(plan_record(found) | told)
    else:
        reporting.show_plan(output, found)
        if with_bubbles:
            reporting.show_windows(output, bubbles.windows(found))
        if measured is None:
            reporting.show_shortlist(output, near)
        else:
            measuring.show(output, measured)
        if points:
            reporting.show_front(output, points)
        if not outcome.complete:
            bound = (
                "no bound is known"
                if outcome.bound_s is None
                else f"no plan takes less than {outcome.bound_s:.4g} s"
            )
            output.note(f"the limit ended the search: this is the best of {outcome.solved} tuples; {bound}")
    for path in written:
        output.note(f"wrote {path}")


@plan.command("compare")
@asked
def compare(
    context: typer.Context,
    model: ModelArgument,
    cluster: ClusterArgument,
    options: Asked,
    method: MethodOption = "exact",
    as_json: AsJson = False,
) -> None:
    """Compare the full search with the axes of D-Rec, DAPPLE, PipeDream, Alpa and AdaPipe (H²O, Table 1).

    [bold]Example[/bold]

    headrace plan compare deepseek-141b ascend910-128 --batch 2048
    """
    from headrace_services.planner import asking

    output = Session.of(context).output
    request = asking.request(model, cluster, options)
    _compare(output, request, asking.method(method), as_json)


@plan.command("explain")
@asked
def explain(
    context: typer.Context,
    model: ModelArgument,
    cluster: ClusterArgument,
    options: Asked,
    mode: ModeOption = "h2o",
    method: MethodOption = "exact",
    count: Annotated[int, typer.Option(min=1, max=50, help="How many of the next best plans to list.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Say why the plan won: what the nearest others lose, and how the search knows.

    [bold]Example[/bold]

    headrace plan explain gpt3-175b a100-64 --batch 64
    """
    from headrace_services.planner import asking, reporting
    from headrace_services.planner.explain import explain as explained
    from headrace_services.planner.record import plan_record

    output = Session.of(context).output
    request = asking.request(model, cluster, options)
    with reporting.progress(output, f"planning {request.model.name} on {request.cluster.name}") as watch:
        answer = explained(
            asking.search(request, asking.method(method), watch), asking.mode(mode), count=count
        )
    if as_json:
        losers = [asdict(loser) for loser in answer.losers]
        changes = [asdict(delta) for delta in answer.deltas]
        told = {"plan": plan_record(answer.plan), "summary": answer.summary}
        output.json({**told, "losers": losers, "deltas": changes})
    else:
        reporting.show_explanation(output, answer)


@plan.command("calibrate")
def calibrate(
    context: typer.Context,
    rows: Annotated[
        list[Path],
        typer.Argument(metavar="ROWS...", help="CSV files of measured iterations.", show_default=False),
    ],
    cluster: Annotated[
        str, typer.Option(help="The cluster on which they were measured.")
    ] = "a100-80g-hdr4-512",
    folds: Annotated[int, typer.Option(min=2, max=50, help="How many folds the cross-validation has.")] = 10,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the constants.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a cluster's constants to measured iterations, and say how well they predict rows that were not fitted.

    [bold]Example[/bold]

    headrace plan calibrate benchmarks/planner/data/vtrain_*.csv
    """
    from headrace_services.planner import catalogue, reporting
    from headrace_services.planner.calibration import RANGES, description, fit, rounded
    from headrace_services.planner.measured import predicted_s, read_rows
    from headrace_services.planner.validation import accuracy, cross_validated_s

    output = Session.of(context).output
    if out is not None:
        reporting.writable_folder(out.parent)
    measured, where = read_rows(rows), catalogue.cluster(cluster)
    with output.status(f"fitting {len(measured)} rows") as say:
        constants = rounded(fit(measured, where))
        held_out = cross_validated_s(
            measured, where, folds=folds, on_fold=lambda number: say(f"fold {number} of {folds}")
        )
    fitted = accuracy(predicted_s(measured, where.with_efficiencies(constants)), measured.seconds)
    validated = accuracy(held_out, measured.seconds)
    values = {name: getattr(constants, name) for name in RANGES}
    if out is not None:
        source = f"fitted on {len(measured)} rows: {', '.join(path.name for path in rows)}"
        profile = {"source": source, "constants": description(constants)}
        reporting.write_text(out, json.dumps({out.stem: profile}, indent=1) + "\n")
    if as_json:
        told = {"constants": description(constants), "fitted": asdict(fitted)}
        output.json({**told, "cross_validated": asdict(validated)})
    else:
        reporting.show_calibration(output, values, len(constants.shapes), fitted, validated)


def _refuse(says: str, given: Mapping[str, object]) -> None:
    """Rejects the options that were given, by name. Raises CommandError."""
    refused = [name for name, value in given.items() if value]
    if refused:
        raise CommandError(f"{says} {', '.join(refused)}.", remedy="Leave that out.", code=USAGE)


def _compare(output: Output, request: "Request", method: "Method", as_json: bool) -> None:
    from headrace_services.planner import asking, reporting
    from headrace_services.planner.modes import MODES
    from headrace_services.planner.record import outcome_record

    with reporting.progress(output, f"comparing modes for {request.model.name}") as watch:
        search = asking.search(request, method, watch)
        outcomes = [search.run(mode) for mode in MODES.values()]
    if as_json:
        output.json([outcome_record(outcome) for outcome in outcomes])
    else:
        reporting.show_comparison(output, search, outcomes)
