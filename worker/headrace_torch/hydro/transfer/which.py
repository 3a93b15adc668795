"""Which hyperparameters a small copy can be asked about, said before anything is spent.

What steers optimisation carries over: it acts on the training dynamics, which the parametrization keeps. What
regularises does not: its best value depends on how much model there is for how much data, and that is what
shrinking changes (Yang et al. 2022, table 1; Hu et al. 2023, section 5.4).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace_torch.hydro.errors import TransferError

Value = float | int | str | bool | tuple[float, ...] | None
Hyperparameters = Mapping[str, Value]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What a search varies, sorted by verdict.

    `transferable` can be tuned on the surrogate; `rest` has the others with their verdicts, to be tuned on the
    target.
    """

    transferable: tuple[str, ...]
    rest: Mapping[str, Verdict]

    def __str__(self) -> str:
        lines = [f"tune on the surrogate: {', '.join(self.transferable) or 'nothing'}"]
        lines += [f"tune on the target: {name} ({WHY[verdict]})" for name, verdict in self.rest.items()]
        return "\n".join(lines)


def verdict_on(name: str) -> Verdict:
    """What is known about a hyperparameter, by its usual names; case and dashes do not matter."""
    return VERDICTS.get(name.lower().replace("-", "_"), Verdict.UNKNOWN)


def search_space(names: Iterable[str]) -> SearchSpace:
    """Sorts the names of hyperparameters."""
    verdicts = {name: verdict_on(name) for name in names}
    return SearchSpace(
        transferable=tuple(name for name, verdict in verdicts.items() if verdict is Verdict.TRANSFERS),
        rest={name: verdict for name, verdict in verdicts.items() if verdict is not Verdict.TRANSFERS},
    )


def varied(members: Sequence[Hyperparameters]) -> tuple[str, ...]:
    """Names whose values differ between members; one that some members lack differs too."""
    names = dict.fromkeys(name for member in members for name in member)
    absent = object()
    return tuple(name for name in names if len({repr(member.get(name, absent)) for member in members}) > 1)


def check_transferable(members: Sequence[Hyperparameters], *, accept: Collection[str] = ()) -> SearchSpace:
    """Refuses a search on the surrogate for what does not carry over. Free of cost: call it before tuning.

    Args:
        members: what the search would try; only what varies counts.
        accept: names that the user takes responsibility for.

    Raises:
        TransferError: a hyperparameter does not transfer, or is unknown; names it.
    """
    if isinstance(accept, str):
        raise TransferError(f"accept must be a list of names, not the string {accept!r}")
    space = search_space(name for name in varied(members) if name not in accept)
    for name, verdict in space.rest.items():
        raise TransferError(
            f"{name} does not transfer: {WHY[verdict]}. Fix it while tuning the surrogate and tune it on the target, "
            f"or pass accept=[{name!r}] to try all the same"
        )
    return space
