"""Runs that span several services."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_groups",
        sa.Column("run_id", sa.String(128), sa.ForeignKey("job_runs.run_id"), primary_key=True),
        sa.Column("secret", sa.LargeBinary()),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
    )
    op.create_table(
        "group_members",
        sa.Column("run_id", sa.String(128), sa.ForeignKey("run_groups.run_id"), primary_key=True),
        sa.Column("member", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("service", sa.String(128), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("device_key", sa.String(300), nullable=False),
        sa.Column("ranks", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("freed", sa.Boolean(), nullable=False),
    )
