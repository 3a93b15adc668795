"""Code uploads: a silent or slow client blocks nobody, and no project stores more than it may."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from rpc_site import RpcSite
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.code import read_folder, write_archive
from headrace.error_status import from_rpc_error
from headrace.errors import BusyError, DeadlineError, HeadraceError, QuotaExceededError
from headrace.v1 import code_pb2 as pb
from headrace.v1 import project_pb2
from headrace.v1.code_pb2_grpc import CodeServiceStub
from headrace_services.scheduler.rpc.uploads import OPEN_EACH, PLACES, PLACES_EACH, Upload, Uploads

FIRST = pb.PutCodeRequest(digest="0" * 64, data=b"x")


def packed(folder: Path, name: str, size: int = 0) -> tuple[str, bytes]:
    """The digest and the archive of a new folder."""
    (folder / name).mkdir()
    (folder / name / "train.py").write_text(name)
    (folder / name / "weights.bin").write_bytes(bytes(size))
    read, out = read_folder(folder / name), io.BytesIO()
    write_archive(read, out)
    return read.manifest.digest, out.getvalue()


class Shipper:
    """A member of a project."""

    def __init__(self, channel: grpc.aio.Channel, project: str = "default") -> None:
        self._stub: Any = CodeServiceStub(channel)
        self._said = (("headrace-project", project),)

    def begin(self, messages: AsyncIterator[pb.PutCodeRequest]) -> Any:
        """An upload in progress."""
        return self._stub.PutCode(messages, timeout=3600, metadata=self._said)

    async def put(self, digest: str, data: bytes) -> HeadraceError | None:
        """Upload an archive; returns why it failed."""

        async def pieces() -> AsyncIterator[pb.PutCodeRequest]:
            for at in range(0, len(data), 1 << 20):
                yield pb.PutCodeRequest(digest="" if at else digest, data=data[at : at + (1 << 20)])

        try:
            await self.begin(pieces())
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        return None


async def silent(*first: pb.PutCodeRequest) -> AsyncIterator[pb.PutCodeRequest]:
    """The messages, and then silence without an end."""
    for message in first:
        yield message
    await asyncio.Event().wait()


async def test_uploads_that_send_nothing_keep_nobody_off(site: RpcSite, tmp_path: Path) -> None:
    async with grpc.aio.insecure_channel(site.replicas[0].address) as channel, asyncio.timeout(60):
        open_ones = [Shipper(channel).begin(silent()) for _ in range(OPEN_EACH - 1)]
        open_ones += [Shipper(channel, "vision").begin(silent()) for _ in range(OPEN_EACH)]
        for one in open_ones:
            await one.wait_for_connection()
        assert await Shipper(channel).put(*packed(tmp_path, "ours")) is None
        for one in open_ones:
            one.cancel()


async def test_a_project_whose_places_are_taken_keeps_no_other_off(site: RpcSite, tmp_path: Path) -> None:
    async with grpc.aio.insecure_channel(site.replicas[0].address) as channel, asyncio.timeout(60):
        open_ones = [Shipper(channel, "vision").begin(silent(FIRST)) for _ in range(OPEN_EACH)]
        for one in open_ones:
            await one.wait_for_connection()
        assert await Shipper(channel).put(*packed(tmp_path, "ours")) is None
        for one in open_ones:
            one.cancel()


async def test_a_silent_or_slow_upload_loses_its_place() -> None:
    async def dripping() -> AsyncIterator[pb.PutCodeRequest]:
        while True:
            yield FIRST
            await asyncio.sleep(0.02)

    async def taken(upload: Upload) -> None:
        async with upload.place(), asyncio.timeout(60):
            while await upload.next():
                pass

    uploads = Uploads(silence_s=0.1)
    for messages in (silent(), silent(FIRST, FIRST), dripping()):
        async with uploads.opened("p", messages) as upload:
            with pytest.raises(DeadlineError, match="silent for"):
                await taken(upload)


async def test_an_upload_that_waits_for_a_place_is_not_late() -> None:
    """The time limit starts when it gets its place."""
    uploads = Uploads(silence_s=0.2)
    async with AsyncExitStack() as stack:
        first, second, waiting = [
            await stack.enter_async_context(uploads.opened("p", silent(FIRST, FIRST))) for _ in range(3)
        ]
        assert await waiting.next() == FIRST
        async with first.place(), second.place():
            placed = asyncio.create_task(stack.enter_async_context(waiting.place()))
            await asyncio.sleep(0.3)
            assert not placed.done()
        await placed
        assert await waiting.next() == FIRST


async def test_places_are_for_all_and_few_for_each_project() -> None:
    uploads = Uploads()
    async with AsyncExitStack() as stack:

        async def begin(project: str) -> asyncio.Task[None]:
            upload = await stack.enter_async_context(uploads.opened(project, silent()))
            task = asyncio.create_task(stack.enter_async_context(upload.place()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return task

        projects = PLACES // PLACES_EACH
        for number in range(projects):
            begun = [await begin(f"p{number}") for _ in range(PLACES_EACH + 1)]
            assert [task.done() for task in begun] == [True] * PLACES_EACH + [False]
            begun[-1].cancel()
        last = await begin("late")
        assert not last.done(), "all places are taken"
        last.cancel()
        for _ in range(OPEN_EACH - PLACES_EACH - 1):
            await stack.enter_async_context(uploads.opened("p0", silent()))
        with pytest.raises(BusyError, match="'p0' already has 16 code uploads open"):
            await stack.enter_async_context(uploads.opened("p0", silent()))


async def test_a_project_keeps_as_much_code_as_it_may(
    site: RpcSite, engine: AsyncEngine, tmp_path: Path
) -> None:
    replica = site.replicas[0]

    async def limited(mib: int | None) -> project_pb2.Project:
        limit = project_pb2.ProjectLimit(most=mib)
        request = project_pb2.SetProjectRequest(name="projects/vision", code_mib=limit)
        return (await replica.call_in("default", "SetProject", request)).project

    async def kept() -> int:
        async with engine.connect() as conn:
            return int((await conn.execute(text("SELECT count(*) FROM code"))).scalar_one())

    await replica.call_in(
        "default", "CreateProject", project_pb2.CreateProjectRequest(project_id="vision", code_mib=3)
    )
    one, two = packed(tmp_path, "one", 2_000_000), packed(tmp_path, "two", 2_000_000)
    async with grpc.aio.insecure_channel(replica.address) as channel:
        ours, theirs = Shipper(channel, "vision"), Shipper(channel, "speech")
        assert await ours.put(*one) is None
        assert await ours.put(*one) is None, "it has it already"
        refused = await ours.put(*two)
        assert isinstance(refused, QuotaExceededError)
        assert "project 'vision' has 1.9 MiB of code kept, and may have 3.0 MiB" in str(refused)
        assert "headrace project set vision --code-mib" in refused.remedy
        assert await kept() == 1, "nothing of it is kept"
        assert await theirs.put(*two) is None, "each project has its own"
        assert isinstance(await ours.put(*two), QuotaExceededError), "though it is there already"
        assert 1.9 < (await limited(4)).code_mib_held < 2
        assert await ours.put(*two) is None
        assert not (await limited(None)).HasField("code_mib")
        assert (await limited(1)).code_mib == 1
        assert isinstance(await ours.put(*packed(tmp_path, "three")), QuotaExceededError)
        assert await ours.put(*one) is None, "nothing that it has is taken away"
