"""`transfer`: everything in one call, if the search is over and the target trains in a function."""

from collections.abc import Callable, Collection, Sequence

from headrace_torch.agreement import Score
from headrace_torch.hydro.gate import Gate, ask
from headrace_torch.hydro.transfer.top_k import TopK, TransferReport, Trial
from headrace_torch.hydro.transfer.which import Hyperparameters, check_transferable


def transfer(
    trials: Sequence[Trial],
    train_target: Callable[[Hyperparameters], Score],
    *,
    k: int = 2,
    maximize: bool = False,
    accept: Collection[str] = (),
    direct: Sequence[Score] = (),
    gate: Gate = None,
) -> TransferReport:
    """Trains the target with the surrogate's k best configurations, one after another.

    Values are passed as they are: the surrogate's multipliers were made so that rates are in terms of the target.

    Args:
        trials: the trials of the search on the surrogate.
        train_target: returns the score, or None if training failed.
        k: how many to validate; at least 2.
        maximize: whether a greater score is better.
        accept: hyperparameters that do not transfer but should be carried over anyway.
        direct: scores of tuning the target directly, if known: the regret is relative to the best of them.
        gate: the report of the surrogate's coordinate check; None warns, False continues without.

    Raises:
        CoordinateCheckError: the coordinate check failed.
        TransferError: a hyperparameter does not transfer (before anything is trained), or nothing has a score.
    """
    ask(gate, what="transfer")
    check_transferable([one.hyperparameters for one in trials], accept=accept)
    decisions = TopK(k=k, maximize=maximize)
    for number, trial in enumerate(trials):
        decisions.report(number, trial)
    decisions.finish()
    while not decisions.done:
        for number in decisions.start(idle=1):
            decisions.validated(number, train_target(trials[number].hyperparameters))
    return decisions.outcome(direct)
