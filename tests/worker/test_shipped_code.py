"""A worker runs shipped code: each process in a folder of its own, from an archive that is fetched once."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from scripted_scheduler import ScriptedScheduler, until
from shipped_site import Codes, packed, served_beside
from worker_site import PRELUDE, Site

from headrace.v1 import spec_pb2, worker_pb2
from headrace_worker.code_cache import CodeCache, UnpreparedError, unpack

CALLABLE = """
import os
from pathlib import Path
import helper
VERSION = "{version}"
def train(t):
    found = sorted(path.name for path in Path().iterdir() if path.name != "__pycache__")
    Path("scratch.txt").write_text("mine")
    number = os.environ["HEADRACE_TRIAL"].rpartition("/")[2]
    Path(os.environ["MARKS"], f"s-{{number}}").write_text(
        "\\n".join([VERSION, helper.WORD, os.getcwd(), ",".join(found)]))
    for step in t.steps():
        t.report(loss=1.0 / (step + 1))
"""


@pytest.fixture
async def codes(scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch) -> Codes:
    """CodeService beside the scripted scheduler."""
    return await served_beside(scheduler, monkeypatch)


def ship(codes: Codes, root: Path, version: str, **files: str) -> str:
    """Upload a project whose trials leave a mark; returns its digest."""
    program = {"train.py": CALLABLE.format(version=version), "helper.py": 'WORD = "help"\n', "data.txt": "d"}
    digest, data = packed(root, {**program, **files})
    codes.kept[digest] = data
    return digest


def assigned(site: Site, digest: str, number: int, *, slots: tuple[int, ...] = (0,)) -> worker_pb2.Assign:
    assign = site.assign(["unused"], number=number, slots=slots, milestone=1)
    assign.template.callable = "train:train"
    assign.template.working_dir = "/nowhere/on/this/machine"
    assign.template.code.CopyFrom(spec_pb2.Code(ship=True, digest=digest))
    assign.max_steps = 1
    return assign


def left(folder: Path) -> list[str]:
    """The files in a folder; empty if it does not exist."""
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


async def run(site: Site, *assigns: worker_pb2.Assign) -> list[worker_pb2.Exited]:
    """Run trials on a running daemon; returns their ends."""
    stream = await site.scheduler.stream()
    before = len(stream.all("exited"))
    for assign in assigns:
        stream.send(assign=assign)
    ours = {assign.lease.lease_id for assign in assigns}

    def ended() -> list[worker_pb2.Exited]:
        for report in stream.all("report"):
            if report.sequence not in decided:
                decided.add(report.sequence)
                stream.decide(report, 3)
        found = [one for one in stream.all("exited")[before:] if one.lease.lease_id in ours]
        return found if len(found) == len(ours) else []

    decided: set[int] = set()
    return await until(ended, "all trials end")


@pytest.mark.full
async def test_two_trials_at_once_fetch_once_and_have_folders_of_their_own(
    site: Site, codes: Codes, tmp_path: Path
) -> None:
    digest = ship(codes, tmp_path / "laptop", "one")
    codes.failures = 1  # a scheduler that is away for a moment
    site.start()
    ends = await run(site, assigned(site, digest, 0), assigned(site, digest, 1, slots=(1,)))
    assert [worker_pb2.ExitOutcome.Name(one.outcome) for one in ends] == ["EXIT_OUTCOME_RELEASED"] * 2, ends
    marks = [(site.marks / name).read_text().splitlines() for name in ("s-0", "s-1")]
    for version, word, folder, found in marks:
        assert (version, word, found) == ("one", "help", "data.txt,helper.py,train.py")
        assert folder.startswith(str(site.root / "home" / "scratch"))
        assert not left(Path(folder)), "it goes with the process"
    assert marks[0][2] != marks[1][2]
    assert codes.asked == [digest] * 2, "asked again after the failure, and once for both"
    # The next trial on a slot takes the standby process, which has a fresh folder too.
    (end,) = await run(site, assigned(site, digest, 2))
    assert end.outcome == worker_pb2.EXIT_OUTCOME_RELEASED
    version, _, folder, found = (site.marks / "s-2").read_text().splitlines()
    assert (version, found) == ("one", "data.txt,helper.py,train.py"), "without what the first trial wrote"
    # An edit has another digest, so no standby process has it.
    edited = ship(codes, tmp_path / "laptop", "two")
    (end,) = await run(site, assigned(site, edited, 3))
    assert (site.marks / "s-3").read_text().splitlines()[0] == "two"
    (end,) = await run(site, assigned(site, digest, 4))
    assert (site.marks / "s-4").read_text().splitlines()[0] == "one", "a resumed trial has its old code"
    assert codes.asked == [digest, digest, edited]
    await site.stop()
    assert [path.name for path in (site.root / "home" / "scratch").iterdir()] == []


async def test_code_that_nobody_has_is_told_with_the_remedy_and_charges_nobody(
    site: Site, codes: Codes
) -> None:
    site.start()
    (end,) = await run(site, assigned(site, "0" * 64, 0))
    assert end.outcome == worker_pb2.EXIT_OUTCOME_UNPREPARED
    assert "headrace retry" in end.error
    assert "headrace retry" in end.log_tail


async def test_a_command_runs_in_its_copy_and_a_cached_archive_that_rots_is_fetched_again(
    site: Site, codes: Codes, tmp_path: Path
) -> None:
    body = PRELUDE + "mark('read', Path('data.txt').read_text())\nreport(1)\n"
    digest = ship(codes, tmp_path / "laptop", "one", **{"run.py": body})
    site.start()

    async def once(number: int) -> worker_pb2.Exited:
        assign = assigned(site, digest, number)
        assign.template.command.args[:] = ["python3", "run.py"]
        return (await run(site, assign))[0]

    assert (await once(0)).outcome == worker_pb2.EXIT_OUTCOME_RELEASED
    assert (site.marks / "read").read_text() == "d"
    (report,) = (await site.scheduler.stream()).all("report")
    assert (report.code.digest, list(report.code.files)) == (digest, []), "it cannot change"
    archive = site.root / "home" / "code" / "sha256" / f"{digest}.tar"
    archive.chmod(0o600)
    archive.write_bytes(archive.read_bytes().replace(b"scratch.txt", b"scretch.txt"))
    end = await once(1)
    assert (end.outcome, "damaged" in end.error) == (worker_pb2.EXIT_OUTCOME_UNREACHED, True)
    assert (await once(2)).outcome == worker_pb2.EXIT_OUTCOME_RELEASED
    assert codes.asked == [digest, digest]


async def test_the_cache_keeps_to_its_limit_and_to_what_is_held(tmp_path: Path) -> None:
    archives: dict[str, bytes] = {}
    for number in range(4):
        digest, data = packed(tmp_path / f"p{number}", {"a.txt": str(number) * 30_000})
        archives[digest] = data
    one, two, three, four = archives

    async def fetch(digest: str, file: Any) -> None:
        if digest not in archives:
            raise UnpreparedError("gone")
        file.write(archives[digest])

    cache = CodeCache(tmp_path / "home", fetch, limit_bytes=100_000)
    (tmp_path / "home").mkdir()
    held = await cache.hold(one, lambda _: None)
    for digest in (two, three):
        await cache.hold(digest, lambda _: None)
        cache.release(digest)
    await cache.hold(four, lambda _: None)
    cache.release(four)
    kept = {path.stem for path in (tmp_path / "home").iterdir()}
    assert one in kept, "it is held"
    assert four in kept
    assert len(kept) == 2, kept
    unpack(held, tmp_path / "there")
    assert (tmp_path / "there" / "a.txt").read_text() == "0" * 30_000
    with pytest.raises(UnpreparedError):
        await cache.hold("f" * 64, lambda _: None)


async def test_a_download_that_was_cut_off_leaves_nothing_and_garbage_is_never_kept(tmp_path: Path) -> None:
    digest, data = packed(tmp_path / "p", {"a.txt": "x" * 50_000})
    answers = [data[:20_000], b"garbage", data]
    home = tmp_path / "home"
    home.mkdir()
    (home / f"{digest}.part").write_bytes(data[:100])  # left by a daemon that was killed

    async def fetch(_: str, file: Any) -> None:
        file.write(answers.pop(0))

    cache = CodeCache(home, fetch, limit_bytes=1 << 30)
    assert [*home.iterdir()] == []
    found = await cache.hold(digest, lambda _: None)
    assert hashlib.sha256(found.read_bytes()).digest() == hashlib.sha256(data).digest()
    assert [path.name for path in home.iterdir()] == [f"{digest}.tar"]


async def test_a_worker_that_stops_while_it_fetches_leaves_no_part(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def fetch(_: str, file: Any) -> None:
        file.write(b"some")
        begun.set()
        await asyncio.Event().wait()

    cache = CodeCache(tmp_path, fetch, limit_bytes=1 << 30)
    task = asyncio.create_task(cache.hold("a" * 64, lambda _: None))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert left(tmp_path) == []


BUNDLE = """
import os, grpc
from pathlib import Path
from headrace.v1 import runtime_pb2, runtime_pb2_grpc
stub = runtime_pb2_grpc.TrialRuntimeServiceStub(grpc.insecure_channel(os.environ["HEADRACE_RUNTIME"]))
grant = os.environ["HEADRACE_BUNDLE"]
first = stub.AttachBundle(runtime_pb2.AttachBundleRequest(grant_id=grant), timeout=60)
told = {member.assign.template.working_dir for member in first.members}
Path(os.environ["MARKS"], "bundle").write_text(f"{told == {os.getcwd()}} {Path('data.txt').read_text()}")
stub.FinishBundle(runtime_pb2.FinishBundleRequest(grant_id=grant), timeout=60)
"""
RANK = """
import os
from pathlib import Path
Path(os.environ["MARKS"], f"rank-{os.environ['RANK']}").write_text(os.getcwd() + Path("data.txt").read_text())
"""


async def test_a_bundle_and_the_ranks_of_a_gang_share_a_copy(
    site: Site, codes: Codes, tmp_path: Path
) -> None:
    digest = ship(codes, tmp_path / "laptop", "one", **{"bundle.py": BUNDLE, "rank.py": RANK})
    site.start()
    bundle = assigned(site, digest, 0)
    bundle.template.command.args[:] = ["python3", "bundle.py"]
    bundle.grant.CopyFrom(worker_pb2.Grant(slots=[0], id="g", seats=2))
    (end,) = await run(site, bundle)
    assert end.outcome == worker_pb2.EXIT_OUTCOME_FINISHED, end
    assert (site.marks / "bundle").read_text() == "True d"
    gang = assigned(site, digest, 1)
    gang.template.command.args[:] = ["python3", "rank.py"]
    gang.grant.CopyFrom(worker_pb2.Grant(slots=[0, 1], processes=spec_pb2.PROCESSES_PER_SLOT))
    await run(site, gang)
    ranks = [(site.marks / f"rank-{rank}").read_text() for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    assert ranks[0].startswith(str(site.root / "home" / "scratch"))
    assert not [name for name in left(site.root / "home" / "scratch") if name.startswith("code-")]


async def test_a_daemon_that_was_killed_leaves_no_copy_to_the_next(
    site: Site, codes: Codes, tmp_path: Path
) -> None:
    digest = ship(codes, tmp_path / "laptop", "one")
    for name in ("code-abc", ".partial-code-def"):
        (site.root / "home" / "scratch" / name).mkdir(parents=True)
    site.start()
    await run(site, assigned(site, digest, 0))
    await site.stop()
    assert left(site.root / "home" / "scratch") == []
