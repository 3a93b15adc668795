"""Shipping the folder of a study's program, before the study is created.

The rule: `--ship` or `--no-ship` decides, or else the study's `code: ship|folder`. Without either, the folder is
shipped if it is on this machine and the scheduler is not. On one machine, workers run in the folder itself.

    read and hash the folder → ask for the digest → if missing: archive and upload it → name the digest in the spec

Each step may be repeated. If a file changes in between, it starts over, a few times at most.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from headrace.client.flow import Awaiting, Blocking, Flow, Upload, method_of, rpc
from headrace.code import Folder, read_folder, revision_of, write_archive
from headrace.code.folder import FolderChangedError, FolderError
from headrace.errors import InvalidFieldError, Violation
from headrace.home import is_on_this_machine
from headrace.spec import StudySpec, TrialTemplate
from headrace.spec.code import Code
from headrace.v1 import code_pb2 as pb

CHUNK_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 3

OnBytes = Callable[[int, int], None]
"""Called during an upload, in another thread, with the number of bytes sent and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """The folder to ship, and the spec that says so."""

    spec: StudySpec
    # None: nothing is shipped.
    folder: Folder | None = None


def ships(template: TrialTemplate, address: str, choice: bool | None) -> bool:
    """Whether the folder of a program is shipped to a scheduler at `address`; `choice` is the caller's."""
    asked = template.code.ship if template.code is not None else None
    wanted = asked if choice is None else choice
    if wanted is not None:
        return wanted
    return not is_on_this_machine(address) and Path(template.working_dir).is_dir()


def prepared(spec: StudySpec, address: str, choice: bool | None = None) -> Shipment:
    """Reads the folder, if it must be shipped, and asks git for its commit. Raises `InvalidFieldError`."""
    template = spec.template
    if template is None or (template.code is not None and template.code.digest):
        return Shipment(
            spec=spec
        )  # ask/tell trials have no program; a spec with a digest already has its code
    here = Path(template.working_dir)
    ship = ships(template, address, choice)
    if ship and not here.is_dir():
        violation = Violation(
            field="trial.working_dir",
            value=repr(template.working_dir),
            message="is not a folder here, so it cannot be shipped",
            remedy="Name the folder of the program, or leave it to the workers: `trial: {code: folder}`.",
        )
        raise FolderError([violation])
    revision = revision_of(here) if here.is_dir() else None
    known = {} if revision is None else {"commit": revision.commit, "dirty": revision.dirty}
    if not ship:
        code = template.code if choice is None else None
        named = Code(ship=code.ship if code else choice, **known)
        return Shipment(spec=_with(spec, named if named != Code() else None))
    folder = read_folder(here)
    _require_requirements(template, folder)
    manifest = folder.manifest
    code = Code(
        ship=True, digest=manifest.digest, size_bytes=manifest.size_bytes, files=manifest.files, **known
    )
    return Shipment(spec=_with(spec, code), folder=folder)


def shipped(
    transport: Blocking,
    address: str,
    spec: StudySpec,
    choice: bool | None = None,
    on_bytes: OnBytes | None = None,
) -> StudySpec:
    """Uploads the folder if necessary, and returns the spec that names its digest. Raises `HeadraceError`."""
    shipment = prepared(spec, address, choice)
    for attempt in range(_ATTEMPTS):
        if shipment.folder is None or transport.run(has_code(shipment.folder)):
            break
        try:
            with tempfile.TemporaryFile() as file:
                write_archive(shipment.folder, file)
                transport.run(put_code(shipment.folder, file, on_bytes))
            break
        except FolderChangedError:
            if attempt + 1 == _ATTEMPTS:
                raise
            shipment = prepared(spec, address, choice)
    return shipment.spec


async def shipped_meanwhile(
    transport: Awaiting,
    address: str,
    spec: StudySpec,
    choice: bool | None = None,
    on_bytes: OnBytes | None = None,
) -> StudySpec:
    """The same, in a thread next to an event loop."""
    shipment = await asyncio.to_thread(prepared, spec, address, choice)
    for attempt in range(_ATTEMPTS):
        if shipment.folder is None or await transport.run(has_code(shipment.folder)):
            break
        try:
            with tempfile.TemporaryFile() as file:
                await asyncio.to_thread(write_archive, shipment.folder, file)
                await transport.run(put_code(shipment.folder, file, on_bytes))
            break
        except FolderChangedError:
            if attempt + 1 == _ATTEMPTS:
                raise
            shipment = await asyncio.to_thread(prepared, spec, address, choice)
    return shipment.spec


def has_code(folder: Folder) -> Flow[bool]:
    """Whether the scheduler has a folder's code."""
    answer = yield from rpc(pb.HasCodeResponse, pb.HasCodeRequest(digest=folder.manifest.digest))
    return answer.present


def put_code(folder: Folder, file: BinaryIO, on_bytes: OnBytes | None) -> Flow[None]:
    """Uploads a folder's archive to the scheduler."""
    size_bytes = file.seek(0, os.SEEK_END)
    digest = folder.manifest.digest
    yield Upload(method_of(pb.PutCodeResponse), lambda: _pieces(digest, file, size_bytes, on_bytes))


def _with(spec: StudySpec, code: Code | None) -> StudySpec:
    assert spec.template is not None
    if spec.template.code == code:
        return spec
    return spec.model_copy(update={"template": spec.template.model_copy(update={"code": code})})


def _require_requirements(template: TrialTemplate, folder: Folder) -> None:
    named = template.requirements
    if named and named not in {entry.path for entry in folder.manifest.entries}:
        violation = Violation(
            field="trial.requirements",
            value=repr(named),
            message=f"is not among the files that are shipped from {folder.root}",
            remedy="Correct the name, or take it out of .headraceignore.",
        )
        raise InvalidFieldError([violation])


def _pieces(
    digest: str, file: BinaryIO, size_bytes: int, on_bytes: OnBytes | None
) -> Iterator[pb.PutCodeRequest]:
    """The messages of one upload, from the start of the file."""
    file.seek(0)
    sent = 0
    while data := file.read(CHUNK_BYTES):
        yield pb.PutCodeRequest(digest=digest if not sent else "", data=data)
        sent += len(data)
        if on_bytes is not None:
            on_bytes(sent, size_bytes)
