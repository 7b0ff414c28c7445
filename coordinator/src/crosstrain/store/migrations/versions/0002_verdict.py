"""What is left to do for a job's verdict, and which probes wait to be checked."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("verdict_stage", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("job_runs", sa.Column("purpose", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("job_runs", sa.Column("checks_pending", sa.Boolean(), nullable=False, server_default=sa.false()))
