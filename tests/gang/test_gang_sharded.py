"""FSDP2's state, saved by two ranks and loaded by one, two and three: the same weights and moments."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import context

from headrace.ports import any_port
from headrace.trial.codec import try_encode


def build(world: int) -> tuple[Any, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def whole(model: Any, optimizer: Any) -> list[float]:
    """All weights and moments, from all ranks."""
    tensors = [*model.parameters(), *(one["exp_avg_sq"] for one in optimizer.state.values())]
    return torch.cat([tensor.full_tensor().detach().reshape(-1) for tensor in tensors]).tolist()  # type: ignore[no-any-return]  # torch does not type tolist


def rank_main(rank: int, world: int, port: int, folder: str, saves: bool, results: Any) -> None:
    import torch.distributed as dist

    from headrace_torch.sharded import ShardedState

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model, optimizer = build(world)
    state = ShardedState(model, optimizer)
    refused = ""
    if saves:
        state.save_files(Path(folder) / "fresh")  # an optimizer without a step has nothing to save
        assert not optimizer.state
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        state.save_files(Path(folder) / "stepped")
        try:
            try_encode(model.state_dict(), "model")
        except TypeError as error:
            refused = str(error)
    else:
        state.load_files(Path(folder) / "fresh")
        assert not optimizer.state
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        state.load_files(Path(folder) / "stepped")
        assert {float(one["step"]) for one in optimizer.state.values()} == {1.0}
    results.put((rank, whole(model, optimizer), refused))
    dist.destroy_process_group()
    os._exit(0)


def gang(world: int, folder: Path, *, saves: bool) -> list[tuple[int, list[float], str]]:
    port = any_port()
    results = context().SimpleQueue()
    processes = [
        context().Process(target=rank_main, args=(rank, world, port, str(folder), saves, results))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join(60)
    return found


@pytest.mark.timeout(120)
def test_another_number_of_ranks_loads_what_two_have_saved(tmp_path: Path) -> None:
    (_, saved, refused), (_, other, _) = gang(2, tmp_path, saves=True)
    assert saved == other
    assert "is sharded over the ranks (a DTensor)" in refused
    assert "headrace_torch.sharded.ShardedState(model, optimizer)" in refused
    for world in (1, 2, 3):
        for _, loaded, _ in gang(world, tmp_path, saves=False):
            assert loaded == saved
