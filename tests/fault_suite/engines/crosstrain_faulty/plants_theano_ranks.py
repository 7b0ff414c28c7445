"""Faults between ranks, planted in Keras and Lasagne on Theano."""

import contextlib

from crosstrain_keras_theano import operations
from crosstrain_keras_theano.ranks import Team

from .plant import replaced
from .plants_ranks import OfRank, same_dropout


class LocalNorm(OfRank):
    """Every rank normalises over its own rows."""

    @contextlib.contextmanager
    def patched(self):
        with replaced(Team, "moments", lambda team, x: operations.batch_moments(x)):
            yield


PLANTS = {
    "ranks.local_norm": LocalNorm,
    "ranks.same_dropout": same_dropout(lambda engine: engine, "_draw_apart"),
}
