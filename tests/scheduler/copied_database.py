"""Copies a database's rows into another database by a dump and a load: one snapshot of all tables."""

from typing import Any

import psycopg

from headrace_services.scheduler.store.tables import metadata


def copy_rows(source: str, target: str) -> None:
    """Fill a freshly migrated database with the rows of another one, as of one instant."""
    with (
        psycopg.connect(source, options="-c default_transaction_isolation=repeatable\\ read") as read,
        psycopg.connect(target) as write,
    ):
        write.execute("SET session_replication_role = replica")
        for table in metadata.sorted_tables:
            columns = ", ".join(f'"{column.name}"' for column in table.columns if column.computed is None)
            write.execute(f'DELETE FROM "{table.name}"'.encode())
            with (
                read.cursor().copy(f'COPY "{table.name}" ({columns}) TO STDOUT'.encode()) as rows,
                write.cursor().copy(f'COPY "{table.name}" ({columns}) FROM STDIN'.encode()) as into,
            ):
                for row in rows:
                    into.write(row)
            for column in table.columns:
                if column.identity is not None:
                    _set_sequence(write, table.name, column.name)


def _set_sequence(conn: psycopg.Connection[Any], table: str, column: str) -> None:
    conn.execute(
        f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'),"
        f' (SELECT coalesce(max({column}), 0) + 1 FROM "{table}"))'.encode()
    )
