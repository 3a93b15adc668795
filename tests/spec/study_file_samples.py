"""Study files without any error."""

SOUND = """\
name: digits
objective: {metric: val_loss, goal: minimize}
trial:
  callable: train:train
  grace_s: 5
  report_timeout_s: 0.5
  env: {THREADS: 2, DEBUG: true, NAME: x}
space:
  optimizer: {type: categorical, values: [sgd, adam, on, 1e-4]}
  lr: {type: float, low: 1e-5, high: 1E-1, log: true}
  momentum: {type: float, low: 0, high: .99, when: {optimizer: [sgd]}}
  depth: {type: int, low: 1, high: 9, step: 2, when: {optimizer: adam}}
policy: {kind: asha, eta: 3, rungs: [1, 3, 9, 27]}
trials: 27
parallel: 4
retries: 2
early_failures: 5
seed: 5
baseline: {optimizer: sgd, lr: 1e-3, momentum: 0.9}
enqueue:
  - {optimizer: adam, lr: 0.01, depth: 3}
resources: {gpus: 1}
"""


MINIMAL = """\
name: small
objective: {metric: loss, goal: maximize}
space: {x: {type: float, low: 0, high: 1}}
trials: 3
steps: 9
"""


def minimal(old: str = "", new: str = "", *, more: str = "") -> str:
    """The minimal file with a part of it replaced, or with further lines at the end."""
    assert old in MINIMAL
    return MINIMAL.replace(old, new, 1) + more


def added(line: str) -> str:
    return minimal(more=f"{line}\n")
