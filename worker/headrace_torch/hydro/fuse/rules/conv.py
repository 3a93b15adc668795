"""Convolutions of all members as one grouped convolution.

Member n's channels are the groups n·G … n·G+G−1, so the member dim is in front of the channels, (B, N, C, …), and
stays there from layer to layer: no copy in between. With several threads, `conv_gradient` keeps the bits
reproducible.
"""

from typing import Any

from torch import Tensor

from headrace_torch.hydro.fuse.lanes import Lanes, is_stacked
from headrace_torch.hydro.fuse.rules.conv_gradient import CONVOLUTIONS, applies, convolve

IntOrInts = int | tuple[int, ...]


def _grouped(
    spatial: int,
    lanes: Lanes,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrInts,
    padding: IntOrInts | str,
    dilation: IntOrInts,
    groups: int,
) -> Any:
    if not is_stacked(weight) or x.dim() != spatial + 2:
        return NotImplemented
    kernels = lanes.at(weight, 0).flatten(0, 1)
    biases = None if bias is None else lanes.at(bias, 0).reshape(-1)
    if groups == 1 and not is_stacked(
        x
    ):  # images that all members share: one dense convolution to N·O channels
        images, all_groups = x, 1
    else:
        images, all_groups = lanes.at(x, 1).flatten(1, 2), groups * lanes.size
    if applies(kernels):
        out = convolve(images, kernels, biases, stride, padding, dilation, all_groups, lanes.size)
    else:
        convolution: Any = CONVOLUTIONS[spatial - 1]
        out = convolution(images, kernels, biases, stride, padding, dilation, all_groups)
    return lanes.join(out.view(out.shape[0], lanes.size, -1, *out.shape[2:]), 1)


def conv1d(
    lanes: Lanes,
    input: Tensor,  # noqa: A002  torch's name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
) -> Any:
    """Sequences (B, C, L)."""
    return _grouped(1, lanes, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    lanes: Lanes,
    input: Tensor,  # noqa: A002  torch's name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
) -> Any:
    """Images (B, C, H, W), including depthwise convolutions: their groups multiply."""
    return _grouped(2, lanes, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    lanes: Lanes,
    input: Tensor,  # noqa: A002  torch's name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
) -> Any:
    """Volumes (B, C, D, H, W)."""
    return _grouped(3, lanes, input, weight, bias, stride, padding, dilation, groups)
