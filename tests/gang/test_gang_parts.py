"""A gang's checkpoint: one part per rank, equal values written once, and complete or refused."""

import json
import random
from pathlib import Path
from threading import Event, current_thread
from typing import Any

import pytest
import torch
from gang_threads import run_gang

from headrace.trial import Trial, checkpoint, read_checkpoint, rng, saving, shared
from headrace.trial.ranks import PREFIX, clear_exchanges
from headrace.trial.restore import Restore
from headrace.trial.runtime import OwnEnd
from headrace.trial.tracking import tracked


class Divided:
    """Counts the batches of one rank, and knows how to divide the total count."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]

    def load_rank_states(self, states: list[dict[str, int]], *, rank: int, world_size: int) -> None:
        total = sum(state["count"] for state in states)
        self.count = total // world_size + (rank < total % world_size)


class Kept(Divided):
    """As `Divided`, but does not say how to divide."""

    load_rank_states = None  # type: ignore[assignment]  # as of an object without the method


class Sharded:
    """Saves itself: one file per rank."""

    def __init__(self, rank: int, *, resharded: bool) -> None:
        self.rank = rank
        self.resharded = resharded
        self.found: list[str] = []

    def save_files(self, folder: Path) -> None:
        (folder / f"shard-{self.rank}").write_text(str(self.rank))

    def load_files(self, folder: Path) -> None:
        self.found = sorted(path.name for path in folder.iterdir())


class Engine(torch.nn.Module):
    """DeepSpeed's engine as a trial sees it. It is a module too: its weights alone are not its state."""

    saved: str | None = None

    def save_checkpoint(self, folder: str, tag: str, save_latest: bool) -> None:
        assert not save_latest
        Path(folder, tag).write_text("an engine")

    def load_checkpoint(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        path = Path(folder, tag)
        self.saved = path.read_text() if path.exists() else None
        return (str(path) if path.exists() else None), {}


Engine.__module__ = "deepspeed.runtime.engine"


def model() -> torch.nn.Module:
    made = torch.nn.Linear(256, 256)
    with torch.no_grad():  # the same on each thread; they share the generator
        made.weight.copy_(torch.arange(256.0 * 256).reshape(256, 256))
        made.bias.zero_()
    return made


def weights(folder: Path, rank: int) -> int:
    return (folder / f"rank-{rank}.pt").stat().st_size


def save(t: Trial, **tracked: Any) -> None:
    t.track(**tracked)
    for step in t.steps():
        t.report(loss=1.0, step=step)


def test_what_is_equal_on_all_ranks_is_written_once_and_the_rest_by_each(tmp_path: Path) -> None:
    def body(t: Trial) -> float:
        own = random.Random(t.rank)
        own.random()
        t.state["seen"], t.state["alike"] = t.rank, 7
        save(t, net=model(), own=own)
        return own.random()

    expected, folder = run_gang(tmp_path, 3, body)
    assert folder is not None
    sizes = [weights(folder, rank) for rank in range(3)]
    assert sizes[0] > 256 * 256 * 4 > max(sizes[1:]), f"the model stands in one part alone: {sizes}"

    def again(t: Trial) -> tuple[float, int, int, bool]:
        own, other = random.Random(99), torch.nn.Linear(256, 256)
        t.track(net=other, own=own)
        return own.random(), t.state["seen"], t.state["alike"], torch.equal(other.weight, model().weight)

    found, _ = run_gang(tmp_path, 3, again, restore=folder, resume_step=1)
    assert found == [(expected[rank], rank, 7, True) for rank in range(3)]
    assert read_checkpoint(folder).tracked["net"]["weight"].shape == (256, 256)


def test_what_the_user_says_is_shared_is_rank_0s_on_all(tmp_path: Path) -> None:
    def body(t: Trial) -> None:
        counter = Kept()
        counter.count = t.rank
        save(t, counter=shared(counter))

    _, folder = run_gang(tmp_path, 2, body)
    assert folder is not None
    for world in (2, 3):

        def again(t: Trial) -> int:
            counter = Kept()
            t.track(counter=shared(counter))
            return counter.count

        found, _ = run_gang(tmp_path, world, again, restore=folder, resume_step=1)
        assert found == [0] * world


@pytest.mark.parametrize("world", [1, 2, 4])
def test_another_number_of_ranks_is_divided_again_or_refused_by_name(tmp_path: Path, world: int) -> None:
    def body(t: Trial) -> None:
        divided, kept = Divided(), Kept()
        divided.count, kept.count = 10 + t.rank, t.rank
        save(t, net=model(), divided=divided, kept=kept)

    _, folder = run_gang(tmp_path, 3, body)

    def again(t: Trial) -> Any:
        divided, net = Divided(), torch.nn.Linear(256, 256)
        t.track(net=net, divided=divided)
        assert torch.equal(net.weight, model().weight)
        with pytest.raises(
            ValueError, match=rf"t.track\(kept=...\): .* on 3 ranks, .* this trial has {world}. Give kept"
        ):
            t.track(kept=Kept())
        return divided.count

    found, _ = run_gang(tmp_path, world, again, restore=folder, resume_step=1)
    assert sum(found) == 33


@pytest.mark.parametrize("world", [1, 2])
def test_what_saves_itself_is_loaded_by_the_same_number_of_ranks_or_says_more(
    tmp_path: Path, world: int
) -> None:
    both = {"more": True, "same": False}

    def body(t: Trial) -> None:
        save(t, **{name: Sharded(t.rank, resharded=resharded) for name, resharded in both.items()})

    _, folder = run_gang(tmp_path, 2, body)
    assert folder is not None

    def again(t: Trial) -> list[str]:
        more, same = (Sharded(t.rank, resharded=resharded) for resharded in both.values())
        t.track(more=more)
        if world == 2:
            t.track(same=same)
            return [*more.found, *same.found]
        with pytest.raises(
            ValueError, match=r"t.track\(same=...\): .* on 2 ranks, saved in shards of its own"
        ):
            t.track(same=same)
        return more.found

    shards = ["shard-0", "shard-1"]
    found, _ = run_gang(tmp_path, world, again, restore=folder, resume_step=1)
    assert found == [shards * world] * world
    assert sorted(read_checkpoint(folder).files) == ["more", "same"]


def test_an_engine_saves_and_loads_itself(tmp_path: Path) -> None:
    _, folder = run_gang(tmp_path, 1, lambda t: save(t, engine=Engine()))
    assert folder is not None

    def again(t: Trial) -> str | None:
        engine = Engine()
        t.track(engine=engine)
        return engine.saved

    assert run_gang(tmp_path, 1, again, restore=folder, resume_step=1)[0] == ["an engine"]
    (checkpoint.files_of(folder, "engine") / "saved").unlink()
    (error,), _ = run_gang(tmp_path, 1, again, restore=folder, resume_step=1)
    assert "t.track(engine=...): DeepSpeed found no checkpoint of its own" in str(error)
    with pytest.raises(TypeError, match="leave shared"):
        tracked("engine", shared(Engine()))


def test_a_generator_of_one_process_says_nothing_of_what_further_ranks_draw(tmp_path: Path) -> None:
    _, folder = run_gang(tmp_path, 1, lambda t: save(t, own=random.Random(1), net=model()))

    def again(t: Trial) -> None:
        t.track(net=torch.nn.Linear(256, 256))
        t.track(own=random.Random(t.rank))

    found, _ = run_gang(tmp_path, 2, again, restore=folder, resume_step=1)
    assert all("t.track(own=...): the checkpoint was taken on 1 rank" in str(error) for error in found)


def drawn(folder: Path, world: int) -> list[float]:
    """The numbers that each of `world` ranks draws after the checkpoint."""
    found = []
    for rank in range(world):
        Restore(folder, rank, world, seed=3).put_back({})
        found.append(random.random())
    return found


def test_ranks_that_are_added_to_one_process_draw_numbers_of_their_own(tmp_path: Path) -> None:
    random.seed(1)
    _, folder = run_gang(tmp_path, 1, lambda t: save(t, net=model()))
    goes_on = random.random()
    assert folder is not None
    found = drawn(folder, 4)
    assert found[0] == goes_on
    assert len(set(found)) == 4
    assert drawn(folder, 4) == found


@pytest.mark.parametrize("alike", [False, True])
def test_ranks_that_are_added_to_a_gang_draw_alike_only_where_its_ranks_did(
    tmp_path: Path, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture() -> rng.State:  # the ranks of these tests share one process, and so its generators
        return {"python": random.Random("" if alike else current_thread().name).getstate()}

    monkeypatch.setattr(rng, "capture", capture)
    _, folder = run_gang(tmp_path, 2, lambda t: save(t, net=model()))
    assert folder is not None
    found = drawn(folder, 4)
    assert len(set(found)) == (1 if alike else 4)
    assert drawn(folder, 4) == found


def test_a_checkpoint_without_the_part_of_a_rank_is_refused(tmp_path: Path) -> None:
    _, folder = run_gang(tmp_path, 3, lambda t: save(t, net=model()))
    assert folder is not None
    (folder / "rank-1.pt").unlink()
    with pytest.raises(checkpoint.IncompleteError, match="of 3 ranks, rank 1 has no part in it"):
        checkpoint.read(folder)


def late(t: Trial) -> None:
    t.track(net=model())
    if t.rank != 1:
        t.report(loss=1.0)


def ahead(t: Trial) -> None:
    t.track(net=model())
    t.report(loss=1.0, step=1 + t.rank)


def idle(t: Trial) -> None:
    if t.rank == 0:
        t.track(net=model())
    for step in t.steps():
        t.report(loss=1.0, step=step)


@pytest.mark.parametrize(
    ("body", "text", "ranks"),
    [
        (late, "rank 1 of 3 has not reached the checkpoint of step 1 within 0 s", (0, 2)),
        (ahead, "rank 1 reports step 2 where rank 0 reports step 1", (0, 1, 2)),
        (idle, "rank 1, 2 tracks nothing, and rank 0 does", (0,)),
    ],
)
def test_ranks_that_do_not_come_to_one_checkpoint_are_told_so(
    tmp_path: Path, body: Any, text: str, ranks: tuple[int, ...]
) -> None:
    found, folder = run_gang(tmp_path, 3, body, patience_s=0.3)
    assert folder is None
    assert [rank for rank, error in enumerate(found) if text in str(error)] == list(ranks)


def test_the_words_of_a_rank_that_is_ahead_are_not_cleared_away(tmp_path: Path) -> None:
    places = [tmp_path / f"{PREFIX}00000000-{number:06d}" for number in (1, 2, 3)]
    for place in places:
        place.mkdir()
    clear_exchanges(tmp_path, before=places[1])
    assert sorted(tmp_path.iterdir()) == places[1:]


def test_words_of_earlier_saves_are_cleared_away(tmp_path: Path) -> None:
    _, folder = run_gang(tmp_path, 2, lambda t: save(t, own=random.Random(t.rank)), stop=3)
    assert folder is not None
    words = list(tmp_path.glob(".words-*"))
    assert len(words) == 1
    assert {json.loads(word.read_text())["step"] for word in words[0].glob("*.json")} == {3}


def test_a_script_that_reports_on_rank_0_alone_and_tracks_nothing_is_not_held_up(tmp_path: Path) -> None:
    def body(t: Trial) -> int:
        for step in t.steps():
            if t.rank == 0:
                t.report(loss=1.0, step=step)
        return t.step

    found, folder = run_gang(tmp_path, 2, body, stop=9, patience_s=0.1)
    assert found == [9, 9]
    assert folder is None


@pytest.mark.parametrize("idle_rank", [0, 1])
@pytest.mark.parametrize("reports_ahead", [0, 3])
def test_a_rank_that_tracks_nothing_is_named_however_far_it_is_ahead(
    tmp_path: Path, idle_rank: int, reports_ahead: int
) -> None:
    gone_on = Event()

    def body(t: Trial) -> None:
        if t.rank != idle_rank:
            t.track(net=model())
            assert gone_on.wait(20)
        for step in t.steps():
            t.report(loss=1.0, step=step)
            if step > reports_ahead:
                gone_on.set()

    found, _ = run_gang(tmp_path, 2, body, stop=9)
    assert found[idle_rank] is None, "it waits for nobody"
    assert f"rank {idle_rank} tracks nothing, and rank {1 - idle_rank} does" in str(found[1 - idle_rank])


def test_a_rank_that_keeps_something_later_is_waited_for_from_then_on(tmp_path: Path) -> None:
    def body(t: Trial) -> None:
        for step in t.steps():
            if step == 3:
                t.state["seen"] = t.rank
            t.report(loss=1.0, step=step)

    found, folder = run_gang(tmp_path, 2, body, stop=3)
    assert found == [None, None]
    assert folder is not None
    assert [checkpoint.read(folder, rank)["state"] for rank in (0, 1)] == [{"seen": 0}, {"seen": 1}]


def test_the_ranks_of_a_gang_that_ends_by_itself_leave_one_whole_checkpoint(tmp_path: Path) -> None:
    def body(t: Trial) -> OwnEnd:
        t.state["rank"] = t.rank
        for _ in t.steps():
            t.report(loss=1)
            break
        return t._own_end()

    ends, _ = run_gang(tmp_path, 2, body, stop=9, milestone=9)
    folders = {end.checkpoint_dir for end in ends}
    assert len(folders) == 1
    assert checkpoint.ranks_in(folders.pop()) == [0, 1]
    assert [(end.step, end.unsaved) for end in ends] == [(1, "")] * 2


def test_a_rank_that_does_not_come_to_the_end_takes_nothing_from_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "AT_END_S", 0.2)

    def body(t: Trial) -> OwnEnd:
        t.state["rank"] = t.rank
        for _ in t.steps():
            t.report(loss=1)
            break
        return t._own_end() if t.rank == 0 else OwnEnd()

    (end, _), _ = run_gang(tmp_path, 2, body, stop=9, milestone=9)
    assert end.checkpoint_dir is None
    assert "rank 1 of 2 has not reached the checkpoint" in end.unsaved
