"""What scripts that measure one model after another share: their command line, and the record next to each script."""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch


def parser(script: str, doc: str | None) -> argparse.ArgumentParser:
    """The common options; the record is next to `script`."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--out", type=Path, default=Path(script).parents[1] / "results" / f"{Path(script).stem}.json"
    )
    options.add_argument("--table", action="store_true", help="print the record, and measure nothing")
    return options


def named_rows(script: str, doc: str | None, seeds: int) -> argparse.ArgumentParser:
    """The options of a script with one row per model."""
    options = parser(script, doc)
    options.add_argument("names", nargs="*", help="the models to measure; all where none is named")
    options.add_argument("--seeds", type=int, default=seeds)
    return options


def measure(
    given: argparse.Namespace,
    names: Iterable[str],
    row: Callable[[str, Mapping[str, Any]], Mapping[str, Any]],
    indent: int | None = 1,
) -> dict[str, Any]:
    """Measures each requested model, and writes the record after each.

    `row` takes a model's name and its entry in the record.
    """
    quiet()
    names, rows = list(names), {}
    if given.out.exists():
        rows = json.loads(given.out.read_text(encoding="utf-8"))
    for name in [] if given.table else [one for one in names if one in (given.names or names)]:
        began = time.process_time()
        rows[name] = row(name, rows.get(name, {}))
        print(name, json.dumps(rows[name]), f"{time.process_time() - began:.0f} s", flush=True)
        rows = {one: rows[one] for one in names if one in rows}
        given.out.write_text(json.dumps(rows, indent=indent) + "\n", encoding="utf-8")
    return rows


def quiet() -> None:
    """One core, and no warnings between the rows."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def slope(gate: Mapping[str, Any]) -> str:
    """A gate's steepest slope, as a table cell."""
    if "slope" not in gate:
        return "diverges" if "why" in gate else "none"
    return f"{signed(gate['slope'])} ± {gate['error']:.2f} ({gate['at']})"


def signed(value: float) -> str:
    """Two decimal places and a proper minus sign."""
    return f"{value:+.2f}".replace("-", "−")
