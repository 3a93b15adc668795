"""Filters of lists, as people write them: `state:running lr>1e-3 val_loss<0.1`."""

from headrace.query.terms import Term, parse_filter
from headrace.query.values import as_number, moment, number

__all__ = ["Term", "as_number", "moment", "number", "parse_filter"]
