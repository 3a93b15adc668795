"""Shipped code under `--run-as`: it runs in the trial's own copy, and the worker's archives are out of reach."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from other_user_site import USER, as_root, daemon_of_root, interpreter, of_a_container
from scripted_scheduler import ScriptedScheduler, Stream, until
from shipped_site import Codes, packed, served_beside
from worker_site import PRELUDE, Site

from headrace.v1 import spec_pb2, worker_pb2
from headrace_worker.run_as import other_user

SECRET = "hr-s3cr3t"
TRIES = """
def tries(act):
    try:
        return str(act())
    except OSError as error:
        return type(error).__name__
home = Path(me.checkpoint_dir).parents[2]
archives = home / "code" / "sha256"
archive = archives / os.environ["ARCHIVE"]
seen = {
    "user": os.getuid(),
    "data": Path("data.txt").read_text(),
    "owners": sorted({os.stat(path).st_uid for path in [".", *os.listdir()]}),
    "writes its copy": tries(lambda: Path("data.txt").write_text("changed")),
    "lists the archives": tries(lambda: os.listdir(archives)),
    "lists the cache": tries(lambda: os.listdir(home / "code")),
    "reads an archive": tries(lambda: archive.read_bytes()[:1]),
    "writes an archive": tries(lambda: archive.write_bytes(b"evil")),
    "makes it writable": tries(lambda: archive.chmod(0o666)),
    "replaces it": tries(lambda: Path("data.txt").replace(archive)),
    "removes it": tries(archive.unlink),
    "adds one": tries(lambda: (archives / "new.tar").write_bytes(b"evil")),
    "lists the scratch folders": tries(lambda: os.listdir(home / "scratch")),
    "reads the credential": tries((home / "credential.json").read_text),
    "reads the outbox": tries((home / "outbox.sqlite").read_bytes),
    "reads the daemon": tries(Path(f"/proc/{os.getppid()}/environ").read_bytes),
    "variables": sorted(name for name, value in os.environ.items() if "hr-" + "s3cr3t" in value),
}
mark(f"seen-{os.environ['HEADRACE_TRIAL'].split('/')[1]}", json.dumps(seen))
leave_if_told(report(1))
"""


@pytest.fixture(scope="module", autouse=True)
def python() -> str:
    """Found before gRPC has threads in this process."""
    return interpreter()


@pytest.fixture
async def site(open_folder: Path, scheduler: ScriptedScheduler) -> Site:
    place = Site(open_folder, scheduler)
    place.marks.chmod(0o777)
    return place


@pytest.fixture
async def stream(site: Site, codes: Codes) -> AsyncIterator[Stream]:
    """The stream of a daemon that runs as root, and its trials as another user. Its home has a credential."""
    home = site.settings.home
    home.mkdir(mode=0o700)
    (home / "credential.json").write_text(SECRET)
    (home / "credential.json").chmod(0o600)
    async with daemon_of_root(site, 1, of_a_container(), AWS_SECRET_ACCESS_KEY=SECRET):
        yield await site.scheduler.stream()


@pytest.fixture
async def codes(scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch) -> Codes:
    return await served_beside(scheduler, monkeypatch)


@pytest.mark.full
@as_root
async def test_what_a_trial_does_to_its_copy_no_other_study_gets(
    site: Site, codes: Codes, stream: Stream, tmp_path: Path
) -> None:
    digest, data = packed(tmp_path / "laptop", {"run.py": PRELUDE + TRIES, "data.txt": "as shipped"})
    codes.kept[digest] = data

    async def run(study: str) -> dict[str, Any]:
        assign = site.assign([interpreter(), "run.py"], milestone=1)
        assign.lease.trial = f"studies/{study}/trials/0"
        assign.study_uid = f"uid{study}"
        assign.template.working_dir = "/nowhere/on/this/machine"
        assign.template.code.CopyFrom(spec_pb2.Code(ship=True, digest=digest))
        assign.template.env["ARCHIVE"] = f"{digest}.tar"
        stream.send(assign=assign)
        before = len(stream.all("report"))
        stream.decide(await stream.get("report", before + 1), 3)
        ends = await until(
            lambda: [one for one in stream.all("exited") if one.lease.lease_id == assign.lease.lease_id],
            "its end",
        )
        assert ends[0].outcome == worker_pb2.EXIT_OUTCOME_RELEASED, ends
        found: dict[str, Any] = json.loads((site.marks / f"seen-{study}").read_text())
        return found

    user = other_user(USER)
    denied = "PermissionError"
    for study in ("first", "second"):
        assert await run(study) == {
            "user": user.uid,
            "data": "as shipped",
            "owners": [user.uid],
            "writes its copy": str(len("changed")),
            "lists the archives": denied,
            "lists the cache": denied,
            "reads an archive": denied,
            "writes an archive": denied,
            "makes it writable": denied,
            "replaces it": denied,
            "removes it": denied,
            "adds one": denied,
            "lists the scratch folders": denied,
            "reads the credential": denied,
            "reads the outbox": denied,
            "reads the daemon": denied,
            "variables": [],
        }
    assert codes.asked == [digest], "fetched once"
    kept = site.settings.home / "code" / "sha256" / f"{digest}.tar"
    assert (kept.read_bytes(), kept.stat().st_uid) == (data, 0)
