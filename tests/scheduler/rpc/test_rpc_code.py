"""CodeService: every replica has all the code that clients upload, and it is kept while a study needs it."""

import asyncio
import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from rpc_site import RpcSite, make_spec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace import AsyncClient, Client
from headrace.ages import Ages
from headrace.code import read_folder, write_archive
from headrace.error_status import from_rpc_error
from headrace.errors import CodeNotFoundError, HeadraceError, InvalidFieldError, StudyNotEndedError
from headrace.spec import StudySpec, to_proto
from headrace.v1 import code_pb2 as pb
from headrace.v1 import study_pb2
from headrace.v1.code_pb2_grpc import CodeServiceStub
from headrace_services.scheduler.engine.janitor import Janitor
from headrace_services.scheduler.store import code
from headrace_services.scheduler.store.database import transaction


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder whose archive has several chunks."""
    (tmp_path / "train.py").write_text("def train(t): pass\n")
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)) * 9000)
    return tmp_path


def packed(project: Path) -> tuple[str, bytes]:
    folder, out = read_folder(project), io.BytesIO()
    write_archive(folder, out)
    return folder.manifest.digest, out.getvalue()


def pieces(digest: str, data: bytes, size: int = 1 << 20) -> list[pb.PutCodeRequest]:
    cut = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    return [pb.PutCodeRequest(digest="" if number else digest, data=some) for number, some in enumerate(cut)]


class Code:
    """A stub of CodeService."""

    def __init__(self, channel: grpc.aio.Channel, project: str = "default") -> None:
        self.stub: Any = CodeServiceStub(channel)
        self.said = (("headrace-project", project),)

    async def has(self, digest: str) -> bool:
        return bool(
            (
                await self.stub.HasCode(pb.HasCodeRequest(digest=digest), timeout=10, metadata=self.said)
            ).present
        )

    async def put(self, digest: str, data: bytes) -> None:
        await self.stub.PutCode(iter(pieces(digest, data)), timeout=60, metadata=self.said)

    async def get(self, digest: str) -> bytes:
        return b"".join(
            [one.data async for one in self.stub.GetCode(pb.GetCodeRequest(digest=digest), timeout=60)]
        )

    async def refusal(self, call: Any) -> HeadraceError:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        return from_rpc_error(refused.value)


async def test_what_is_put_on_one_replica_every_replica_gives(site: RpcSite, project: Path) -> None:
    digest, data = packed(project)
    other = await site.add_replica()
    async with (
        grpc.aio.insecure_channel(site.replicas[0].address) as here,
        grpc.aio.insecure_channel(other.address) as there,
    ):
        one, two = Code(here), Code(there)
        assert not await two.has(digest)
        missing = await one.refusal(one.get(digest))
        assert isinstance(missing, CodeNotFoundError)
        assert "headrace retry" in str(missing)
        await asyncio.gather(one.put(digest, data), two.put(digest, data), one.put(digest, data))
        assert await one.has(digest)
        assert await two.get(digest) == data
        await two.put(digest, data)  # a repeat changes nothing
        assert await one.get(digest) == data


async def test_what_is_not_the_archive_of_its_digest_is_not_kept(site: RpcSite, project: Path) -> None:
    digest, data = packed(project)
    async with grpc.aio.insecure_channel(site.replicas[0].address) as channel:
        kept = Code(channel)
        for wrong in (data[:-200_000], data[:700] + b"!" + data[701:], b"", b"garbage"):
            error = await kept.refusal(kept.put(digest, wrong))
            assert isinstance(error, InvalidFieldError)
            assert [one.field for one in error.violations] == ["data"]
        for name in ("", "x" * 64, digest[:-1], digest.upper()):
            error = await kept.refusal(kept.put(name, data))
            assert isinstance(error, InvalidFieldError)
            assert not isinstance(await kept.refusal(kept.has(name)), CodeNotFoundError)
        assert not await kept.has(digest)


def shipped(digest: str, **template: Any) -> StudySpec:
    return make_spec(
        template={
            "callable": "train:train",
            "working_dir": "/gone",
            "code": {"ship": True, "digest": digest},
            **template,
        }
    )


async def test_a_study_whose_code_is_not_here_is_not_created(site: RpcSite) -> None:
    request = study_pb2.CreateStudyRequest(study_id="s", spec=to_proto(shipped("0" * 64)))
    error = await site.refusal("CreateStudy", request)
    assert isinstance(error, InvalidFieldError)
    assert [one.field for one in error.violations] == ["trial.code.digest"]
    request.spec.template.code.digest = ""
    error = await site.refusal("CreateStudy", request)
    assert "the folder was never uploaded" in str(error)


async def test_code_stays_while_a_study_needs_it_and_a_month_longer(
    site: RpcSite, engine: AsyncEngine, project: Path
) -> None:
    digest, data = packed(project)
    async with grpc.aio.insecure_channel(site.replicas[0].address) as channel:
        kept = Code(channel)
        await kept.put(digest, data)
        await site.call(
            "CreateStudy", study_pb2.CreateStudyRequest(study_id="s", spec=to_proto(shipped(digest)))
        )

        async def due() -> tuple[str, int]:
            found = await site.call("GetUpkeep", study_pb2.GetUpkeepRequest())
            return next((one.age, one.due) for one in found.kinds if one.kind == "code")

        async def a_year_later(ages: Ages | None = None) -> bool:
            async with transaction(engine) as conn:
                await conn.execute(text("UPDATE code SET use_time = use_time - interval '1 year'"))
                await conn.execute(text("UPDATE study SET end_time = end_time - interval '1 year'"))
            await Janitor(engine, ages).clean()
            async with transaction(engine) as conn:
                return bool((await conn.execute(text("SELECT count(*) FROM code_chunk"))).scalar_one())

        async with transaction(engine) as conn:
            assert await code.needed(conn) == {digest}
        assert await a_year_later(), "a live study pins it"
        await site.call("StopStudy", study_pb2.StopStudyRequest(name="studies/s"))
        async with transaction(engine) as conn:
            assert await code.needed(conn) == set()
        await kept.has(digest)
        await Janitor(engine).clean()
        assert await kept.get(digest) == data, "it ended just now, and may be extended"
        assert await a_year_later(Ages(code=None)), "it is kept for ever"
        assert await due() == ("30d", 1)
        assert not await a_year_later()
        assert await due() == ("30d", 0)
        assert not await kept.has(digest)


async def test_a_client_that_asks_for_code_has_time_to_create_a_study(
    site: RpcSite, engine: AsyncEngine, project: Path
) -> None:
    digest, data = packed(project)
    async with grpc.aio.insecure_channel(site.replicas[0].address) as channel:
        kept = Code(channel)
        await kept.put(digest, data)
        async with transaction(engine) as conn:
            await conn.execute(text("UPDATE code SET use_time = use_time - interval '1 year'"))
        assert await kept.has(digest)
        await Janitor(engine, Ages(code=timedelta(0))).clean()
        assert await kept.has(digest)


async def test_the_sdk_ships_a_folder_once(
    site: RpcSite, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "trials": 2,
        "steps": 2,
        "trial": {"callable": "train:train", "working_dir": str(project), "code": "ship"},
    }
    sent: list[tuple[int, int]] = []

    def with_client() -> tuple[str, str]:
        with Client(site.replicas[0].address) as client:
            one = client.create_study("one", study, on_bytes=lambda *counts: sent.append(counts))
            uploaded = len(sent)
            assert sent[-1][0] == sent[-1][1] > 2_000_000
            client.create_study("two", study, on_bytes=lambda *counts: sent.append(counts))
            assert len(sent) == uploaded, "the second time nothing is sent"
            first, second = one.status().spec.template, client.study("two").status().spec.template
            assert first is not None
            assert second is not None
            assert first.code == second.code
            (project / "train.py").write_text("def train(t): print('edited')\n")
            edited = client.create_study("three", study).status().spec.template
            assert edited is not None
            assert first.code is not None
            assert edited.code is not None
            return first.code.digest, edited.code.digest

    def in_a_project() -> None:
        """Another project does not see the code, uploads it too, and then has it."""
        with Client(site.replicas[0].address, project="vision") as client:
            uploaded = len(sent)
            for name in ("one", "again"):
                client.create_study(name, study, on_bytes=lambda *counts: sent.append(counts))
                assert len(sent) - uploaded == len(sent[:uploaded]), "once"

    before, after = await asyncio.to_thread(with_client)
    assert before != after
    (project / "train.py").write_text("def train(t): pass\n")
    await asyncio.to_thread(in_a_project)
    async with AsyncClient(site.replicas[0].address) as client:
        (project / "train.py").write_text("def train(t): print('again')\n")
        created = (await (await client.create_study("four", study)).status()).spec.template
        assert created is not None
        assert created.code is not None
        assert created.code.digest not in (before, after)
        with pytest.raises(StudyNotEndedError):
            await client.study("four").delete()


async def test_what_another_project_shipped_is_not_there(
    site: RpcSite, engine: AsyncEngine, project: Path
) -> None:
    digest, data = packed(project)
    create = study_pb2.CreateStudyRequest(study_id="s", spec=to_proto(shipped(digest)))
    async with grpc.aio.insecure_channel(site.replicas[0].address) as channel:
        ours, theirs = Code(channel, "vision"), Code(channel, "speech")
        await theirs.put(digest, data)
        await site.replicas[0].call_in("speech", "CreateStudy", create)
        assert not await ours.has(digest)
        with pytest.raises(InvalidFieldError, match="is not kept by this scheduler"):
            await site.replicas[0].call_in("vision", "CreateStudy", create)
        error = await ours.refusal(ours.put(digest, data[:-200_000]))
        assert isinstance(error, InvalidFieldError)
        assert not await ours.has(digest), "nothing shows that this project has it"

        await ours.put(digest, data)
        assert await ours.has(digest)
        await site.replicas[0].call_in("vision", "CreateStudy", create)
        async with transaction(engine) as conn:
            copies = (await conn.execute(text("SELECT count(*), min(size_bytes) FROM code"))).one()
        assert tuple(copies) == (1, len(data)), "one copy for both"
