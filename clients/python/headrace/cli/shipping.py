"""What `headrace run` says about the code that it ships."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.cli.output import Output
from headrace.client.shipping import OnBytes, ships
from headrace.code import read_folder, revision_of
from headrace.code.sizes import size
from headrace.spec import StudySpec
from headrace.spec.code import Code

_QUIET_S = 1.0
_EVERY_S = 2.0
SHORT = 12
"""How many digits of a digest are shown."""


def show_dry_run(
    spec: StudySpec, address: str, choice: bool | None, output: Output, *, as_json: bool
) -> None:
    """Lists what would be shipped, largest first, and says whether it would be. Raises `InvalidFieldError`."""
    template = spec.template
    assert template is not None
    folder = read_folder(Path(template.working_dir))
    manifest = folder.manifest
    would = ships(template, address, choice)
    revision = revision_of(folder.root)
    entries = sorted(manifest.entries, key=lambda entry: (-entry.size_bytes, entry.path))
    if as_json:
        output.json(
            {
                "folder": folder.root,
                "digest": manifest.digest,
                "size_bytes": manifest.size_bytes,
                "files": [{"path": entry.path, "size_bytes": entry.size_bytes} for entry in entries],
                "left_out": folder.left_out,
                "commit": revision.commit if revision else None,
                "dirty": revision.dirty if revision else None,
                "ships": would,
            }
        )
        return
    rows = [
        [size(entry.size_bytes), f"{entry.path} -> {entry.to}" if entry.to else entry.path]
        for entry in entries
    ]
    output.table(["SIZE", "FILE"], rows, right=["SIZE"])
    code = Code(
        ship=True,
        digest=manifest.digest,
        size_bytes=manifest.size_bytes,
        files=manifest.files,
        commit=revision.commit if revision else "",
        dirty=revision.dirty if revision else False,
    )
    output.line(f"\n{described(code)}")
    if folder.left_out:
        output.note(f"Left out: {', '.join(folder.left_out)}.")
    if not would:
        output.note(f"Not shipped to {address}: workers run in {folder.root} itself. --ship ships it.")
    if not template.requirements and "requirements.txt" in {entry.path for entry in entries}:
        output.note(
            "Workers install nothing of requirements.txt unless the study names it: "
            "`trial: {requirements: requirements.txt}`."
        )


def described(code: Code) -> str:
    """A study's code in words; empty if nothing is known about it."""
    parts = []
    if code.digest:
        files = f"{code.files} file{'s' * (code.files != 1)}"
        parts.append(f"{code.digest[:SHORT]} ({files}, {size(code.size_bytes)})")
    if code.commit:
        parts.append(f"git commit {code.commit[:SHORT]}" + (" with changes" if code.dirty else ""))
    return ", ".join(parts)


@contextmanager
def progress(output: Output) -> Iterator[OnBytes]:
    """Yields the progress callback of an upload, which prints a note if it takes longer than a second."""
    began = time.monotonic()
    told = began + _QUIET_S - _EVERY_S
    with output.status("Shipping the code") as update:

        def on_bytes(sent: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            text = f"{size(sent)} of {size(total)}"
            if output.errors.is_terminal:
                update(text)
            elif now - told >= _EVERY_S:
                told = now
                output.note(f"Shipping the code: {text}")

        yield on_bytes
