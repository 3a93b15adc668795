"""Makes a user's model smaller, and knows what that does to its training."""

from headrace_torch.hydro.shrink.entry import shrink
from headrace_torch.hydro.shrink.surrogate import Surrogate

__all__ = ["Surrogate", "shrink"]
