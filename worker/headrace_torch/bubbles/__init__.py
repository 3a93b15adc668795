"""Bubbles: trials in the idle windows of a DeepSpeed pipeline. `headrace bubble-agent` permits what these two do.

    attach    in the training job's script, after `deepspeed.initialize`: the ranks write when they wait
    join      in a trial's script: it works while a rank waits, and pauses when the rank continues
    Gate      what `join` returns; `watch` puts its points into a model and its optimizer, or into a fused group

The training job is never slowed for a trial, and nothing of ours can block it: the hook writes words in shared
memory, reads a few, and waits for nothing. If something in it fails, it detaches and logs that once.
"""

from headrace_torch.bubbles.attach import Attachment, attach
from headrace_torch.bubbles.gate import Gate, GateError
from headrace_torch.bubbles.watch import join, watch

__all__ = ["Attachment", "Gate", "GateError", "attach", "join", "watch"]
