"""Previews take turns by token, however many connections a token has."""

from typing import Any

import grpc
import pytest
from rpc_site import make_spec
from sqlalchemy.ext.asyncio import AsyncEngine
from token_site import guarded

from headrace.errors import TooLargeError
from headrace.spec import to_proto
from headrace.v1 import study_pb2 as pb
from headrace.v1 import study_pb2_grpc
from headrace_services.identity.roles import Role
from headrace_services.scheduler.analysis import AnalysisPools


async def test_a_token_has_one_turn_over_all_its_connections(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[str] = []

    async def noted(*_: Any, caller: str) -> None:
        callers.append(caller)
        raise TooLargeError("noted")

    monkeypatch.setattr(AnalysisPools, "preview", noted)
    async with guarded(engine) as site:
        address = site.address
        request = pb.PreviewStudyRequest(spec=to_proto(make_spec()), slots=1)
        for text in (mine := await site.token(Role.VIEWER), mine, await site.token(Role.VIEWER)):
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(address, options) as channel:
                stub = study_pb2_grpc.StudyServiceStub(channel)
                with pytest.raises(grpc.aio.AioRpcError, match="noted"):
                    await stub.PreviewStudy(
                        request, timeout=60, metadata=(("authorization", f"Bearer {text}"),)
                    )
    first, again, other = callers
    assert first == again != other
