"""Job documents: YAML or JSON in, checked values and the messages for services out."""

from .errors import SpecError, Violation
from .job import DataSpec, InlineModel, JobSpec
from .messages import evaluate_spec, execution, learning_rates, total_steps, train_spec, training_rows
from .network import build_model
from .parallel import BACKENDS, EngineEntry, ParallelSpec, parse_entry
from .parse import dump_document, parse_document, resolved

__all__ = [
    "BACKENDS",
    "DataSpec",
    "EngineEntry",
    "InlineModel",
    "JobSpec",
    "ParallelSpec",
    "SpecError",
    "Violation",
    "build_model",
    "dump_document",
    "evaluate_spec",
    "execution",
    "learning_rates",
    "parse_document",
    "parse_entry",
    "resolved",
    "total_steps",
    "train_spec",
    "training_rows",
]
