"""The store: Postgres, and nothing else.

`tables` says what there is and which rules a row can break; `migrations` creates it; `rows` turns rows into records.
`load` answers what a cycle asks, `apply` writes its plan; the other modules hold the statements of one subject each.
Nothing here decides anything.
"""
