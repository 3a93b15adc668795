"""Shipped code: a CodeService beside the scripted scheduler, and folders packed as clients pack them."""

import io
from pathlib import Path
from typing import Any

import grpc
import pytest
from scripted_scheduler import ScriptedScheduler

from headrace.code import read_folder, write_archive
from headrace.error_status import to_status
from headrace.errors import CodeNotFoundError
from headrace.v1 import code_pb2, code_pb2_grpc


class Codes(code_pb2_grpc.CodeServiceServicer):
    """Serves what a test has uploaded."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.failures = 0

    async def GetCode(self, request: code_pb2.GetCodeRequest, context: Any) -> Any:
        self.asked.append(request.digest)
        if self.failures:
            self.failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        data = self.kept.get(request.digest)
        if data is None:
            status = to_status(CodeNotFoundError("the code is not kept here"))
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            await context.abort(grpc.StatusCode.NOT_FOUND, status.message)
            return
        for at in range(0, len(data), 5000):
            yield code_pb2.GetCodeResponse(data=data[at : at + 5000])


async def served_beside(scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch) -> Codes:
    """CodeService beside the scripted scheduler."""
    service = Codes()
    await scheduler.stop()
    plain = grpc.aio.server

    def with_codes(*args: Any, **kwargs: Any) -> grpc.aio.Server:
        server = plain(*args, **kwargs)
        code_pb2_grpc.add_CodeServiceServicer_to_server(service, server)
        return server

    with monkeypatch.context() as patch:
        patch.setattr(grpc.aio, "server", with_codes)
        await scheduler.start()
    return service


def packed(root: Path, files: dict[str, str]) -> tuple[str, bytes]:
    """Writes a folder; returns its digest and its archive."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    folder, out = read_folder(root), io.BytesIO()
    write_archive(folder, out)
    return folder.manifest.digest, out.getvalue()
