"""Whether a surrogate's ranking agrees with the target's (`headrace_torch.agreement`), with this library's errors."""

from collections.abc import Sequence

from headrace_torch import agreement as pure
from headrace_torch.agreement import Agreement, Score
from headrace_torch.hydro.errors import TransferError


def agreement(
    surrogate: Sequence[Score],
    target: Sequence[Score],
    *,
    maximize: bool = False,
    ks: Sequence[int] = (1, 2, pure.TOP),
) -> Agreement:
    """Compares scores of the same trials.

    Args:
        surrogate: a score per trial on the surrogate.
        target: the same trials' scores on the target.
        maximize: whether more is better.
        ks: the k for which to compute the regret; a k beyond the number of trials means all of them.

    Raises:
        TransferError: fewer than two trials, unequal numbers, or no score on the target.
    """
    try:
        return pure.agreement(surrogate, target, maximize=maximize, ks=ks)
    except ValueError as error:
        raise TransferError(str(error)) from None
