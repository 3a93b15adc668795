"""The parts of the documents that are generated from the code. Each is in a document between two marks.

<!-- generated: lifecycle-diagram -->
…
<!-- end generated -->
"""

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, Final

import signatures
import typer
from tables import table
from tier_table import tiers_table

from headrace.bounds.table import LIMITS, SIZES
from headrace.bounds.totals import TOTALS
from headrace.cli.app import build
from headrace.environment import PASSED
from headrace.errors import CATALOGUE
from headrace_services.identity.callers import CALLERS, Place, cell, places
from headrace_services.identity.permissions import PERMISSIONS
from headrace_services.scheduler.core.lifecycle import TRANSITIONS

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
    """Every transition with its conditions."""
    rows = ((row.source or "–", row.target, row.action, row.needs) for row in TRANSITIONS)
    return table(("from", "to", "action", "needs"), rows)


def errors_table() -> str:
    """Every error: the class to catch, the status and reason on the wire, the remedy."""
    rows = (
        (
            f"`{entry.error.__name__}`",
            entry.status,
            "–" if entry.reason is None else entry.reason,
            "yes" if entry.retryable else "no",
            entry.remedy,
        )
        for entry in CATALOGUE
    )
    return table(("exception", "gRPC status", "reason", "retry helps", "remedy"), rows)


def commands() -> str:
    """Every command with its arguments and options. Commands that start services load when they are asked for."""
    root = typer.main.get_command(build())
    context = root.make_context("headrace", [], resilient_parsing=True)
    parts = ["### headrace", *_parameters(root, context)]
    for name in getattr(root, "commands"):  # noqa: B009 - the type of a group is private to typer
        group = typer.main.get_command(build(name))
        command = getattr(group, "commands")[name]  # noqa: B009
        parts += _command(command, name, context)
    return "\n\n".join(parts)


def _command(command: Any, name: str, parent: Any) -> list[str]:
    """One command, and below it those of a group."""
    own = command.make_context(name, [], parent=parent, resilient_parsing=True)
    pieces = (re.sub(r"^\{(.*)\}$", r"\1", piece) for piece in command.collect_usage_pieces(own))
    usage = " ".join([own.command_path, *pieces]).replace("[[", "[").replace("]]", "]")
    parts = [f"### {own.command_path}", f"```\n{usage}\n```", _prose(command.help or "")]
    parts += _parameters(command, own)
    for below, inner in getattr(command, "commands", {}).items():
        parts += _command(inner, below, own)
    return parts


def limits() -> str:
    """The bounds of every field that a service receives, by message."""
    parts = []
    for title, bounds in LIMITS.items():
        parts.append(f"## {title}")
        for message, fields in bounds.items():
            rows = [(f"`{field}`", str(bound)) for field, bound in fields.items()]
            whole = [("the whole", f"{SIZES[message] // 1024} KiB")] if message in SIZES else []
            whole += [(f"`{one.field}`", str(one)) for one in TOTALS.get(message, ())]
            if rows or whole:
                parts += [f"### {message}", table(("field", "bound"), [*rows, *whole])]
    return "\n\n".join(parts)


def permissions_table() -> str:
    """What each caller may do with each method, by service. Methods with the same permissions share a row."""
    parts: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for path in PERMISSIONS:
        service, _, method = path.removeprefix("/").rpartition("/")
        alone = places(path) == {Place.SOCKET}
        cells = () if alone else tuple(cell(path, caller).value for caller in CALLERS)
        parts.setdefault(service, {}).setdefault(cells, []).append(f"`{method}`")
    written = []
    for service, groups in parts.items():
        written.append(f"### {service}")
        rows = [(", ".join(names), *cells) for cells, names in groups.items() if cells]
        if rows:
            written.append(table(("methods", *(caller.heading for caller in CALLERS)), rows))
        if () in groups:
            written.append(f"On a Unix socket alone: {', '.join(groups[()])}.")
    return "\n\n".join(written)


def environment_table() -> str:
    """The variables of a worker that are passed to its trials."""
    rows = ((row.why, " ".join(f"`{name}`" for name in row.names.split())) for row in PASSED)
    return table(("for", "variables"), rows)


GENERATORS: Final[dict[str, Callable[[], str]]] = {
    "lifecycle-diagram": lifecycle_diagram,
    "lifecycle-table": lifecycle_table,
    "errors-table": errors_table,
    "environment-table": environment_table,
    "permissions-table": permissions_table,
    "commands": commands,
    "limits": limits,
    "sdk": signatures.sdk,
    "sdk-values": signatures.values,
    "trial-api": signatures.trial_api,
    "tiers": tiers_table,
}


SITE_ONLY: Final = {"commands", "limits"}
"""Parts of about a thousand lines, which a command can print. In the repository a sentence says how; the site
contains them.
"""


def rewritten(text: str, *, site: bool = False) -> str:
    """The document with every generated part updated from the code, for the repository or the site."""

    def fill(block: re.Match[str]) -> str:
        if block["name"] in SITE_ONLY and not site:
            return block[0]
        return f"{block['begin']}{GENERATORS[block['name']]()}\n{block['end']}"

    return BLOCK.sub(fill, text)


def _prose(text: str) -> str:
    """Help as prose; the examples after it stay with `--help`."""
    plain = re.split(r"\[bold\]Examples?\[/bold\]|\x08", cleandoc(text))[0]
    return re.sub(r"\[/?[a-z ]+\]", "", plain).strip()


def _parameters(command: Any, context: Any) -> list[str]:
    """Arguments and options as a table, without Click's types, of which typer has a private copy."""
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or {"--help", "--install-completion", "--show-completion"} & set(parameter.opts):
            continue
        spelling, meaning = record[0].strip().replace(" range>", ">"), re.sub(r"\[/?[a-z ]+\]", "", record[1])
        rows.append((f"`{spelling}`", " ".join(meaning.split())))
    return [table(("option", "meaning"), rows)] if rows else []
