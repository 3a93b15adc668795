"""The trial API: three lines that make a training script a trial.

```python
from headrace import trial

def train(t: trial.Trial) -> None:
    model, optimizer, scheduler = build(t.params)
    t.track(model=model, optimizer=optimizer, lr_scheduler=scheduler)   # loads the checkpoint when resuming
    for epoch in t.steps():                                             # continues at the right step
        ...
        t.report(val_loss=loss)                                         # saves at a rung, may end the loop

if __name__ == "__main__":
    trial.main(train, defaults={"lr": 1e-3}, steps=27)                  # `python train.py --lr 0.1` works too
```

The life of one process: *attach* (which trial is this, where does it continue), build, `track` (restore every
object), `steps` (restore the random generators last, so that seeding in between does no harm), train, `report`.
Before the milestone a report is only passed on. At the milestone everything that the next step reads is saved in
one folder, which is written under a temporary name, fsynced and renamed. Only then is the folder's name
reported, and the call waits for the decision: continue or leave. A trial that leaves loses nothing: another
process, on another machine, continues from that folder, bit for bit.

There are three runtimes behind the same `Trial`: the worker daemon (`cluster`), a run by hand (`local`) and
`headrace check`. PyTorch and NumPy are used only if the script itself has imported them. Without PyTorch,
checkpoints are JSON.
"""

from typing import Any

from headrace.trial import elsewhere
from headrace.trial.batches import ResumableBatches
from headrace.trial.bundle import Bundle
from headrace.trial.bundle_member import Member
from headrace.trial.reading import Saved, read_checkpoint
from headrace.trial.runtime import Ended, Infeasible, TrialRuntimeError
from headrace.trial.script import current, main
from headrace.trial.session import Trial
from headrace.trial.tracking import shared

__all__ = [
    "Bundle",
    "Ended",
    "Infeasible",
    "Member",
    "ResumableBatches",
    "Saved",
    "Trial",
    "TrialRuntimeError",
    "current",
    "main",
    "read_checkpoint",
    "shared",
]


def __getattr__(name: str) -> Any:
    raise AttributeError(elsewhere.no_name_of_module(name, Trial), name=name)
