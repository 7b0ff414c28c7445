"""The tables of the job store. Protocol messages are kept whole, beside the columns that queries need.

Times are nanoseconds since 1970 UTC. States and kinds are the numbers of the API's enumerations.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    false,
)

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    # SQLite numbers rows by itself only if the type is exactly INTEGER.
    Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("job_id", String(128), nullable=False, unique=True),
    Column("body_digest", String(64), nullable=False),
    Column("state", Integer, nullable=False, index=True),
    Column("last_sequence", BigInteger, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("shared_devices", Boolean, nullable=False),
    Column("evaluation_pending", Boolean, nullable=False),
    # See rows.VerdictStage.
    Column("verdict_stage", Integer, nullable=False, server_default="0"),
    Column("record", LargeBinary, nullable=False),
)

job_runs = Table(
    "job_runs",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("job_id", String(128), ForeignKey("jobs.job_id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("kind", Integer, nullable=False),
    Column("state", Integer, nullable=False),
    Column("service", String(128), nullable=False),
    Column("engine", String(128), nullable=False),
    Column("engine_version", String(128), nullable=False),
    Column("device_key", String(300), nullable=False),
    # Events stored, and how many of them came before the present submission.
    Column("last_sequence", BigInteger, nullable=False),
    Column("sequence_base", BigInteger, nullable=False),
    Column("attempt_base", Integer, nullable=False),
    Column("submissions", Integer, nullable=False),
    Column("purpose", Integer, nullable=False, server_default="0"),
    # A probe whose records are still to be checked.
    Column("checks_pending", Boolean, nullable=False, server_default=false()),
    Column("request", LargeBinary, nullable=False),
    Column("record", LargeBinary, nullable=False),
    UniqueConstraint("job_id", "position"),
)

job_events = Table(
    "job_events",
    metadata,
    Column("job_id", String(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    # Set for events of a run only; several NULLs do not collide.
    Column("run_id", String(128)),
    Column("run_sequence", BigInteger),
    Column("time_ns", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    UniqueConstraint("run_id", "run_sequence"),
)

run_groups = Table(
    "run_groups",
    metadata,
    Column("run_id", String(128), ForeignKey("job_runs.run_id"), primary_key=True),
    # Set while the run is at work.
    Column("secret", LargeBinary),
    Column("generation", Integer, nullable=False),
    Column("port", Integer, nullable=False),
)

group_members = Table(
    "group_members",
    metadata,
    Column("run_id", String(128), ForeignKey("run_groups.run_id"), primary_key=True),
    Column("member", Integer, primary_key=True, autoincrement=False),
    Column("service", String(128), nullable=False),
    Column("host", String(255), nullable=False),
    Column("device_key", String(300), nullable=False),
    Column("ranks", Integer, nullable=False),
    # See groups.Member.
    Column("generation", Integer, nullable=False),
    Column("port", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("seen", BigInteger, nullable=False),
    Column("freed", Boolean, nullable=False),
)

services = Table(
    "services",
    metadata,
    Column("service", String(128), primary_key=True),
    Column("address", String(255), nullable=False),
    Column("preferred", Boolean, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
    Column("description", LargeBinary, nullable=False),
)
