"""Which hyperparameters can be tuned on a small copy of a model.

The scheduler, which has no torch, reads this too; so only the standard library is used here.

Hyperparameters of the optimisation carry over: they act on the training dynamics, which the parametrization
preserves. Regularisation does not: its best value depends on the size of the model relative to the data, which is
what shrinking changes (Yang et al. 2022, table 1; Hu et al. 2023, section 5.4).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Verdict(StrEnum):
    """Whether the best value on the surrogate is the best on the target."""

    TRANSFERS = "transfers"
    REGULARIZES = "regularizes"
    SCALES = "scales"
    UNKNOWN = "unknown"


WHY: Final = {
    Verdict.TRANSFERS: "acts on the dynamics of training, which the parametrization keeps",
    Verdict.REGULARIZES: "its best value depends on the size of the model and of the data, which shrinking changes",
    Verdict.SCALES: "its best value grows with the number of parameters, and no rule here rescales it",
    Verdict.UNKNOWN: "nothing is known about it",
}
_DYNAMICS: Final = (
    "lr learning_rate max_lr min_lr base_lr peak_lr final_lr batch_size batch momentum nesterov dampening beta1 beta2 "
    "betas eps optimizer schedule scheduler lr_schedule warmup warmup_steps warmup_fraction decay_steps "
    "gamma step_size milestones pct_start div_factor final_div_factor init_scale init_std output_multiplier "
    "attention_multiplier"
)
_REGULARIZERS: Final = (
    "dropout attention_dropout embedding_dropout drop_path stochastic_depth weight_decay wd l2 l1 "
    "label_smoothing mixup cutmix augmentation early_stopping_patience epochs max_epochs"
)
_SIZE_DEPENDENT: Final = "grad_clip gradient_clip clip clip_norm max_grad_norm clip_value grad_clip_norm"
VERDICTS: Final[Mapping[str, Verdict]] = {
    **dict.fromkeys(_DYNAMICS.split(), Verdict.TRANSFERS),
    **dict.fromkeys(_REGULARIZERS.split(), Verdict.REGULARIZES),
    **dict.fromkeys(_SIZE_DEPENDENT.split(), Verdict.SCALES),
}


def verdict_on(name: str) -> Verdict:
    """What is known about a hyperparameter, under its usual names; case and dashes do not matter."""
    return VERDICTS.get(name.lower().replace("-", "_"), Verdict.UNKNOWN)
