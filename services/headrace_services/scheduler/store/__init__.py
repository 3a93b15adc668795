"""The store: Postgres, and nothing else.

`tables` defines the tables and the rules that a single row can break, `migrations` creates them, and `rows` turns
rows into records. `load` answers a cycle's questions and `apply` writes its plan. Each of the other modules holds
the statements for one subject. Nothing here makes decisions.
"""
