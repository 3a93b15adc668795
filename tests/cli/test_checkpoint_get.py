"""`headrace checkpoint get` and `headrace.load`: which checkpoint, its files, and why it is not available."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script, race

import headrace
import headrace.client.kept
from headrace.checkpoints import CheckpointMeta, Manifest, StoreUnavailableError, store_from_url
from headrace.checkpoints.directory import DirectoryStore
from headrace.client.kept import NoCheckpointError
from headrace.trial import checkpoint, read_checkpoint
from headrace.v1 import spec_pb2, trial_pb2

UID = "0a1b2c"


class Kept:
    """An ended study whose best trial has checkpoints of several steps in a store."""

    def __init__(self, script: Script, root: Path) -> None:
        self.script, self.root = script, root
        self.trial = script.final.study.status.best
        self.number = self.trial.number
        self.store = store_from_url((root / "store").as_uri())
        self.store.set_up("0123456789abcdef", used=False)

    def save(self, step: int, **saved: object) -> trial_pb2.CheckpointRef:
        """Save one of the given parts, as a worker saves a trial's checkpoint."""
        folder = self.root / f"made-{step}"
        part = {
            "trial": self.trial.name,
            "rank": 0,
            "world_size": 1,
            "step": step,
            "loop_step": step,
            "params": {"lr": 0.1},
            "files": [],
            "tracked": {"model": {"step": step}, "optimizer": {"lr": 0.1}},
            "state": {"seen": step},
            "rng": {},
            "as_rank_0": [],
            "everywhere": [],
        }
        checkpoint.write(folder, part | saved)
        place = f"studies/digits-{UID}/trials/{self.number}"
        meta = CheckpointMeta(
            trial=place, name=f"000001-{step:06d}-step{step}-ab", step=step, milestone=step, attempt=1
        )
        ref = self.store.put(folder, meta)
        for report in self.script.reports:
            if report.trial_number == self.number and report.step == step:
                report.checkpoint.CopyFrom(ref)
        return ref

    def show(self, field: str, ref: trial_pb2.CheckpointRef) -> None:
        """From now on the scheduler returns this for the trial, wherever the trial appears."""
        final = self.script.final
        for shown in (final.trials[self.number], final.study.status.best):
            getattr(shown, field).CopyFrom(ref)


@pytest.fixture
def kept(fake: FakeStudyService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    script = fake.add(race("digits"))
    script.final.study.uid = UID
    made = Kept(script, tmp_path)
    made.show("checkpoint", made.save(27))
    monkeypatch.chdir(tmp_path)
    return made


def test_without_a_trial_it_is_the_best_ones_last_checkpoint(kept: Kept, invoke: Invoke) -> None:
    done = invoke("checkpoint", "get", "digits")
    assert done.code == 0, done.err
    assert done.out == f"digits-{kept.number}-step27\n"
    saved = read_checkpoint(done.out.strip())
    assert (saved.step, saved.tracked["model"], saved.state) == (27, {"step": 27}, {"seen": 27})
    assert not list(kept.root.glob(".digits*")), "nothing half-copied is left"
    assert headrace.load("digits") == {"model": {"step": 27}, "optimizer": {"lr": 0.1}}


@pytest.mark.cases(2)
@pytest.mark.parametrize("with_torch", [True, False])
@pytest.mark.parametrize(
    ("saved", "member"),
    [
        ({"tracked": {}}, "state"),
        ({"tracked": {}, "files": ["model"]}, "files"),
        ({"state": {}}, "tracked"),
    ],
)
def test_it_says_where_in_the_checkpoint_the_trial_has_saved(
    kept: Kept,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    saved: dict[str, object],
    member: str,
    with_torch: bool,
) -> None:
    """A trial that tracks nothing has everything in t.state: `.tracked` is empty there."""
    if with_torch:
        weights = pytest.importorskip("torch").ones(2, requires_grad=True)
        saved = saved | {key: {"w": weights} for key in ("tracked", "state") if key == member}
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    kept.show("checkpoint", kept.save(28, **saved))
    done = invoke("checkpoint", "get", "digits")
    assert done.code == 0, done.err
    assert f'.read_checkpoint("{done.out.strip()}").{member}`.' in done.err


def test_the_best_one_is_taken_where_it_is_kept(kept: Kept, invoke: Invoke, tmp_path: Path) -> None:
    kept.show("best_checkpoint", kept.save(5))
    number = str(kept.number)
    done = invoke("checkpoint", "get", "digits", number, "--out", str(tmp_path / "a/b"), "--json")
    told = json.loads(done.out)
    assert (told["step"], told["trial"], Path(told["folder"])) == (5, kept.number, tmp_path / "a/b")
    assert read_checkpoint(told["folder"]).step == 5
    assert json.loads(invoke("checkpoint", "get", "digits", "--best", "--json").out)["step"] == 5
    assert json.loads(invoke("checkpoint", "get", "digits", "--last", "--json").out)["step"] == 27
    assert headrace.load("digits", kept.number)["model"] == {"step": 5}
    assert headrace.load("digits", last=True)["model"] == {"step": 27}
    shown = json.loads(invoke("show", "digits", number, "--json").out)
    assert "step5-" in shown["best_checkpoint"]
    assert "best checkpoint" in invoke("show", "digits", number).out
    assert "step5-" in invoke("best", "digits").out


def test_a_rung_is_named_by_its_step(kept: Kept, invoke: Invoke) -> None:
    kept.save(9)
    assert invoke("checkpoint", "get", "digits", "--rung", "9").code == 0
    assert headrace.load("digits", rung=9)["model"] == {"step": 9}
    never = invoke("checkpoint", "get", "digits", "--rung", "3")
    assert (never.code, "saved no checkpoint at the rung at step 3" in never.err) == (1, True)
    no_rung = invoke("checkpoint", "get", "digits", "--rung", "4")
    assert "was not recorded at a rung at step 4; its rungs: 1, 3, 9, 27" in no_rung.err


def test_why_there_is_none(kept: Kept, invoke: Invoke) -> None:
    other = next(trial.number for trial in kept.script.final.trials if trial.number != kept.number)
    with pytest.raises(NoCheckpointError, match="has no checkpoint"):
        headrace.load("digits", other)
    final = kept.script.final
    for shown in (final.trials[kept.number], final.study.status.best):
        shown.best_step = 5
    lost = invoke("checkpoint", "get", "digits", "--best")
    assert lost.code == 1
    assert "is of step 5, and its checkpoint is the last one, of step 27" in lost.err
    assert "keep: best" in lost.err
    assert "is of step 5" not in invoke("checkpoint", "get", "digits", "--out", "last").err, (
        "the last value counts"
    )
    final.study.spec.objective.scope = spec_pb2.SCOPE_BEST
    assert "is of step 5" in invoke("checkpoint", "get", "digits").err, "said, where another one is copied"
    final.study.spec.objective.keep = spec_pb2.KEEP_BEST
    last = invoke("checkpoint", "get", "digits", "--last", "--out", "again").err
    assert "is of step 5" not in last, "the study keeps that one already"
    kept.show("checkpoint", trial_pb2.CheckpointRef(uri="anything of the user's own", step=27))
    own = invoke("checkpoint", "get", "digits", "--out", "own")
    assert (own.code, "by the user's own program" in own.err) == (1, True)
    final.study.status.ClearField("best")
    assert "Name a trial by its number" in invoke("checkpoint", "get", "digits").err


def test_a_store_that_is_elsewhere_or_emptied_is_reported_with_the_remedy(kept: Kept, invoke: Invoke) -> None:
    ref = kept.trial.checkpoint
    kept.store.delete(ref.uri)
    gone = invoke("checkpoint", "get", "digits", "--out", "x")
    assert gone.code == 1
    assert f"The checkpoint of step 27 is not there on this machine: {ref.uri}" in gone.err
    assert "on the machine of " in gone.err
    assert "--store" in gone.err
    assert not Path("x").exists()
    with pytest.raises(NoCheckpointError, match="is not there on this machine"):
        headrace.load("digits")


def test_a_damaged_checkpoint_is_not_copied(kept: Kept, invoke: Invoke) -> None:
    folder = Path(kept.trial.checkpoint.uri.removeprefix("file://"))
    part = next(folder.glob("rank-0.*"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    bad = invoke("checkpoint", "get", "digits", "--out", "x")
    assert (bad.code, "rank-0" in bad.err, Path("x").exists()) == (1, True, False)


def changed(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def cut(data: bytes) -> bytes:
    return data[:-9]


@pytest.mark.parametrize("file", ["rank-0", "manifest"])
@pytest.mark.parametrize("damage", [changed, cut])
def test_a_damaged_checkpoint_is_not_loaded(kept: Kept, file: str, damage: Callable[[bytes], bytes]) -> None:
    (path,) = Path(kept.trial.checkpoint.uri.removeprefix("file://")).glob(f"{file}.*")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.raises(NoCheckpointError, match=rf"{path.name} .*It was changed or damaged in the store"):
        headrace.load("digits")
    path.unlink()
    with pytest.raises(NoCheckpointError, match=rf"{path.name} is missing"):
        headrace.load("digits")
    path.write_bytes(whole)
    assert headrace.load("digits")["model"] == {"step": 27}


def test_a_damaged_checkpoint_is_not_read_by_its_address(kept: Kept) -> None:
    address = kept.trial.checkpoint.uri
    assert read_checkpoint(address).step == 27
    (part,) = Path(address.removeprefix("file://")).glob("rank-0.*")
    part.write_bytes(changed(part.read_bytes()))
    with pytest.raises(ValueError, match=r"SHA-256 .*It was changed or damaged in the store"):
        read_checkpoint(address)


class Remote(DirectoryStore):
    """A store that is not a folder of this machine, such as S3."""

    folder = None  # type: ignore[assignment]
    answers = True

    def fetch(self, ref: trial_pb2.CheckpointRef, local_dir: Path) -> Manifest:
        if not self.answers:
            raise StoreUnavailableError("store s3://bucket does not answer: no credentials")
        return super().fetch(ref, local_dir)

    def _folder(self, uri: str) -> Path:
        return super()._folder(uri.replace("s3://bucket", self.url))


def test_a_store_that_is_no_folder_is_read_through_a_verified_copy(
    kept: Kept, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Remote(kept.root / "store")
    ref = trial_pb2.CheckpointRef()
    ref.CopyFrom(kept.trial.checkpoint)
    ref.uri = ref.uri.replace(store.url, "s3://bucket")
    kept.show("checkpoint", ref)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "obstore", None)
        without.delitem(sys.modules, "headrace.checkpoints.s3", raising=False)
        missing = invoke("checkpoint", "get", "digits")
        assert (missing.code, "pip install 'headrace[worker]'" in missing.err) == (1, True)
    monkeypatch.setattr(headrace.client.kept, "open_store", lambda _: store)
    assert headrace.load("digits")["model"] == {"step": 27}
    assert invoke("checkpoint", "get", "digits", "--out", "x").code == 0
    assert read_checkpoint("x").step == 27
    store.answers = False
    silent = invoke("checkpoint", "get", "digits")
    assert (silent.code, "AWS_* variables" in silent.err) == (1, True)
    store.answers = True
    shutil.rmtree(kept.root / "store" / "studies")
    assert "is not there in its store: s3://bucket/" in invoke("checkpoint", "get", "digits").err


def test_bad_options_are_refused_before_anything_is_asked(
    kept: Kept, fake: FakeStudyService, invoke: Invoke
) -> None:
    both = invoke("checkpoint", "get", "digits", "--rung", "9", "--best")
    assert (both.code, "cannot be combined" in both.err) == (2, True)
    Path("full").mkdir()
    Path("full/a").touch()
    full = invoke("checkpoint", "get", "digits", "--out", "full")
    assert (full.code, "is not an empty folder" in full.err) == (2, True)
    assert not fake.requests["GetStudy"]
    Path("empty").mkdir()
    assert invoke("checkpoint", "get", "digits", "--out", "empty").code == 0
    assert read_checkpoint("empty").step == 27
    with pytest.raises(ValueError, match="one of rung, best and last"):
        headrace.load("digits", best=True, last=True)
