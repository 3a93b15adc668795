"""Which steps of a trial other code trained, its own and those that it took over; whether its result is of them."""

from alembic import op

revision = "0050"
down_revision = "0048"
# A replica of before cannot read a checkpoint that says which steps behind it were such.


def upgrade() -> None:
    """Of a trial that is marked it is not known since when: all of its steps may be of other code."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    """
    ALTER TABLE trial
        ADD COLUMN other_code JSONB NOT NULL DEFAULT '[]',
        ADD COLUMN score_marked BOOLEAN NOT NULL DEFAULT false
    """,
    """
    UPDATE trial
    SET score_marked = true,
        other_code = jsonb_build_array(jsonb_build_object(
            'trial', number, 'attempt', attempt, 'first_step', 1, 'last_step', step, 'files', to_jsonb(code_changed)
        ))
    WHERE code_changed <> '{}'
    """,
)
