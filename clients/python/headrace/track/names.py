"""Names that a tracker forbids, mapped to names that it allows. Pure functions.

Each forbidden character becomes `_uHEX_`, with its code point: `loss@val` is `loss_u40_val`. A name that already
contains such a text has its underscore mapped too, so every name has a mapped name of its own, and `original` maps
it back. Names that a tracker allows stay as they are.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Final

_MAPPED: Final = re.compile(r"_u([0-9a-f]+)_")
_MLFLOW: Final = re.compile(r"[\w.\- :/]")
_MLFLOW_LONGEST: Final = 250
_DIGEST_LENGTH: Final = 16

Mapping = Callable[[str], str]


def for_mlflow(name: str) -> str:
    """A name that MLflow allows: letters, digits, `_.-: /`, and the form of a relative path without dots.

    One longer than 250 characters is cut, and ends in a digest of the whole.
    """
    forbidden = {place for place, char in enumerate(name) if not _MLFLOW.match(char)}
    begins = 0
    for part in name.split("/"):
        ends = begins + len(part)
        if part in (".", ".."):
            forbidden.update(range(begins, ends))
        if not part:  # a slash at the start, at the end, or after another one
            forbidden.add(ends if ends < len(name) else begins - 1)
        begins = ends + 1
    mapped = _mapped(name, forbidden - {-1})
    if len(mapped) <= _MLFLOW_LONGEST:
        return mapped
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{mapped[: _MLFLOW_LONGEST - 1 - _DIGEST_LENGTH].rstrip('/.')}_{digest}"


def for_wandb(name: str) -> str:
    """A name that W&B leaves to users: its own begin with an underscore, and ours with `headrace/`."""
    return _mapped(name, {0} if name.startswith(("_", "headrace/")) else set())


def for_folder(name: str) -> str:
    """A name for a folder."""
    forbidden = {place for place, char in enumerate(name) if char in "/\\:\0"}
    return _mapped(name, forbidden | ({0} if name.startswith(".") else set()))


def original(mapped: str) -> str:
    """The name that was mapped, unless it was cut."""
    return _MAPPED.sub(lambda found: chr(int(found[1], 16)), mapped)


def _mapped(name: str, forbidden: set[int]) -> str:
    looks_mapped = {
        found.start()
        for found in re.finditer(r"_(?=u([0-9a-f]+))", name)
        if name[found.end(1) : found.end(1) + 1] == "_" or found.end(1) in forbidden
    }
    places = forbidden | looks_mapped
    return "".join(f"_u{ord(char):x}_" if place in places else char for place, char in enumerate(name))
