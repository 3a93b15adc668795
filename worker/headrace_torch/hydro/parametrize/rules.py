"""The rule table: from a parameter's kind, an optimizer and ratios of widths to multipliers.

Maximal update parametrization relative to a base model (Yang et al. 2022, "Tensor Programs V", table 8, in the form
with a forward multiplier at the output that the `mup` package uses), with the depth rules of CompleteP at α = 1 (Dey
et al. 2025, table 1). Each entry is a product of powers of three ratios, here to base: of the fan-in, of the fan-out,
and of the depth; the last counts only for parameters inside residual blocks.

Why, in one paragraph: a coordinate of a hidden activation should move by the same amount at any width. Adam moves
each entry of a matrix by the rate, and the entries' moves add up coherently over the fan-in: so the rate falls
with the fan-in. SGD's moves are gradients, which shrink as 1/fan-out, and add up over the fan-in: so its rate for
hidden matrices is that of the base. Weight decay keeps rate × decay. Adam's ε is compared with gradients, so it
shrinks as they do.
"""

from dataclasses import dataclass
from typing import Final

from headrace_torch.hydro.errors import ParametrizationError
from headrace_torch.hydro.parametrize.kinds import Growth, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """fan_in^a · fan_out^b · depth^c, of ratios to the base model."""

    fan_in: float = 0
    fan_out: float = 0
    depth: float = 0

    def of(self, growth: Growth, *, depth_ratio: float) -> float:
        """The value; exactly 1.0 if all ratios are 1."""
        return float(
            growth.fan_in**self.fan_in * growth.fan_out**self.fan_out * depth_ratio**self.depth,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The multipliers of an optimizer's settings for a parameter."""

    lr: Power = Power()
    weight_decay: Power = Power()
    eps: Power = Power()


_SGD_WIDE: Final = Rule(lr=Power(fan_out=1, depth=1), weight_decay=Power(fan_out=-1, depth=-1))
_ADAM_WIDE: Final = Rule(eps=Power(fan_out=-1, depth=-1))
_SGD: Final = {
    Kind.INPUT: _SGD_WIDE,
    Kind.EMBEDDING: _SGD_WIDE,
    Kind.VECTOR: _SGD_WIDE,
    Kind.HIDDEN: Rule(
        lr=Power(fan_in=-1, fan_out=1, depth=1), weight_decay=Power(fan_in=1, fan_out=-1, depth=-1)
    ),
    Kind.OUTPUT: Rule(lr=Power(fan_in=1, depth=1), weight_decay=Power(fan_in=-1, depth=-1)),
    Kind.LENGTH: Rule(lr=Power(fan_in=1, depth=1), weight_decay=Power(fan_in=-1, depth=-1)),
    Kind.FIXED: Rule(lr=Power(depth=1), weight_decay=Power(depth=-1)),
}
_ADAM: Final = {
    Kind.INPUT: _ADAM_WIDE,
    Kind.EMBEDDING: _ADAM_WIDE,
    Kind.VECTOR: _ADAM_WIDE,
    Kind.HIDDEN: Rule(lr=Power(fan_in=-1), weight_decay=Power(fan_in=1), eps=Power(fan_out=-1, depth=-1)),
    Kind.OUTPUT: Rule(eps=Power(fan_in=-1, depth=-1)),
    # A row of n entries of constant size has a length that grows as the root of n, and a gradient that shrinks
    # likewise.
    Kind.LENGTH: Rule(
        lr=Power(fan_in=0.5), weight_decay=Power(fan_in=-0.5), eps=Power(fan_in=-0.5, depth=-1)
    ),
    Kind.FIXED: Rule(eps=Power(depth=-1)),
}
# Adam's L2 penalty is scaled like AdamW's decay, as in `mup`.
RULES: Final = {"sgd": _SGD, "adam": _ADAM, "adamw": _ADAM}

# The standard deviation of the initial values, relative to the base model's.
INITIAL_STD: Final = {
    Kind.INPUT: Power(),
    Kind.EMBEDDING: Power(),
    Kind.VECTOR: Power(),
    Kind.HIDDEN: Power(fan_in=-0.5),
    Kind.OUTPUT: Power(),
    Kind.LENGTH: Power(fan_in=0.5),
    Kind.FIXED: Power(),
}

# Multipliers in the forward pass: of the input of a readout, of attention's logits (a ratio of head widths, on top
# of 1/sqrt(head width)), and of what a residual block adds.
OUTPUT_POWER: Final = -1.0
ATTENTION_POWER: Final = -0.5
RESIDUAL_POWER: Final = -1.0


def rule_for(kind: Kind, optimizer: str) -> Rule:
    """Looks the rule up.

    Raises:
        ParametrizationError: the optimizer is not in the table.
    """
    try:
        return RULES[optimizer][kind]
    except KeyError:
        known = ", ".join(RULES)
        raise ParametrizationError(
            f"optimizer {optimizer!r} has no rules; there are rules for {known}"
        ) from None
