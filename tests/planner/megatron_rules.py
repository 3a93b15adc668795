"""Gives arguments to Megatron-LM's own parser, as every rank of a job would, and says what it understood.

    python megatron_rules.py MEGATRON WORLD_SIZE ARGUMENT...

MEGATRON is a checkout of NVIDIA/Megatron-LM. Starts no job and needs no GPU, but is told an H100's compute
capability: parsing, Megatron's validation, and its transformer configuration, which checks the layout. What a job
needs besides a plan (data, a tokenizer, a learning rate) is filled in here.
"""

import importlib.util
import json
import os
import sys
import typing
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import torch
import torch._dynamo  # before a stand-in exists that it would take for the real one
import torch._inductor.runtime.triton_compat
import typing_extensions

MEGATRON, WORLD, *ARGUMENTS = sys.argv[1:]
JOB = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "51200"]
JOB += ["--lr", "1e-4", "--train-iters", "10"]

if not hasattr(typing, "override"):  # newer Megatron-LM needs Python 3.12 only for this name
    typing.override = typing_extensions.override  # type: ignore[attr-defined]


class Named(type):
    """Makes types that have every attribute."""

    def __getattr__(cls, name: str) -> "Named":
        return Named(name, (Anything,), {})


class Anything(metaclass=Named):
    """Any attribute of a module of kernels: a type to test against, a decorator, a value."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> "Anything":
        return self

    def __getattr__(self, name: str) -> "Anything":
        return self


class Kernels(MetaPathFinder, Loader):
    """Replaces `triton` where it is not installed: GPU kernels that are imported but never called."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] == "triton" else None

    def exec_module(self, module: ModuleType) -> None:
        known = {"__version__": "0", "__file__": "triton.py"}
        vars(module).update(known, __getattr__=lambda name: Named(name, (Anything,), {}))


if importlib.util.find_spec("triton") is None:
    sys.meta_path.append(Kernels())
setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=9, minor=0))  # noqa: B010  mypy wants the real type
setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))  # noqa: B010  as above
os.environ |= {"WORLD_SIZE": WORLD, "RANK": "0", "LOCAL_RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
sys.path.insert(0, MEGATRON)
sys.argv = ["pretrain_gpt.py", *ARGUMENTS, *JOB]

from megatron.training.arguments import (  # type: ignore[import-not-found]  # noqa: E402  not a dependency, found by the line above
    core_transformer_config_from_args,
    parse_args,
    validate_args,
)

parsed = parse_args()
validate_args(parsed)
config = core_transformer_config_from_args(parsed)
layout = config.pipeline_model_parallel_layout
if layout is not None:
    layout.validate_layer_layout(parsed.num_layers, None)
understood = {
    "data_parallel_size": parsed.data_parallel_size,
    "micro_batches": parsed.global_batch_size // parsed.micro_batch_size // parsed.data_parallel_size,
    "chunks": parsed.virtual_pipeline_model_parallel_size or 1,
    "layout": layout and [[[kind.name for kind in chunk] for chunk in stage] for stage in layout.layout],
    "recompute": [config.recompute_granularity, config.recompute_method, config.recompute_num_layers],
    "sequence_parallel": bool(config.sequence_parallel),
    "experts": config.num_moe_experts,
}
print("understood " + json.dumps(understood))
