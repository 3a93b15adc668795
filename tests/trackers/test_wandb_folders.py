"""W&B's folders after kills, with many studies, and after a look at a file that grows. `make test-trackers`.

W&B's library has a double here, which writes a run's folder when the run is finished.
"""

import itertools
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest

pytestmark = pytest.mark.full
pytest.importorskip("wandb", reason="`make test-trackers` installs it")

from copied_study import KilledError, Points, copied, info, same, table, updates  # noqa: E402  # after the check for the packages
from exporter_site import ScriptedStudy, cut, named  # noqa: E402  # after the check for the packages
from scripted_study import Script  # noqa: E402  # after the check for the packages
from wandb.proto.wandb_internal_pb2 import Record  # noqa: E402  # after the check for the packages

from headrace.track import positions, wandb_files, wandb_folders  # noqa: E402  # after the check for the packages
from headrace.track.exporter import Copy  # noqa: E402  # after the check for the packages
from headrace.track.names import original  # noqa: E402  # after the check for the packages
from headrace.track.tracker import ForgottenError, RunsSink, Start  # noqa: E402  # after the check for the packages
from headrace.track.wandb_folders import WandbTool  # noqa: E402  # after the check for the packages

ROWS = "rows.json"


class Run:
    """A double of W&B's run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.settings = SimpleNamespace(sync_dir=str(folder))
        self.config: Any = SimpleNamespace(update=lambda *_, **__: None)
        self.summary: Any = SimpleNamespace(update=lambda *_: None)
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def define_metric(self, *_: object, **__: object) -> None:
        pass

    def log(self, row: dict[str, Any], step: int) -> None:
        self.rows.append((step, row))

    def finish(self, exit_code: int) -> None:  # noqa: ARG002 - W&B's
        folder = Path(self.settings.sync_dir)
        if folder.exists():
            (folder / ROWS).write_text(json.dumps(self.rows))


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double, in place of the library. A study's runs are finished soon."""
    seconds = itertools.count()

    def init(*, dir: str, id: str, **_: object) -> Run:  # noqa: A002 - W&B's names
        return Run(Path(dir, "wandb", f"offline-run-20260301_{next(seconds):06}-{id}"))

    monkeypatch.setattr(wandb_folders.wandb, "init", init)
    monkeypatch.setattr(wandb_folders, "completed", lambda folder: (folder / ROWS).exists())
    monkeypatch.setattr(wandb_folders, "LINGER", 10)


def points(folder: Path, key: str = "0123456789ab") -> Points:
    """The points of a study. Rows count from 0, without a gap or a repetition."""
    found: Points = {}
    counts: dict[int, int] = {}
    for place in sorted(folder.glob(f"wandb/offline-run-*-{key}-*")):
        trial = int(place.name.rpartition("-")[2])
        for step, row in json.loads((place / ROWS).read_text()):
            assert step == counts.get(trial, 0)
            counts[trial] = step + 1
            for name, value in row.items():
                if name != wandb_folders.STEP and name != "_timestamp":
                    at = found.setdefault((trial, original(name)), [])
                    at.append((row[wandb_folders.STEP], value))
    return found


def killed_at(moment: int, monkeypatch: pytest.MonkeyPatch, copy: Callable[[], object]) -> bool:
    """Copies in a process of its own, which is killed before or after something is done to a file."""
    count = itertools.count(1)

    def watched(function: Any) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            if next(count) == moment:
                raise KilledError
            found = function(*arguments, **named)
            if next(count) == moment:
                raise KilledError
            return found

        return called

    with monkeypatch.context() as patch:
        patch.setattr(wandb_folders, "_STUDIES", WeakSet(), raising=False)
        patch.setattr(wandb_folders.wandb, "init", watched(wandb_folders.wandb.init))
        patch.setattr(Run, "finish", watched(Run.finish))
        for name in ("write", "remove"):
            if hasattr(positions, name):
                patch.setattr(positions, name, watched(getattr(positions, name)))
        for name in ("rename", "unlink"):
            patch.setattr(Path, name, watched(getattr(Path, name)))
        try:
            copy()
        except KilledError:
            return True
        return False


def test_two_kills_at_any_moment_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_folders, "MOST_OPEN", 2)
    script = cut(381 - 60)
    number = itertools.count()
    for first in itertools.count(1):
        for second in (*range(1, 12), 25):
            folder = tmp_path / str(next(number))
            copy = lambda folder=folder: copied(WandbTool(folder), script, [], batch=5)  # noqa: E731
            if not killed_at(first, monkeypatch, copy):
                assert first > 50
                return
            killed_at(second, monkeypatch, copy)
            copy()
            same(points(folder), table(script))
            shutil.rmtree(folder)


def test_finished_folders_stay_when_their_trial_is_written_again(tmp_path: Path) -> None:
    """They may have been uploaded."""
    script = cut(381 - 60)
    part = list(updates(script, batch=5))
    sink = RunsSink(WandbTool(tmp_path).open(info(script), print, Start.RESUME))
    for update in part[:8]:
        sink.write(update)
    sink.close(ended=False)
    finished = {file: file.read_bytes() for file in tmp_path.rglob(ROWS)}
    sink = RunsSink(WandbTool(tmp_path).open(info(script), print, Start.RESUME))
    for update in part[8:]:
        sink.write(update)  # and then it is killed
    copied(WandbTool(tmp_path), script, [])
    assert {file: file.read_bytes() for file in finished} == finished
    same(points(tmp_path), table(script))


def test_a_run_that_is_lost_while_a_study_is_closed_is_written_again(tmp_path: Path) -> None:
    script = cut(381 - 60)
    sink = RunsSink(WandbTool(tmp_path).open(info(script), print, Start.RESUME))
    for update in updates(script):
        sink.write(update)
    shutil.rmtree(next(tmp_path.glob("wandb/offline-run-*-1")))
    Copy(study=ScriptedStudy(script), sink=sink).close()  # type: ignore[arg-type]
    assert copied(WandbTool(tmp_path), script, []).cursor == len(script.events)
    same(points(tmp_path), table(script))


def test_a_kill_while_a_copy_is_set_aside_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new copy never begins at the old one's cursor."""
    old, new = cut(381 - 40), cut(381 - 60)
    for moment in range(1, 7):
        folder = tmp_path / str(moment)
        copied(WandbTool(folder), old, [])
        aside = lambda folder=folder: WandbTool(folder).open(info(old), print, Start.SET_ASIDE)  # noqa: E731
        killed_at(moment, monkeypatch, aside)
        copied(WandbTool(folder), new, [])
        key = "0123456789abr1" if list(folder.glob("wandb/*r1-*")) else "0123456789ab"
        same(points(folder, key), table(new))


def opened(*sinks: Any) -> int:
    return sum(copy.run is not None for sink in sinks for copy in sink._runs._copies.values())


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunsSink, RunsSink, Script, Script]:
    """Two studies of one process that may have two runs open. The first one has."""
    monkeypatch.setattr(wandb_folders, "MOST_OPEN", 2)
    monkeypatch.setattr(wandb_folders, "LINGER", 1000)
    one, other = cut(381 - 60), named("other", "fedcba9876543210")
    first = RunsSink(WandbTool(tmp_path).open(info(one), print, Start.RESUME))
    second = RunsSink(WandbTool(tmp_path).open(info(other), print, Start.RESUME))
    first.write(next(iter(updates(one, batch=50))))
    assert opened(first) == 2
    return first, second, one, other


def test_the_open_runs_of_all_studies_are_bounded(two: Any, tmp_path: Path) -> None:
    first, second, one, other = two
    for update in updates(other, batch=20):
        second.write(update)
        assert opened(first, second) <= 2
    assert opened(first) == 0
    for update in updates(one, after=50):
        first.write(update)
    first.close(ended=True)
    second.close(ended=True)
    same(points(tmp_path), table(one))
    same(points(tmp_path, "fedcba987654"), table(other))


def test_a_study_that_is_being_written_is_left_alone(two: Any) -> None:
    first, second, _, other = two
    with first._runs._used():
        thread = Thread(target=lambda: second.write(next(iter(updates(other, batch=20)))))
        thread.start()
        thread.join()
        assert (opened(first), opened(second)) == (2, 1)
    second.write(next(iter(updates(other, after=20, batch=20))))
    assert opened(first, second) == 2


def test_a_run_that_is_lost_for_another_studys_sake_is_noticed(two: Any, tmp_path: Path) -> None:
    first, second, one, other = two
    for folder in tmp_path.glob("wandb/offline-run-*-0123456789ab-*"):
        shutil.rmtree(folder)
    second.write(next(iter(updates(other, batch=20))))
    with pytest.raises(ForgottenError, match="file is not complete"):
        first.write(next(iter(updates(one, after=50))))
    with pytest.raises(ForgottenError):
        first.close(ended=True)
    copied(WandbTool(tmp_path), one, [])
    same(points(tmp_path), table(one))


def test_what_a_killed_process_had_begun_to_delete_is_deleted(script: Script, tmp_path: Path) -> None:
    left = tmp_path / "wandb/.deleted-offline-run-20260301_120000-0123456789ab-3"
    left.mkdir(parents=True)
    (left / ROWS).touch()
    WandbTool(tmp_path).open(info(script), print, Start.RESUME)
    assert not left.exists()


def test_a_file_that_grows_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(num=number) for number in range(5000)]
    for record in records:
        record.history.item.add(key="loss", value_json="0.25" * 5)
    records[700].history.item.add(key="long", value_json="x" * 100_000)  # over several blocks
    records.append(Record(num=5000))
    records[-1].exit.exit_code = 0
    data = in_blocks([record.SerializeToString() for record in records])
    parts = iter([data[place : place + 9973] for place in range(0, len(data), 9973)])
    file = tmp_path / "run-a.wandb"

    def grow(_: float) -> None:
        with file.open("ab") as out:
            out.write(next(parts))

    read: list[int] = []

    def parsed(record: bytes) -> Record:
        found = Record.FromString(record)
        read.append(found.num)
        return found

    monkeypatch.setattr(wandb_files.time, "sleep", grow)
    monkeypatch.setattr(wandb_files, "Record", SimpleNamespace(FromString=parsed))
    assert wandb_files.completed(tmp_path)
    assert read == list(range(5001))


def in_blocks(records: list[bytes]) -> bytes:
    """A file in W&B's format."""
    data = bytearray(b":W&B" + bytes(3))
    for record in records:
        rest, begun = record, False
        while rest or not begun:
            if (
                room := wandb_files.BLOCK_BYTES - len(data) % wandb_files.BLOCK_BYTES
            ) < wandb_files.HEADER_BYTES:
                data += bytes(room)
                continue
            part, rest = rest[: room - wandb_files.HEADER_BYTES], rest[room - wandb_files.HEADER_BYTES :]
            kind = {(False, False): 2, (False, True): 1, (True, False): 3, (True, True): 4}[begun, not rest]
            data += struct.pack("<IHB", 0, len(part), kind) + part
            begun = True
    return bytes(data)
