"""What a search on a small copy varies, sorted by what is known about it (`headrace_torch.what_transfers`)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace_torch.hydro.errors import TransferError
from headrace_torch.what_transfers import WHY, Verdict, verdict_on

Value = float | int | str | bool | tuple[float, ...] | None
Hyperparameters = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What a search varies, sorted by verdict.

    `transferable` can be tuned on the surrogate; `rest` has the others with their verdicts, and must be tuned on
    the target.
    """

    transferable: tuple[str, ...]
    rest: Mapping[str, Verdict]

    def __str__(self) -> str:
        lines = [f"tune on the surrogate: {', '.join(self.transferable) or 'nothing'}"]
        lines += [f"tune on the target: {name} ({WHY[verdict]})" for name, verdict in self.rest.items()]
        return "\n".join(lines)


def search_space(names: Iterable[str]) -> SearchSpace:
    """Sorts the names of hyperparameters."""
    verdicts = {name: verdict_on(name) for name in names}
    return SearchSpace(
        transferable=tuple(name for name, verdict in verdicts.items() if verdict is Verdict.TRANSFERS),
        rest={name: verdict for name, verdict in verdicts.items() if verdict is not Verdict.TRANSFERS},
    )


def varied(members: Sequence[Hyperparameters]) -> tuple[str, ...]:
    """Names whose values differ between members; a name that some members lack also counts as differing."""
    names = dict.fromkeys(name for member in members for name in member)
    absent = object()
    return tuple(name for name in names if len({repr(member.get(name, absent)) for member in members}) > 1)


def check_transferable(members: Sequence[Hyperparameters], *, accept: Collection[str] = ()) -> SearchSpace:
    """Rejects a search on the surrogate for what does not carry over. It costs nothing: call it before tuning.

    Args:
        members: the configurations that the search would try; only what varies counts.
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
            f"or pass accept=[{name!r}] to try it anyway"
        )
    return space
