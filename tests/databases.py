"""Databases that tests use one after another: to empty one costs a third of what it costs to make and drop one.

A database goes back as the migrations made it: other sessions are ended, rows deleted, sequences restarted, and the
rows that the migrations inserted are there again. One whose schema a test has changed is dropped; an event trigger
keeps watch.
"""

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

MOST_USES = 100
"""Deleted rows stay in a table's file, and cost the tests that follow a little."""

PREPARE = """
CREATE SCHEMA kept;
CREATE TABLE kept.changes ();
CREATE FUNCTION kept.changed() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS
    'BEGIN INSERT INTO kept.changes DEFAULT VALUES; END';
CREATE VIEW kept.tables AS
    SELECT relname AS name FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0;
CREATE TABLE kept.filled AS SELECT name FROM kept.tables;
CREATE TABLE kept.sequences AS SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public';
DO $$ DECLARE one text; BEGIN
    FOR one IN SELECT name FROM kept.filled LOOP
        EXECUTE format('CREATE TABLE kept.%1$I AS TABLE public.%1$I', one);
    END LOOP;
END $$;
CREATE FUNCTION kept.emptied() RETURNS boolean LANGUAGE plpgsql SET session_replication_role = replica AS $$
DECLARE one text;
BEGIN
    IF EXISTS (SELECT FROM kept.changes) THEN
        RETURN false;
    END IF;
    FOR one IN SELECT name FROM kept.tables LOOP
        EXECUTE format('DELETE FROM public.%I', one);
    END LOOP;
    FOR one IN SELECT name FROM kept.filled LOOP
        EXECUTE format('INSERT INTO public.%1$I OVERRIDING SYSTEM VALUE TABLE kept.%1$I', one);
    END LOOP;
    PERFORM setval(format('public.%I', sequencename)::regclass, coalesce(kept.last_value, now.start_value),
                   kept.last_value IS NOT NULL)
        FROM pg_sequences now JOIN kept.sequences kept USING (sequencename)
        WHERE now.schemaname = 'public' AND now.last_value IS DISTINCT FROM kept.last_value;
    RETURN true;
END $$;
CREATE EVENT TRIGGER kept_changed ON ddl_command_end EXECUTE FUNCTION kept.changed();
CREATE EVENT TRIGGER kept_dropped ON sql_drop EXECUTE FUNCTION kept.changed();
"""
END_SESSIONS = """
SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class Databases:
    """Databases made from a template as they are needed, and used again."""

    def __init__(self, url: str, template: str) -> None:
        self._url = url
        self._template = template
        self._spare: list[str] = []
        self._uses = Counter[str]()
        with psycopg.connect(with_database(url, template), autocommit=True) as conn:
            conn.execute(PREPARE)

    @contextmanager
    def one(self) -> Iterator[str]:
        """The URL of a database as the migrations leave it; nobody else has it until the block ends."""
        name = self._spare.pop() if self._spare else self._made()
        yield with_database(self._url, name)
        self._uses[name] += 1
        if self._uses[name] < MOST_USES and self._emptied(name):
            self._spare.append(name)
        else:
            with psycopg.connect(self._url, autocommit=True) as conn:
                conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _made(self) -> str:
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self._url, autocommit=True) as conn:
            conn.execute(f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY FILE_COPY")
        return name

    def _emptied(self, name: str) -> bool:
        try:
            with psycopg.connect(with_database(self._url, name), autocommit=True) as conn:
                conn.execute(END_SESSIONS)
                found = conn.execute("SELECT kept.emptied()").fetchone()
        except psycopg.Error:  # the test has renamed it, or left it without what empties it
            return False
        return found == (True,)


def with_database(url: str, name: str) -> str:
    """Return `url` with another database."""
    head, _, query = url.partition("?")
    base = head.rpartition("/")[0]
    return f"{base}/{name}?{query}" if query else f"{base}/{name}"
