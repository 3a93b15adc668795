"""New values for a narrower parameter, distributed like the user's: constant, uniform or normal."""

import torch
from torch import Tensor

# The kurtosis of a uniform distribution is 1.8 and of a normal one 3.
BETWEEN_UNIFORM_AND_NORMAL = 2.4


def is_constant(values: Tensor) -> bool:
    """Whether all entries are equal, as in a new norm's gain."""
    flat = values.detach().flatten()
    return flat.numel() == 0 or bool((flat == flat[0]).all())


def sample_like(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Draws from the distribution that the values look like; a table's rows of zeros (padding) stay zero.

    It uses the global generator. The result differs from the values even if the shape is the same.
    """
    values = values.detach()
    if is_constant(values):
        fill = values.flatten()[0].item() if values.numel() else 0.0
        return torch.full(shape, fill, dtype=values.dtype)
    mean, std = values.double().mean(), values.double().std(correction=0)
    kurtosis = ((values.double() - mean) / std).pow(4).mean()
    if kurtosis < BETWEEN_UNIFORM_AND_NORMAL:
        drawn = (torch.rand(shape, dtype=torch.float64) * 2 - 1) * 3**0.5
    else:
        drawn = torch.randn(shape, dtype=torch.float64)
    new = (drawn * std.cpu() + mean.cpu()).to(values.dtype)
    if len(shape) == 2 and shape[0] == values.shape[0]:
        new[(values == 0).all(dim=1).cpu()] = 0
    return new
