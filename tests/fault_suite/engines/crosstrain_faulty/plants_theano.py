"""Plants in Theano, besides its native semantics."""

import contextlib

from crosstrain_keras_theano import operations
from crosstrain_keras_theano.device import T

from .plant import Plant, replaced


class ReluOneAtZero(Plant):
    """ReLU as ``T.maximum(x, 0)``, whose gradient at 0 is 1."""

    @contextlib.contextmanager
    def patched(self):
        with replaced(operations, "relu", lambda x: T.maximum(x, operations.floating(0))):
            yield


PLANTS = {"relu.one_at_zero": ReluOneAtZero}
