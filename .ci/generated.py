"""The parts of the documents that are written from the code: each name stands in a document between two marks.

<!-- generated: lifecycle-diagram -->
…
<!-- end generated -->
"""

import re
from collections.abc import Callable, Iterable
from inspect import cleandoc
from typing import Final

import click
import typer

from headrace.cli.app import build
from headrace.errors import CATALOGUE
from headrace.v1 import error_pb2
from headrace_services.scheduler.lifecycle import TRANSITIONS

BLOCK: Final = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[a-z-]+) -->\n).*?(?P<end><!-- end generated -->)", re.DOTALL
)


def lifecycle_diagram() -> str:
    """The state diagram; moves between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in TRANSITIONS:
        arrows.setdefault((row.source or "[*]", row.target), []).append(row.action)
    lines = [
        f"    {source} --> {target}: {', '.join(actions)}" for (source, target), actions in arrows.items()
    ]
    targets = {row.target for row in TRANSITIONS}
    final = sorted(targets - {row.source for row in TRANSITIONS})
    lines += [f"    {state} --> [*]" for state in final]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    direction LR", *lines, "```"])


def lifecycle_table() -> str:
    """Every transition with what it needs."""
    rows = ((row.source or "–", row.target, row.action, row.needs) for row in TRANSITIONS)
    return _table(("from", "to", "action", "needs"), rows)


def errors_table() -> str:
    """Every error: the class to catch, the status and reason on the wire, the remedy."""
    rows = (
        (
            f"`{entry.error.__name__}`",
            entry.status.name,
            "–" if entry.reason is None else _reason(entry.reason),
            "yes" if entry.retryable else "no",
            entry.remedy,
        )
        for entry in CATALOGUE
    )
    return _table(("exception", "gRPC status", "reason", "retry helps", "remedy"), rows)


def commands() -> str:
    """Every command with its arguments and options."""
    root = typer.main.get_command(build())
    assert isinstance(root, click.Group)
    context = click.Context(root, info_name="headrace")
    parts = ["### headrace", *_parameters(root, context)]
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if command is not None and not command.hidden:
            parts += [f"### headrace {name}", *_command(command, click.Context(command, context, name))]
    return "\n\n".join(parts)


GENERATORS: Final[dict[str, Callable[[], str]]] = {
    "lifecycle-diagram": lifecycle_diagram,
    "lifecycle-table": lifecycle_table,
    "errors-table": errors_table,
    "commands": commands,
}


def rewritten(text: str) -> str:
    """The document with every generated part as the code has it now."""

    def fill(block: re.Match[str]) -> str:
        return f"{block['begin']}{GENERATORS[block['name']]()}\n{block['end']}"

    return BLOCK.sub(fill, text)


def _command(command: click.Command, context: click.Context) -> list[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    return [f"```\n{usage}\n```", _prose(command.help or ""), *_parameters(command, context)]


def _prose(text: str) -> str:
    """Help as prose; the examples after it, in a block of their own, stay with `--help`."""
    return re.sub(r"\[/?[a-z ]+\]", "", cleandoc(text).partition("\b")[0]).strip()


def _parameters(command: click.Command, context: click.Context) -> list[str]:
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            continue
        spelling = parameter.make_metavar(context) if isinstance(parameter, click.Argument) else record[0]
        rows.append((f"`{spelling}`", re.sub(r"\[/?[a-z ]+\]", "", record[1])))
    return [_table(("option", "meaning"), rows)] if rows else []


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(head), "|" + " --- |" * len(head), *map(line, rows)])


def _reason(reason: "error_pb2.ErrorReason.ValueType") -> str:
    return error_pb2.ErrorReason.Name(reason).removeprefix("ERROR_REASON_")
