"""The store: Postgres, and nothing else.

`tables` says what there is and which rules a row can break; `migrations` creates it; `rows` turns rows into
records; `step_rows` loads and writes what a step needs; the other modules hold the statements of one subject
each. Nothing here decides anything.
"""
