"""Errors on their way over gRPC, in both directions."""

from .errors import from_rpc, lost_run, transient, unanswered
from .interceptor import ErrorInterceptor

__all__ = ["ErrorInterceptor", "from_rpc", "lost_run", "transient", "unanswered"]
