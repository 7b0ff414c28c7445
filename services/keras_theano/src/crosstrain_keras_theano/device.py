"""Theano, imported with a prepared compile directory, and facts about the maths that it is set up for.

All other modules of this package take ``theano`` and ``T`` from here, so that nothing imports Theano before
its compile directory is filled. The GPU settings follow the documentation of Theano 1.0 and libgpuarray and
have not been run on a GPU.
"""

import importlib.util
import logging
import os
import platform
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

import numpy as np

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.training import Execution

from . import compiledir

_NO_COMPILER = "Theano needs a C++ compiler (g++); without one it would compute in Python, a hundred times slower"


def _import_error(error: Exception) -> CrosstrainError:
    if type(error).__name__ == "MissingGXX":
        return CrosstrainError("ENVIRONMENT", _NO_COMPILER)
    # Theano 1.0.5 uses names that NumPy 1.22 and later no longer have.
    return CrosstrainError(
        "ENVIRONMENT",
        "Theano cannot be imported with NumPy %s on Python %s (%s); Theano 1.0.5 runs with numpy==1.21.6 "
        "on Python 3.7" % (np.__version__, platform.python_version(), error),
    )


compiledir.prepare()
# Once per installation without g++ and similar; what matters is raised as an error by check().
logging.getLogger("theano.tensor.blas").setLevel(logging.ERROR)
try:
    import theano
    import theano.gof.cutils  # noqa: F401  built at its first import; better now than inside the first step
    import theano.tensor as T
    from theano.tensor.signal.pool import pool_2d
except Exception as error:
    raise _import_error(error) from error

# What Theano builds at its import serves the next process as well, even if this one compiles nothing else.
compiledir.publish(theano.config.compiledir)

__all__ = [
    "T",
    "check",
    "cuda_obstacle",
    "explained",
    "facts",
    "floating",
    "libraries",
    "pool_2d",
    "theano",
    "use_precision",
]


def check(execution: Execution) -> None:
    """Raises ``ENVIRONMENT`` unless Theano was set up as ``environment`` demands for this execution."""
    if not theano.config.cxx:
        raise CrosstrainError("ENVIRONMENT", _NO_COMPILER)
    found = "cpu" if theano.config.device == "cpu" else "cuda"
    if found != execution.device:
        raise CrosstrainError(
            "ENVIRONMENT",
            "Theano was started for the device %r, not %r" % (found, execution.device),
            "execution.device",
        )


def use_precision(execution: Execution) -> str:
    """Sets the floating type of all graphs built from now on, and returns its name."""
    name = execution.precision or "float32"
    theano.config.floatX = name
    return name


def floating(value: Any) -> np.ndarray:
    """A constant in the run's floating type; Theano would keep a NumPy float64 as it is."""
    return np.asarray(value, dtype=theano.config.floatX)


def cuda_obstacle() -> str:
    """Why this environment cannot use a GPU; empty if it can."""
    if importlib.util.find_spec("pygpu") is None:
        return "Theano reaches GPUs through libgpuarray and its Python package pygpu, which is not installed here"
    if importlib.util.find_spec("pynvml") is None:
        return "the NVIDIA management library is not installed"
    return ""


def libraries() -> Dict[str, str]:
    """Versions of what takes part in the computation."""
    return {"numpy": np.__version__, "theano": str(theano.__version__), "blas": _blas()}


def facts(execution: Execution) -> Dict[str, str]:
    """The maths mode as configured."""
    found = {
        "theano.floatX": str(theano.config.floatX),
        "theano.optimizer": str(theano.config.optimizer),
        "theano.linker": str(theano.config.linker),
        "theano.deterministic": str(theano.config.deterministic),
        "theano.openmp": str(bool(theano.config.openmp)),
        "theano.device": str(theano.config.device),
        "blas": _blas(),
        "cxx": os.path.basename(str(theano.config.cxx).split(" ")[0]),
        "threads": str(execution.intra_threads),
    }
    if execution.device != "cpu":
        found["cudnn.backward_filter"] = str(theano.config.dnn.conv.algo_bwd_filter)
        found["cudnn.backward_data"] = str(theano.config.dnn.conv.algo_bwd_data)
    return found


def _blas() -> str:
    names = [flag[3:] for flag in str(theano.config.blas.ldflags).split() if flag.startswith("-l:")]
    return names[0] if names else str(theano.config.blas.ldflags) or "NumPy's"


def allocator_peak_bytes(execution: Execution) -> Optional[int]:
    """None: libgpuarray does not report the peak of its allocator."""
    return None


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns Theano's exceptions, whose text is mostly a dump of the graph, into one clear sentence.

    Raises ``ENGINE_FAILED``; the original exception stays attached for the log.
    """
    try:
        yield
    except (CrosstrainError, KeyboardInterrupt):
        raise
    except MemoryError as error:
        raise CrosstrainError("ENGINE_FAILED", "Theano ran out of memory while %s" % what) from error
    except Exception as error:
        raise CrosstrainError("ENGINE_FAILED", "Theano failed while %s: %s" % (what, _summary(error))) from error


def _summary(error: BaseException) -> str:
    text = str(error)
    if "Compilation failed" in text:
        return "the C++ compiler rejected a module; is a complete g++ with the headers of this Python installed?"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    return "%s: %s" % (type(error).__name__, first[:300])
