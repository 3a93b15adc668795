"""How one parameter grows with width: which of its sizes grow, and its kind.

Shapes of the base model (the user's, at its full size) are compared with those at another width: a size that
differs is a width, a size that does not is a fixed one, such as a number of classes, a vocabulary or a kernel.
Nothing is guessed from names.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace_torch.hydro.errors import ParametrizationError

Shape = tuple[int, ...]


class Kind(StrEnum):
    """What a parameter is, by the sizes that grow with width (Yang et al. 2022, "Tensor Programs V", table 8)."""

    INPUT = "input"  # a matrix or kernel from fixed sizes to a width; also a depthwise kernel
    HIDDEN = "hidden"  # a matrix or kernel from a width to a width
    OUTPUT = "output"  # a matrix or kernel from a width to fixed sizes
    VECTOR = "vector"  # a bias or a norm's gain
    EMBEDDING = "embedding"  # a table of rows, looked up or added: words, positions, a class token
    LENGTH = "length"  # rows from a width to fixed sizes, under weight norm
    FIXED = "fixed"  # no size grows


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A parameter's kind, and the ratios of its sizes to those of the base model.

    `fan_in` and `fan_out` are ratios of sizes, here to base; 1 for a side that does not grow. A vector or a table
    has one side only: `fan_out`.
    """

    kind: Kind
    shape: Shape
    base_shape: Shape
    fan_in: float
    fan_out: float

    @property
    def width(self) -> float:
        """The ratio for a rule with one width: that of the fan-in if it grows, else that of the fan-out."""
        return self.fan_in if self.kind in (Kind.HIDDEN, Kind.OUTPUT, Kind.LENGTH) else self.fan_out


def growth_of(name: str, shape: Shape, base_shape: Shape, other_shape: Shape, *, table: bool) -> Growth:
    """Classifies a parameter.

    Args:
        name: for the message, if there is no rule.
        shape: the sizes of the parameter here.
        base_shape: its sizes in the base model.
        other_shape: its sizes at a width other than the base's: distinguishes widths from fixed sizes.
        table: its rows are looked up or added, not multiplied: an `nn.Embedding`, or an `nn.Parameter` of the user's.

    Raises:
        ParametrizationError: more than two sizes grow, or the number of sizes itself depends on the width.
    """
    if not len(shape) == len(base_shape) == len(other_shape):
        raise ParametrizationError(
            f"{name}: has {len(shape)} sizes here and {len(base_shape)} in the base model; a width must not change that"
        )
    grows = [
        index for index, (one, two) in enumerate(zip(base_shape, other_shape, strict=True)) if one != two
    ]
    ratios = [shape[index] / base_shape[index] for index in grows]
    match grows:
        case []:
            kind, fan_in, fan_out = Kind.FIXED, 1.0, 1.0
        case [_] if len(shape) == 1:
            kind, fan_in, fan_out = Kind.VECTOR, 1.0, ratios[0]
        case [_] if table:
            kind, fan_in, fan_out = Kind.EMBEDDING, 1.0, ratios[0]
        case [0]:
            kind, fan_in, fan_out = Kind.INPUT, 1.0, ratios[0]
        case [_]:
            kind, fan_in, fan_out = Kind.OUTPUT, ratios[0], 1.0
        case [_, _]:
            kind, fan_in, fan_out = Kind.HIDDEN, ratios[1], ratios[0]
        case _:
            raise ParametrizationError(
                f"{name}: {len(grows)} of its sizes {base_shape} grow with the width, and rules exist for two at most; "
                "split the parameter, or keep one of the sizes fixed in the factory"
            )
    return Growth(kind=kind, shape=shape, base_shape=base_shape, fan_in=fan_in, fan_out=fan_out)


def length_of(length: Growth, rows: Growth, other_shape: Shape) -> Growth:
    """The kind of a weight norm's lengths, from that of its rows: there is a rule for rows that grow in length but
    not in number.

    Args:
        length: the lengths, classified by their own sizes.
        rows: the rows, classified likewise.
        other_shape: the rows' sizes at another width.
    """
    if rows.base_shape[0] != other_shape[0] or rows.base_shape == other_shape:
        return length
    ratio = math.prod(rows.shape[1:]) / math.prod(rows.base_shape[1:])
    return replace(length, kind=Kind.LENGTH, fan_in=ratio)


def is_scale_one(growth: Growth) -> bool:
    """Whether the parameter has its base sizes."""
    return math.isclose(growth.fan_in, 1.0) and math.isclose(growth.fan_out, 1.0)
