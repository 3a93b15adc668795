"""Brings a database's schema up to date. Replicas may start at once: an advisory lock lets one migrate."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

MIGRATION_LOCK = 0x4865_6164_7261_6365
"""The advisory lock's key: "Headrace" in ASCII."""


def alembic_config() -> Config:
    """Return the configuration that points at the migrations beside this file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


async def migrate(engine: AsyncEngine) -> None:
    """Apply every migration that the database lacks, under the advisory lock. Safe to repeat."""
    async with engine.begin() as conn:
        await conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        await conn.run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
