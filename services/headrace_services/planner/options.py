"""The options of `headrace plan`: their types, and those that make, compare and explain share.

The common ones become an `asking.Options`. They are declared once, in `COMMON`, and `asked` inserts them into a
command's signature, where Typer reads them.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

if TYPE_CHECKING:
    from headrace_services.planner.asking import Options

Asked: TypeAlias = "Options"
"""The type of a parameter `options` that `asked` replaces; a name only, since reading the type would load the
planner."""

USABLE_MEMORY = 0.94

MODEL = (
    "A preset (gpt3-175b, llama3-70b, deepseek-141b, …), a Hugging Face config.json, a description, or a profile of "
    "layers (.json)."
)
CLUSTER = "DEVICE-COUNT (a100-80g-64, h100-128, ascend910-128, …), or a description (.json)."
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)]
ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help=CLUSTER, show_default=False)]
Batch = Annotated[
    int | None,
    typer.Option(help="Sequences per iteration. Default: 16 per device.", show_default=False),
]
Sequence = Annotated[
    int | None, typer.Option(help="Tokens per sequence. Default: the model's own.", show_default=False)
]
ScheduleOption = Annotated[str, typer.Option(help="1f1b, interleaved, zero-bubble or gpipe.")]
Chunks = Annotated[int, typer.Option(help="Model chunks per stage, for interleaved.")]
Zero = Annotated[int, typer.Option(help="What the optimizer degree shards: 1, 2 or 3 as in ZeRO.")]
AttentionOption = Annotated[str, typer.Option(help="flash, selective or materialised.")]
ModeOption = Annotated[
    str, typer.Option(help="Which axes to search: h2o (all), d-rec, dapple, pipedream, alpa, adapipe.")
]
SelectiveOption = Annotated[
    str | None,
    typer.Option(
        metavar="LAYERS",
        help="Layers that compute attention scores again, such as 1-12,20. With --attention materialised.",
        show_default=False,
    ),
]
GradientsOption = Annotated[
    str | None,
    typer.Option(help="Precision of gradients: fp32 or bf16. Default: the target's own.", show_default=False),
]
OverlapOption = Annotated[
    str | None,
    typer.Option(
        help="What hides behind computation: all, none, or some of gradients,tensor,optimizer. Default: as measured.",
        show_default=False,
    ),
]
SequenceParallel = Annotated[
    bool, typer.Option(help="Whether tensor ranks split the sequence between their products.")
]
UsableMemory = Annotated[float, typer.Option(help="Share of a device's memory that a plan may use.")]
ConstantsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Constants of the cluster, from `headrace plan calibrate --out`.",
        show_default=False,
    ),
]
MethodOption = Annotated[str, typer.Option(help="Level 2: exact, or local as in the paper.")]


SecondsOption = Annotated[
    float | None,
    typer.Option(
        help="End the search after this time, with the best plan found by then.", show_default=False
    ),
]
BudgetOption = Annotated[
    int | None,
    typer.Option(
        help="End the search after this many tuples of degrees (the paper's N).", show_default=False
    ),
]

COMMON: Final[dict[str, tuple[Any, Any]]] = {
    "batch": (Batch, None),
    "sequence": (Sequence, None),
    "schedule": (ScheduleOption, "1f1b"),
    "chunks": (Chunks, 1),
    "zero": (Zero, 1),
    "attention": (AttentionOption, "flash"),
    "selective": (SelectiveOption, None),
    "gradients": (GradientsOption, None),
    "overlap": (OverlapOption, None),
    "sequence_parallel": (SequenceParallel, True),
    "usable_memory": (UsableMemory, USABLE_MEMORY),
    "constants": (ConstantsOption, None),
}
"""Fields of `asking.Options` with the types and defaults of their options."""


def asked(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's parameter `options` by the options of `COMMON`, and fills it from them."""
    own = inspect.signature(command)
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in COMMON.items()
    ]
    others = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own.parameters.values()]
    place = [one.name for one in others].index("options")
    parameters = [*others[:place], *common, *others[place + 1 :]]

    @wraps(command)
    def run(**given: Any) -> None:
        from headrace_services.planner.asking import Options

        told = {name: given.pop(name) for name in COMMON}
        command(options=Options(**told), **given)

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions may have one
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
