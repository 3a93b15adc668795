"""Filters and orders of lists, as conditions over rows."""
