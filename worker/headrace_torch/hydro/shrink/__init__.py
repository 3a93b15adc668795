"""Makes a user's model smaller, and tracks how that changes its training."""

from headrace_torch.hydro.shrink.entry import shrink
from headrace_torch.hydro.shrink.surrogate import Surrogate

__all__ = ["Surrogate", "shrink"]
