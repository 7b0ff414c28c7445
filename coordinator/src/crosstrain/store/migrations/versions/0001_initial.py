"""Jobs, their runs and events, and registered services."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.String(128)


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column(
            "position",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("job_id", _ID, nullable=False, unique=True),
        sa.Column("body_digest", sa.String(64), nullable=False),
        sa.Column("state", sa.Integer(), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("shared_devices", sa.Boolean(), nullable=False),
        sa.Column("evaluation_pending", sa.Boolean(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_table(
        "job_runs",
        sa.Column("run_id", _ID, primary_key=True),
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.job_id"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Integer(), nullable=False),
        sa.Column("state", sa.Integer(), nullable=False),
        sa.Column("service", _ID, nullable=False),
        sa.Column("engine", _ID, nullable=False),
        sa.Column("engine_version", _ID, nullable=False),
        sa.Column("device_key", sa.String(300), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.Column("sequence_base", sa.BigInteger(), nullable=False),
        sa.Column("attempt_base", sa.Integer(), nullable=False),
        sa.Column("submissions", sa.Integer(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("job_id", "position"),
    )
    op.create_table(
        "job_events",
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.job_id"), primary_key=True),
        sa.Column("sequence", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("run_id", _ID),
        sa.Column("run_sequence", sa.BigInteger()),
        sa.Column("time_ns", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("run_id", "run_sequence"),
    )
    op.create_table(
        "services",
        sa.Column("service", _ID, primary_key=True),
        sa.Column("address", sa.String(255), nullable=False),
        sa.Column("preferred", sa.Boolean(), nullable=False),
        sa.Column("expires_ns", sa.BigInteger(), nullable=False),
        sa.Column("description", sa.LargeBinary(), nullable=False),
    )
