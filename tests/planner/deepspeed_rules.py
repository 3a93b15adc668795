"""Gives configurations to DeepSpeed's own parser, and says what it understood.

    python deepspeed_rules.py FOLDER...

Each FOLDER is what `headrace plan --target deepspeed --out` wrote. Starts no job: the parser is told a rank and the
data ranks of the emitted module, as a pipeline's grid would tell it.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["DS_ACCELERATOR"] = "cpu"

from deepspeed.runtime import config
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

config.dist.get_rank = lambda: 0

for folder in map(Path, sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(folder.name, folder / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    data = emitted.DATA
    grid = SimpleNamespace(get_data_parallel_world_size=lambda data=data: data)
    topology = PipeModelDataParallelTopology(
        num_pp=len(emitted.BOUNDARIES) - 1, num_mp=emitted.TENSOR, num_dp=data
    )
    parsed = config.DeepSpeedConfig(str(folder / "deepspeed.json"), mpu=grid)
    understood = {
        "world": topology.world_size(),
        "batch": parsed.train_batch_size,
        "micro_batch": parsed.train_micro_batch_size_per_gpu,
        "micro_batches": parsed.gradient_accumulation_steps,
        "zero": parsed.zero_optimization_stage,
        "bf16": parsed.bfloat16_config.enabled,
        # If nothing is set, the engine takes the model's own (`DeepSpeedEngine.get_data_types`).
        "gradients": parsed.grad_accum_dtype or "bf16",
    }
    print("understood " + json.dumps(understood))
