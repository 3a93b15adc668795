"""Filters of lists, as people write them: `state:running lr>1e-3 val_loss<0.1`."""

from typing import Final

from headrace.query.terms import Term, parse_filter
from headrace.query.values import as_number, moment, number

LEADING: Final = "leading"
"""The order of trials with the best score first, which needs no knowledge of a study's goal."""

__all__ = ["LEADING", "Term", "as_number", "moment", "number", "parse_filter"]
