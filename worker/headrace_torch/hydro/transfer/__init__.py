"""Carries the surrogate's best configurations over to the target, with the regret."""

from headrace_torch.agreement import Agreement
from headrace_torch.hydro.transfer.agreement import agreement
from headrace_torch.hydro.transfer.run import transfer
from headrace_torch.hydro.transfer.scale import ScaleReport, choose_scale
from headrace_torch.hydro.transfer.top_k import TopK, TransferReport, Trial, Validated
from headrace_torch.hydro.transfer.which import SearchSpace, check_transferable, search_space
from headrace_torch.what_transfers import Verdict

__all__ = [
    "Agreement",
    "ScaleReport",
    "SearchSpace",
    "TopK",
    "TransferReport",
    "Trial",
    "Validated",
    "Verdict",
    "agreement",
    "check_transferable",
    "choose_scale",
    "search_space",
    "transfer",
]
