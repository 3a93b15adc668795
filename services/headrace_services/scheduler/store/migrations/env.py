"""Alembic's entry: runs on the connection, and in the transaction, that `store.migrate` hands over."""

from alembic import context

from headrace_services.scheduler.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
context.run_migrations()
