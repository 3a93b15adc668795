"""The contract of checkpoint stores, run for every store: a directory, and S3 as served by moto over HTTP."""

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoints import (
    CheckpointCorruptError,
    CheckpointGoneError,
    CheckpointInvalidError,
    CheckpointMeta,
    CheckpointMissingError,
    CheckpointStore,
    CheckpointUnreadableError,
    Place,
    StoreUnavailableError,
    store_from_url,
)
from headrace.checkpoints.directory import DirectoryStore
from headrace.checkpoints.marker import MARKER
from headrace_worker.retention import PruneOrder, Retention, checkpoint_name, superseded

TRIAL = "studies/digits/trials/3"
IDENTITY = "0123456789abcdef"


@dataclass
class Bench:
    """A store, and direct access to its bytes."""

    store: CheckpointStore
    read: Callable[[str], bytes]
    write: Callable[[str, bytes], None]
    remove: Callable[[str], None]
    names: Callable[[], list[str]]
    away: Callable[[], object]
    """Puts an empty place where the store was: a mount point without its file system."""
    back: Callable[[], object]

    def contents(self) -> list[str]:
        return [name for name in self.names() if name != MARKER]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    from moto.server import ThreadedMotoServer  # slow: not in every process that collects tests

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def _directory(tmp_path: Path) -> Bench:
    root = tmp_path / "store with space"
    store = store_from_url(root.as_uri())
    store.set_up(IDENTITY, used=False)

    def away() -> None:
        root.rename(root.with_name("away"))
        root.mkdir()

    def back() -> None:
        shutil.rmtree(root)
        root.with_name("away").rename(root)

    return Bench(
        store=store,
        read=lambda key: (root / key).read_bytes(),
        write=lambda key, data: (root / key).write_bytes(data) and None,
        remove=lambda key: (root / key).unlink(),
        names=lambda: sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()),
        away=away,
        back=back,
    )


def _s3(endpoint: str, bucket: str) -> Bench:
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=bucket)
    prefix = "team/run 1"
    store = store_from_url(f"s3://{bucket}/{prefix}")
    store.set_up(IDENTITY, used=False)
    hidden: dict[str, bytes] = {}

    def away() -> None:  # as when a bucket is deleted and created again
        for item in client.list_objects_v2(Bucket=bucket).get("Contents", []):
            hidden[item["Key"]] = client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            client.delete_object(Bucket=bucket, Key=item["Key"])

    def back() -> None:
        for key, data in hidden.items():
            client.put_object(Bucket=bucket, Key=key, Body=data)

    return Bench(
        store=store,
        away=away,
        back=back,
        read=lambda key: client.get_object(Bucket=bucket, Key=f"{prefix}/{key}")["Body"].read(),
        write=lambda key, data: client.put_object(Bucket=bucket, Key=f"{prefix}/{key}", Body=data) and None,
        remove=lambda key: client.delete_object(Bucket=bucket, Key=f"{prefix}/{key}") and None,
        names=lambda: sorted(
            item["Key"].removeprefix(prefix + "/")
            for item in client.list_objects_v2(Bucket=bucket).get("Contents", [])
        ),
    )


@pytest.fixture(params=["directory", "s3"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    if request.param == "directory":
        return _directory(tmp_path)
    endpoint = request.getfixturevalue("moto")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    return _s3(endpoint, "b" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:20])


def _local(tmp_path: Path, name: str = "local", **files: bytes) -> Path:
    folder = tmp_path / name
    (folder / "data").mkdir(parents=True)
    (folder / "state.pt").write_bytes(files.get("state", b"weights" * 1000))
    (folder / "data/position.json").write_bytes(b"{}")
    return folder


def _meta(report: int = 1, step: int = 9, attempt: int = 1) -> CheckpointMeta:
    name = checkpoint_name(attempt=attempt, report=report, step=step, lease_id="lease")
    return CheckpointMeta(trial=TRIAL, name=name, step=step, milestone=9, attempt=attempt, save_time_s=0.5)


def test_what_is_put_comes_back(bench: Bench, tmp_path: Path) -> None:
    ref = bench.store.put(_local(tmp_path), _meta())
    assert ref.uri.startswith(bench.store.url)
    assert (ref.step, ref.size_bytes) == (9, 7002)
    assert ref.write_time.ToTimedelta().total_seconds() >= 0.5
    manifest = bench.store.fetch(ref, tmp_path / "back")
    assert (tmp_path / "back/state.pt").read_bytes() == b"weights" * 1000
    assert (tmp_path / "back/data/position.json").read_bytes() == b"{}"
    assert not (tmp_path / "back/manifest.json").exists()
    assert (manifest.trial, manifest.step, manifest.milestone, manifest.attempt) == (TRIAL, 9, 9, 1)
    stored = json.loads(bench.read(f"{TRIAL}/{_meta().name}/manifest.json"))
    assert stored["files"]["state.pt"]["sha256"] == hashlib.sha256(b"weights" * 1000).hexdigest()
    assert stored["version"] == 1


def test_a_put_may_be_repeated(bench: Bench, tmp_path: Path) -> None:
    bench.store.put(_local(tmp_path), _meta())
    ref = bench.store.put(_local(tmp_path, "second", state=b"newer"), _meta())
    bench.store.fetch(ref, tmp_path / "back")
    assert (tmp_path / "back/state.pt").read_bytes() == b"newer"
    assert bench.store.list(TRIAL) == [_meta().name]


def test_a_large_file_goes_in_parts(bench: Bench, tmp_path: Path) -> None:
    state = os.urandom(1 << 20) * 12
    ref = bench.store.put(_local(tmp_path, state=state), _meta())
    bench.store.fetch(ref, tmp_path / "back")
    assert (tmp_path / "back/state.pt").read_bytes() == state


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (lambda b, k: b.write(k + "/state.pt", b"other"), CheckpointCorruptError),
        (lambda b, k: b.write(k + "/state.pt", b"Weights" * 1000), CheckpointCorruptError),
        (lambda b, k: b.remove(k + "/state.pt"), CheckpointCorruptError),
        (lambda b, k: b.remove(k + "/manifest.json"), (CheckpointGoneError, CheckpointCorruptError)),
        (lambda b, k: b.write(k + "/manifest.json", b"{}"), CheckpointCorruptError),
    ],
)
def test_harm_is_noticed(
    bench: Bench,
    tmp_path: Path,
    harm: Callable[[Bench, str], None],
    error: type[Exception] | tuple[type[Exception], ...],
) -> None:
    ref = bench.store.put(_local(tmp_path), _meta())
    harm(bench, f"{TRIAL}/{_meta().name}")
    with pytest.raises(error, match="checkpoint "):
        bench.store.fetch(ref, tmp_path / "back")


def test_a_manifest_cannot_lead_outside(bench: Bench, tmp_path: Path) -> None:
    ref = bench.store.put(_local(tmp_path), _meta())
    key = f"{TRIAL}/{_meta().name}/manifest.json"
    document = json.loads(bench.read(key))
    document["files"]["../../escaped"] = document["files"].pop("state.pt")
    data = json.dumps(document).encode()
    bench.write(key, data)
    ref.manifest_sha256 = hashlib.sha256(data).hexdigest()
    with pytest.raises(CheckpointCorruptError, match="escaped"):
        bench.store.fetch(ref, tmp_path / "back")


def test_listing_shows_complete_ones_by_age(bench: Bench, tmp_path: Path) -> None:
    assert bench.store.list(TRIAL) == []
    metas = [_meta(report=1, step=30, attempt=2), _meta(report=2, step=9), _meta(report=11, step=10)]
    for n, meta in enumerate(metas):
        bench.store.put(_local(tmp_path, f"local{n}"), meta)
    other = CheckpointMeta(trial="studies/digits/trials/33", name="x", step=1, milestone=1, attempt=1)
    bench.store.put(_local(tmp_path, "other"), other)
    bench.store.put(_local(tmp_path, "half"), _meta(report=5))
    bench.remove(f"{TRIAL}/{_meta(report=5).name}/manifest.json")
    assert bench.store.list(TRIAL) == [metas[1].name, metas[2].name, metas[0].name]


def test_deletion_is_complete_and_may_be_repeated(bench: Bench, tmp_path: Path) -> None:
    ref = bench.store.put(_local(tmp_path), _meta())
    for _ in range(2):
        bench.store.delete(ref.uri)
    assert bench.contents() == []
    with pytest.raises(CheckpointMissingError):
        bench.store.fetch(ref, tmp_path / "back")


def test_a_reference_to_elsewhere_is_refused(bench: Bench, tmp_path: Path) -> None:
    ref = bench.store.put(_local(tmp_path), _meta())
    for uri in ("file:///etc/", "s3://elsewhere/x/", bench.store.url + "/../../x/"):
        ref.uri = uri
        with pytest.raises(CheckpointMissingError, match="is not in the store"):
            bench.store.fetch(ref, tmp_path / "back")
        with pytest.raises(CheckpointMissingError):
            bench.store.delete(uri)


def test_folders_that_are_no_checkpoint(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    linked = _local(tmp_path, "linked")
    (linked / "link").symlink_to("/etc/passwd")
    named = _local(tmp_path, "named")
    (named / "manifest.json").write_text("{}")
    for folder in (tmp_path / "none", tmp_path / "empty", linked, named):
        with pytest.raises(CheckpointInvalidError):
            bench.store.put(folder, _meta())
    assert bench.contents() == []


def test_concurrent_puts_of_several_trials(bench: Bench, tmp_path: Path) -> None:
    folders = [_local(tmp_path, f"local{n}", state=bytes([n]) * 5000) for n in range(4)]
    refs: dict[int, Any] = {}

    def put(n: int) -> None:
        meta = CheckpointMeta(trial=f"studies/s/trials/{n}", name="a", step=1, milestone=1, attempt=1)
        refs[n] = bench.store.put(folders[n], meta)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, ref in refs.items():
        bench.store.fetch(ref, tmp_path / f"back{n}")
        assert (tmp_path / f"back{n}/state.pt").read_bytes() == bytes([n]) * 5000


def test_a_full_disk_leaves_nothing_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.set_up(IDENTITY, used=False)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "store" / TRIAL).mkdir(parents=True)
    with pytest.raises(OSError, match="No space left"):
        store.put(_local(tmp_path), _meta())
    assert list((tmp_path / "store" / TRIAL).iterdir()) == []
    monkeypatch.undo()
    assert store.put(_local(tmp_path, "again"), _meta()).step == 9


def test_a_store_across_file_systems_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_device(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_device)
    store = DirectoryStore(tmp_path / "store")
    store.set_up(IDENTITY, used=False)
    ref = store.put(_local(tmp_path), _meta())
    store.fetch(ref, tmp_path / "back")
    assert (tmp_path / "back/state.pt").read_bytes() == b"weights" * 1000


def test_an_s3_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = store_from_url("s3://bucket/prefix")
    with pytest.raises(StoreUnavailableError, match="store s3://bucket/prefix does not answer"):
        store.put(_local(tmp_path), _meta())


@pytest.mark.parametrize("url", ["ftp://x/y", "relative/path", "s3://", "file://host/x", ""])
def test_urls_that_are_no_store(url: str) -> None:
    with pytest.raises(ValueError, match="is not a checkpoint store"):
        store_from_url(url)


def test_a_store_whose_marker_is_not_there_is_away_and_not_empty(bench: Bench, tmp_path: Path) -> None:
    store = bench.store
    ref = store.put(_local(tmp_path), _meta())
    bench.away()
    kinds: list[Callable[[], object]] = [
        lambda: store.put(_local(tmp_path, "more"), _meta(report=2)),
        lambda: store.fetch(ref, tmp_path / "back"),
        lambda: store.studies(),
        lambda: store.list(TRIAL),
        lambda: store.sizes("studies/digits"),
        lambda: store.delete(ref.uri),
        lambda: store.clear(TRIAL),
        lambda: store.put_file(TRIAL, "logs/1.log", b"x"),
        lambda: store.read_file(TRIAL, "logs/1.log", 0, 1),
        lambda: store.delete_file(TRIAL, "logs/1.log"),
        store.require,
    ]
    for kind in kinds:
        with pytest.raises(StoreUnavailableError, match=f"is away: its marker {MARKER} is not there"):
            kind()
    assert bench.names() == [], "nothing is saved in its place"
    bench.back()
    assert store.fetch(ref, tmp_path / "back").step == 9


def test_another_store_in_the_place_of_the_expected_one_is_refused(bench: Bench, tmp_path: Path) -> None:
    ref = bench.store.put(_local(tmp_path), _meta())
    bench.store.expected = "another-store"
    with pytest.raises(
        StoreUnavailableError, match=rf"not this cluster.s: its marker.*{IDENTITY}.*another-store"
    ):
        bench.store.put(_local(tmp_path, "more"), _meta(report=2))
    assert bench.store.fetch(ref, tmp_path / "back").step == 9, "it verifies itself by its digest"


def test_a_store_is_set_up_once(bench: Bench) -> None:
    bench.store.set_up("a-second-identity", used=False)
    assert bench.store.identity() == IDENTITY
    bench.write(MARKER, b"")
    assert bench.store.identity() == ""
    bench.store.set_up("a-second-identity", used=False)
    assert bench.store.identity() == "a-second-identity"


def test_a_store_of_before_markers_is_taken_over_where_its_studies_are(bench: Bench, tmp_path: Path) -> None:
    ref = bench.store.put(_local(tmp_path), _meta())
    bench.remove(MARKER)
    bench.away()
    with pytest.raises(StoreUnavailableError, match="has checkpoints in it, and nothing lies there"):
        bench.store.set_up(IDENTITY, used=True)
    assert bench.names() == []
    bench.back()
    bench.store.set_up(IDENTITY, used=True)
    assert bench.store.fetch(ref, tmp_path / "back").step == 9


def test_a_folder_without_its_manifest_is_damaged_and_without_itself_it_is_gone(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.set_up(IDENTITY, used=False)
    ref = store.put(_local(tmp_path), _meta())
    (tmp_path / "store" / TRIAL / _meta().name / "manifest.json").unlink()
    with pytest.raises(CheckpointCorruptError):
        store.fetch(ref, tmp_path / "back")
    store.delete(ref.uri)
    with pytest.raises(CheckpointGoneError):
        store.fetch(ref, tmp_path / "back")


def test_a_root_that_vanishes_is_not_made_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    with pytest.raises(StoreUnavailableError, match="is away"):
        store.put(_local(tmp_path), _meta())
    assert not (tmp_path / "store").exists()


def test_a_checkpoint_that_comes_back_between_two_looks_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    store = DirectoryStore(root)
    store.set_up(IDENTITY, used=False)
    ref = store.put(_local(tmp_path), _meta())
    root.rename(tmp_path / "away")
    require = store.require

    def mounted_meanwhile() -> None:
        if not root.exists():
            (tmp_path / "away").rename(root)
        require()

    monkeypatch.setattr(store, "require", mounted_meanwhile)
    assert store.fetch(ref, tmp_path / "back").step == 9


def test_a_store_that_goes_away_during_a_put_has_stored_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    store = DirectoryStore(root)
    store.set_up(IDENTITY, used=False)
    link = os.link

    def unmounted(source: Path, target: Path) -> None:
        if not (tmp_path / "away").exists():
            root.rename(tmp_path / "away")
            target.parent.mkdir(parents=True)
        link(source, target)

    monkeypatch.setattr(os, "link", unmounted)
    with pytest.raises(StoreUnavailableError, match="is away"):
        store.put(_local(tmp_path), _meta())
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_a_file_that_cannot_be_read_is_no_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.set_up(IDENTITY, used=False)
    ref = store.put(_local(tmp_path), _meta())
    opened = Path.open

    def failing(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == "state.pt" and path.is_relative_to(tmp_path / "store"):
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(CheckpointUnreadableError, match=r"state\.pt cannot be read: Input/output error"):
        store.fetch(ref, tmp_path / "back")


def _order(name: str, keep: int = 1) -> PruneOrder:
    return PruneOrder(trial=TRIAL, name=name, keep=keep)


def test_what_an_order_supersedes() -> None:
    names = ["a", "b", "c", "d", "e"]
    assert superseded(names, _order("d")) == ["a", "b", "c"]
    assert superseded(names, _order("d", keep=3)) == ["a"]
    assert superseded(names, _order("d", keep=5)) == []
    assert superseded(names, _order("d", keep=9)) == []
    assert superseded(names, _order("0")) == []


def test_what_a_study_takes_is_reported_and_cleared_by_trial(bench: Bench, tmp_path: Path) -> None:
    for number, study in [(3, "digits"), (30, "digits"), (3, "digits-2")]:
        place = f"studies/{study}/trials/{number}"
        bench.store.put(_local(tmp_path, place), replace(_meta(), trial=place))
    sizes = bench.store.sizes("studies/digits")
    assert sizes.keys() == {"studies/digits/trials/3", "studies/digits/trials/30"}
    whole = sum(len(bench.read(key)) for key in bench.names() if key.startswith("studies/digits/"))
    assert sum(sizes.values()) == whole > 14_004
    assert bench.store.studies() == ["digits", "digits-2"]
    bench.store.clear("studies/digits/trials/3")
    assert bench.store.sizes("studies/digits").keys() == {"studies/digits/trials/30"}
    bench.store.clear("studies/digits/trials/30")
    bench.store.clear("studies/digits/trials/30")
    assert bench.store.sizes("studies/digits") == bench.store.sizes("studies/never") == {}
    assert bench.store.sizes("studies/digits-2").keys() == {"studies/digits-2/trials/3"}
    assert bench.store.studies() == ["digits-2"]


def test_an_address_tells_the_store_and_the_study(bench: Bench, tmp_path: Path) -> None:
    ref = bench.store.put(_local(tmp_path), _meta())
    place = Place.of(ref.uri)
    assert place is not None
    assert store_from_url(place.store).fetch(ref, tmp_path / "back").trial == TRIAL
    assert place.study == "studies/digits"
    for other in (
        "",
        "file:///a/b",
        "my own words",
        "/a/studies/s/trials/3/name/",
        "s3://b/studies/s/trials/x/n/",
    ):
        assert Place.of(other) is None


def test_an_acknowledgement_proves_a_checkpoint_after_a_quiet_heartbeat() -> None:
    retention = Retention()
    retention.saved("lease", 1, _order("a"))
    retention.saved("lease", 2, _order("b"))
    retention.acked([1, 2])
    assert retention.tick() == []
    assert retention.tick() == [_order("b")]
    assert retention.tick() == []


def test_a_fenced_lease_proves_nothing() -> None:
    retention = Retention()
    retention.saved("lease", 1, _order("a"))
    retention.acked([1])
    retention.over("lease")
    assert [*retention.tick(), *retention.tick(), *retention.tick()] == []
    assert retention.decided("lease", 1) is None


def test_a_decision_proves_all_reports_before_it() -> None:
    retention = Retention()
    for sequence, name in enumerate("abc", start=1):
        retention.saved("lease", sequence, _order(name))
    retention.saved("other", 4, _order("z"))
    assert retention.decided("lease", 2) == _order("b")
    assert retention.decided("lease", 3) == _order("c")
    assert retention.decided("other", 9) == _order("z")


def test_shared_checkpoints_are_pruned_by_decisions_alone() -> None:
    retention = Retention()
    order = PruneOrder(trial="studies/s/trials/1", name="b", keep=1, shared=True)
    retention.saved("lease", 1, order)
    retention.acked([1])
    assert [*retention.tick(), *retention.tick(), *retention.tick()] == []
    decided = retention.decided("lease", 1, ["file:///store/a/"])
    assert decided is not None
    assert decided.spared == {"file:///store/a/"}


def test_small_files_lie_beside_the_checkpoints(bench: Bench) -> None:
    store, name = bench.store, "logs/000001.log"
    store.put_file(TRIAL, "logs/000002.log", b"x")
    assert store.read_file(TRIAL, name, 0, 10) is None
    store.put_file(TRIAL, name, b"9876543210")
    store.put_file(TRIAL, name, b"0123456789")
    assert store.read_file(TRIAL, name, 0, 4) == b"0123"
    assert store.read_file(TRIAL, name, 8, 4) == b"89"
    assert store.read_file(TRIAL, name, 10, 4) == b""
    assert store.read_file(TRIAL, name, 99, 4) == b""
    assert store.list(TRIAL) == []
    assert store.sizes("studies/digits") == {TRIAL: 11}
    for _ in range(2):
        store.delete_file(TRIAL, "logs/000002.log")
    assert store.read_file(TRIAL, "logs/000002.log", 0, 4) is None
    store.clear(TRIAL)
    assert bench.contents() == []
