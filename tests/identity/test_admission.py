"""What strangers and callers may use of a server, next to honest ones who are still served."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import grpc
import pytest
from admission_site import CALL, CHECK, JOIN, STREAM, UPLOAD, WATCH, Client, Site, admission_site
from grpc_health.v1 import health_pb2
from raw_http2 import Caller, message, text_field

from headrace.error_status import from_rpc_error
from headrace.errors import BusyError, DeadlineError, HeadraceError, InvalidFieldError, UnauthenticatedError
from headrace_services.serving.connections import Connections

HALF = message(b"x" * 100_000)[:-10]
ASKED = health_pb2.HealthCheckRequest()
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def refusal(call: object) -> HeadraceError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call  # type: ignore[misc]
    return from_rpc_error(refused.value)


async def honest(site: Site) -> None:
    """Health, a join, and a call with a token, each over a new connection."""
    async with site.client() as stranger:
        assert (await stranger.health.Check(ASKED, timeout=60)).status == SERVING
        assert await stranger.call(b"a token", JOIN) == b"answera token"
    async with site.client("ann") as ann:
        assert await ann.call(b"hello") == b"answerhello"


@pytest.mark.parametrize("path", [CHECK, JOIN])
async def test_half_sent_requests_of_strangers_take_few_places_and_from_nobody_else(path: str) -> None:
    async with admission_site() as site:
        callers = [await site.caller(source="127.0.0.2") for _ in range(3)]
        for number in range(12):
            caller = callers[number % 3]
            if not caller.closed:
                await asyncio.to_thread(caller.send, caller.call(path), HALF, within_s=0.1)
        await site.comes_to(lambda: sum(caller.open() for caller in callers) <= 4)
        assert any(caller.closed for caller in callers), "who wants more than there is is hung up"
        await honest(site)
        assert len(site.door.strangers._messages) <= 2


async def test_a_strangers_request_that_does_not_arrive_ends() -> None:
    async with admission_site(strangers={"within_s": 0.2}) as site:
        caller = await site.caller()
        number = caller.call(JOIN)
        caller.send(number, HALF, within_s=0.1)
        found = await site.ends(caller, number)
        assert b"has not arrived within 0.2 s" in found.headers[-1]
        assert not len(site.door.strangers._messages)


async def test_a_stranger_says_little_and_one_with_a_token_more() -> None:
    async with admission_site() as site, site.client("ann") as ann, site.client() as stranger:
        long = b"x" * 2000
        error = await refusal(stranger.call(long, JOIN))
        assert isinstance(error, InvalidFieldError)
        assert "has 2000 bytes, and 1000 is the limit without a token" in str(error)
        assert await ann.call(long) == b"answerxxxxxxxxxx"


async def test_watches_of_strangers_are_few_and_the_only_one_of_an_address_stays() -> None:
    async with admission_site() as site, site.client() as balancer:
        watching = balancer.health.Watch(ASKED, timeout=60)
        assert (await watching.read()).status == SERVING
        callers = [await site.caller(source="127.0.0.2") for _ in range(3)]
        for number in range(30):
            caller = callers[number % 3]
            if not caller.closed:
                caller.call(WATCH, body=message(b""), end=True)
                caller.pump(0)
        await site.comes_to(lambda: sum(caller.open() for caller in callers) <= 3)
        await honest(site)
        site.health.leave()
        assert (await watching.read()).status == NOT_SERVING


async def test_health_keeps_nothing_of_names_that_it_does_not_know() -> None:
    async with admission_site() as site, site.client() as stranger:
        site.health.add("headrace.instance.x")
        known, unknown = (
            health_pb2.HealthCheckRequest(service=name) for name in ("headrace.instance.x", "n" * 900)
        )
        assert (await stranger.health.Check(known, timeout=60)).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stranger.health.Check(unknown, timeout=60)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watching = stranger.health.Watch(unknown, timeout=60)
        assert (await watching.read()).status == UNKNOWN
        assert not watching.done(), "a client whose watch ends begins another at once"
        assert (await stranger.health.Watch(known, timeout=60).read()).status == SERVING


async def test_two_watch_one_name_and_the_one_that_leaves_takes_no_news_from_the_other() -> None:
    async with admission_site() as site, site.client() as one, site.client() as two:
        watches = [client.health.Watch(ASKED, timeout=60) for client in (one, two)]
        for watching in watches:
            assert (await watching.read()).status == SERVING
        watches[0].cancel()
        await site.comes_to(lambda: len(site.door.strangers._calls) == 1)
        site.health.leave()
        assert (await watches[1].read()).status == NOT_SERVING
        await asyncio.sleep(0.1)
        assert not watches[1].done()


async def test_tokens_that_are_looked_up_take_few_places() -> None:
    async with admission_site() as site, site.client("ann") as ann:
        await ann.call()
        site.looking_up.clear()
        waiting = asyncio.create_task(ann.call(b"late"))
        callers = [await site.caller(source="127.0.0.2") for _ in range(2)]
        for number in range(20):
            caller = callers[number % 2]
            if not caller.closed:
                caller.call(CALL, site.said(f"nobody {number}"), body=message(b"hello"))
                await asyncio.to_thread(caller.pump, 0.01)
        assert len(site.door.strangers._calls) <= 4
        site.looking_up.set()
        assert await waiting == b"answerlate", "over a connection whose caller is known it waits for its turn"
        await honest(site)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "[::]"])
@pytest.mark.parametrize(("path", "who"), [(CHECK, ""), (CALL, ""), (CALL, "ann")])
async def test_a_caller_that_takes_no_answer_and_no_refusal_is_disconnected(
    path: str, who: str, host: str
) -> None:
    limits = {"within_s": 0.2}
    async with admission_site(host, strangers=limits, known=limits) as site:
        caller = await site.caller(window=0)
        number = caller.call(path, site.said(who) if who else (), body=message(b""), end=True)
        await site.ends(caller, number)
        assert caller.closed
        await site.comes_to(lambda: not (len(site.door.strangers._calls) or site.door.known._callers))
        await honest(site)


async def test_a_stream_of_a_known_caller_may_pause() -> None:
    async with admission_site(known={"within_s": 0.1}) as site:
        site.answer = b"a long answer"
        caller = await site.caller(window=10)
        number = caller.call(STREAM, site.said("ann"), body=message(b""), end=True)
        await asyncio.sleep(0.5)
        assert caller.open() == 1
        assert caller.streams[number].data == 10


async def test_a_caller_has_so_many_streams_and_calls_and_another_one_its_own() -> None:
    async with admission_site() as site, site.client("ann") as ann, site.client("bob") as bob:
        streams = [ann.stream() for _ in range(2)]
        for one in streams:
            assert await one.read() == b"answer"
        error = await refusal(ann.stream().read())
        assert isinstance(error, BusyError)
        assert "has 2 streams open at this server already" in error.message
        assert error.retryable
        assert await ann.call() == b"answer"
        assert await bob.stream().read() == b"answer"
        streams[0].cancel()
        async with asyncio.timeout(60):
            while isinstance(await first_of(ann), BusyError):
                await asyncio.sleep(0.02)


async def first_of(client: Client) -> object:
    try:
        return await client.stream().read()
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)


async def test_half_sent_requests_of_a_caller_hold_up_only_its_own() -> None:
    async with (
        admission_site(known={"within_s": 1.0}) as site,
        site.client("ann") as ann,
        site.client("bob") as bob,
    ):
        caller = await site.caller()
        number = caller.call(CALL, site.said("ann"))
        caller.send(number, HALF, within_s=0.1)
        assert await bob.call() == b"answer"
        outcomes = [await site.ends(caller, number), await ann.call()]
        assert b"has not arrived within 1 s" in outcomes[0].headers[-1]
        assert outcomes[1] == b"answer", "it had its turn"


async def test_connections_of_strangers_are_few_and_known_ones_are_not_counted() -> None:
    async with admission_site() as site, site.client("ann") as ann, site.client() as balancer:
        await ann.call()
        watching = balancer.health.Watch(ASKED, timeout=60)
        assert (await watching.read()).status == SERVING
        known = [await site.caller(source="127.0.0.2") for _ in range(3)]
        for caller in known:
            await site.ends(caller, caller.call(CALL, site.said("ann"), body=message(b""), end=True))
        strangers = [await site.caller(source="127.0.0.2") for _ in range(12)]

        def few() -> bool:
            for caller in strangers:
                caller.pump(0)
            return sum(not caller.closed for caller in strangers) <= 3

        await site.comes_to(few)
        assert strangers[0].closed, "the oldest went first"
        for caller in known:
            caller.pump(0)
            assert not caller.closed, "behind the same address, and known"
        assert await ann.call() == b"answer"
        site.health.leave()
        assert (await watching.read()).status == NOT_SERVING, "the only stranger of its address"


async def test_known_connections_over_ipv6_are_not_counted() -> None:
    async with admission_site("[::1]") as site:
        known = [await site.caller() for _ in range(6)]
        for caller in known:
            await site.ends(caller, caller.call(CALL, site.said("ann"), body=message(b""), end=True))
        strangers = [await site.caller() for _ in range(8)]

        def few() -> bool:
            for caller in strangers:
                caller.pump(0)
            return sum(not caller.closed for caller in strangers) <= 4

        await site.comes_to(few)
        for caller in known:
            caller.pump(0)
            assert not caller.closed


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere connections are not counted")
async def test_a_callers_connections_are_bounded_and_take_none_from_others() -> None:
    async with admission_site(known={"connections": 3}) as site, AsyncExitStack() as stack:
        held = []
        for _ in range(3):
            client = site.client("ann")
            held.append(client)
            assert await (await client.__aenter__()).call() == b"answer"
        for client in held[1:]:
            stack.push_async_exit(client)
        fourth = await stack.enter_async_context(site.client("ann"))
        error = await refusal(fourth.call())
        assert isinstance(error, BusyError)
        assert "this caller has 3 connections to this server already" in str(error)
        assert error.remedy
        async with site.client("bob") as bob:
            assert await bob.call() == b"answer"
        await held[0].__aexit__(None, None, None)
        assert await fourth.call() == b"answer", "the place of one that was closed is free at once"
        assert isinstance(
            await refusal((await stack.enter_async_context(site.client("ann"))).call()), BusyError
        )


async def test_the_connections_of_a_small_process_are_shared() -> None:
    connections = Connections(1000, 2048)
    connections.share(400)
    connections.share(8000)
    assert connections._most_each == 100


def answered(caller: Caller, number: int) -> bool:
    """Whether a call has reached its server: something came back, or it has ended."""
    caller.pump(0)
    stream = caller.streams[number]
    return stream.over or bool(stream.headers)


@pytest.mark.full
async def test_strangers_behind_a_proxy_share_the_places_and_end_alone() -> None:
    """One call of a known caller is over the same connection."""
    async with admission_site(strangers={"within_s": 3.0}) as site:
        proxies = [await site.caller() for _ in range(3)]
        for proxy in proxies:
            known = proxy.call(STREAM, site.said("ann"), body=message(b""), end=True)
            await site.comes_to(partial(answered, proxy, known))
            for _ in range(4):
                proxy.call(WATCH, body=message(b""), end=True)
            await asyncio.to_thread(proxy.pump, 0.2)
        assert len(site.door.strangers._calls) == 4
        await site.comes_to(lambda: sum(proxy.open() for proxy in proxies) == 2 + 4)
        await asyncio.sleep(3.3)
        assert not any(proxy.closed for proxy in proxies)
        number = proxies[0].call(CHECK, body=message(b"x" * 2000), end=True)
        assert b"2000 bytes, and 1000 is the limit" in (await site.ends(proxies[0], number)).headers[-1]


async def test_a_look_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admission_site(strangers={"within_s": 0.1}) as site:
        failures = [OSError(24, "too many open files")] * 2
        real = os.listdir

        def listdir(*path: Any) -> Any:
            if failures:
                raise failures.pop()
            return real(*path)

        monkeypatch.setattr(os, "listdir", listdir)
        caller = await site.caller(window=0)
        await site.ends(caller, caller.call(CHECK, body=message(b""), end=True))
        assert caller.closed
        assert not failures


@pytest.mark.parametrize(
    ("body", "says"),
    [(message(text_field(1, b"x")[:-1] + b"\xff\xff"), b""), (b"", b"is missing")],
    ids=["garbage", "nothing"],
)
async def test_what_is_no_request_is_refused_and_no_defect(body: bytes, says: bytes) -> None:
    async with admission_site() as site:
        caller = await site.caller()
        number = caller.call(CHECK)
        caller.end(number, body)
        found = await site.ends(caller, number)
        assert b"grpc-status\x013" in found.headers[-1], found.headers
        assert says in found.headers[-1]


async def test_methods_that_there_are_not() -> None:
    async with admission_site() as site, site.client("ann") as ann, site.client() as stranger:
        error = await refusal(stranger.call(path="/headrace.v1.StudyService/Erase"))
        assert isinstance(error, UnauthenticatedError)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ann.call(path="/headrace.v1.StudyService/Erase")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    async with admission_site(asks=False) as site, site.client() as anybody:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anybody.call(path="/headrace.v1.StudyService/Erase")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_metadata_is_bounded() -> None:
    async with admission_site() as site:
        caller = await site.caller()
        number = caller.call(CHECK, [("x", "v" * 10_000)], body=message(b""), end=True)
        found = await site.ends(caller, number)
        assert found.over or caller.closed
        assert b"grpc-status\x010" not in b"".join(found.headers)
        await honest(site)


async def test_uploads_pass_and_are_counted() -> None:
    async with admission_site() as site:
        caller = await site.caller()
        numbers = [caller.call(UPLOAD, site.said("ann"), body=message(b"part")) for _ in range(2)]
        await site.comes_to(lambda: "ann" in site.tokens and len(site.door.known._callers) == 1)
        third = caller.call(UPLOAD, site.said("ann"), body=message(b"part"))
        assert b"has 2 streams open" in (await site.ends(caller, third)).headers[-1]
        for number in numbers:
            caller.end(number, message(b"end"))
            assert (await site.ends(caller, number)).data == len(message(b"partend"))
        await site.comes_to(lambda: not site.door.known._callers)


async def test_a_late_request_is_a_late_call_for_clients() -> None:
    async with admission_site(known={"within_s": 0.2}) as site, site.client("ann") as ann:
        error = await refusal(ann.silent())
        assert isinstance(error, DeadlineError)
        assert error.retryable
