"""What a worker deletes of ended studies: what the scheduler says, and nothing else."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.checkpoints import CheckpointMeta, store_from_url
from headrace.v1 import worker_pb2
from headrace_worker.tidying import Tidying

Verdicts = dict[str, worker_pb2.FolderVerdict]


class Site:
    """A worker's store and logs, with studies in them, and a scripted scheduler."""

    def __init__(self, folder: Path) -> None:
        self.store = store_from_url((folder / "store").as_uri())
        self.store.set_up("0123456789abcdef", used=False)
        self.logs = folder / "logs"
        self.scratch = folder / "scratch"
        self.verdicts: Verdicts = {}
        self.asked: list[list[str]] = []
        self.busy: set[str] = set()
        self.then: Callable[[], None] = lambda: None
        (self.logs / "other-cluster-1").mkdir(parents=True)

    def save(self, study: str, trial: int, name: str) -> str:
        """Store a checkpoint; returns its address."""
        local = self.scratch / study / str(trial) / name
        local.mkdir(parents=True)
        (local / "weights").write_text(name)
        place = f"studies/{study}/trials/{trial}"
        meta = CheckpointMeta(trial=place, name=name, step=1, milestone=1, attempt=1)
        return self.store.put(local, meta).uri

    def log(self, study: str) -> Path:
        """Write a log."""
        path = self.logs / study / "0.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a line")
        return path

    def says(self, study: str, **verdict: object) -> None:
        """Script the scheduler."""
        self.verdicts[study] = worker_pb2.FolderVerdict(folder=study, **verdict)  # type: ignore[arg-type]

    async def judge(self, asked: worker_pb2.JudgeFoldersRequest) -> worker_pb2.JudgeFoldersResponse:
        """Answer according to the script."""
        self.asked.append(list(asked.folders))
        found = [self.verdicts[folder] for folder in asked.folders if folder in self.verdicts]
        if len(self.asked) > 1:
            self.then()
        return worker_pb2.JudgeFoldersResponse(verdicts=found)

    def tidy(self) -> None:
        """Tidy once."""
        asyncio.run(Tidying(self.store, self.logs, self.judge, lambda: self.busy).tidy())

    def names(self, study: str, trial: int) -> list[str]:
        """The checkpoints that exist."""
        return self.store.list(f"studies/{study}/trials/{trial}")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_deleted_study_s_checkpoints_and_logs_go_and_others_stay(site: Site) -> None:
    for study in ("old-1", "live-2"):
        site.save(study, 0, "a")
        site.log(study)
    site.says("old-1", deleted=True)
    site.tidy()
    assert site.asked == [["live-2", "old-1", "other-cluster-1"]]
    assert site.store.studies() == ["live-2"]
    assert sorted(path.name for path in site.logs.iterdir()) == ["live-2", "other-cluster-1"]


def test_what_is_stored_while_it_tidies_stays_and_so_does_the_best(site: Site) -> None:
    best, _ = site.save("old-1", 0, "a"), site.save("old-1", 0, "b")
    site.save("old-1", 1, "a")
    log = site.log("old-1")
    site.says("old-1", checkpoints=True, kept=[best.replace("file:///", "file://localhost/")])

    def goes_on() -> None:
        site.save("old-1", 1, "c")

    site.then = goes_on
    site.tidy()
    assert (site.names("old-1", 0), site.names("old-1", 1)) == (["a"], ["c"])
    assert log.exists()


def test_a_study_that_continues_between_the_two_questions_keeps_everything(site: Site) -> None:
    site.save("old-1", 0, "a")
    site.says("old-1", checkpoints=True)
    real = site.judge

    async def once(asked: worker_pb2.JudgeFoldersRequest) -> worker_pb2.JudgeFoldersResponse:
        answer = await real(asked)
        site.verdicts.clear()
        return answer

    site.judge = once  # type: ignore[method-assign]  # a scheduler that changes its mind
    site.tidy()
    assert site.names("old-1", 0) == ["a"]


def test_logs_alone(site: Site) -> None:
    site.save("old-1", 0, "a")
    log = site.log("old-1")
    site.says("old-1", logs=True)
    site.tidy()
    assert not log.exists()
    assert site.names("old-1", 0) == ["a"]


def test_a_study_that_runs_here_is_left_alone(site: Site) -> None:
    site.save("old-1", 0, "a")
    log = site.log("old-1")
    site.busy = {"old-1"}
    site.says("old-1", deleted=True)
    site.tidy()
    assert log.exists()
    assert site.names("old-1", 0) == ["a"]
