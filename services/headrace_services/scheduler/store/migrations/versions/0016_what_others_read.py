"""Columns of a study that other studies' cycles compare: Postgres computes them from its spec and its standing."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the columns."""
    usage = ("gpu_s", "cpu_s", "gpu_milli", "cpu_slots", "at_s", "credit_s")
    columns = {
        "resources": ("TEXT", "CASE WHEN spec ->> 'template' IS NOT NULL THEN spec ->> 'resources' END"),
        "wants": (
            "TEXT",
            """CASE WHEN (standing ->> 'wants_slots')::integer > 0 THEN (standing ->> 'wants_slots') || ' ' ||
                coalesce((standing -> 'avoided')::text, '') || (spec ->> 'resources') END""",
        ),
        "keeps_slots": ("BOOLEAN", "jsonb_typeof(standing -> 'reserved') IS NOT DISTINCT FROM 'object'"),
        "quantum_s": ("DOUBLE PRECISION", "coalesce((standing ->> 'quantum_s')::double precision, 0)"),
    } | {
        name: ("DOUBLE PRECISION", f"coalesce((standing #>> '{{usage,{name}}}')::double precision, 0)")
        for name in usage
    }
    for name, (kind, of) in columns.items():
        op.execute(f"ALTER TABLE study ADD COLUMN {name} {kind} GENERATED ALWAYS AS ({of}) STORED")
