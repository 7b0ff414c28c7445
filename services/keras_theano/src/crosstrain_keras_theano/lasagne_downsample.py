"""A module that Lasagne 0.1 imports and Theano 0.9 removed.

``lasagne.layers.pool`` imports ``theano.tensor.signal.downsample`` and calls its ``max_pool_2d`` with the
arguments' old names. The function itself lives on as ``theano.tensor.signal.pool.pool_2d``. Import this
module before Lasagne.
"""

import sys
import types

from .device import pool_2d, theano

_NAME = "theano.tensor.signal.downsample"


def max_pool_2d(input, ds, ignore_border=None, st=None, padding=(0, 0), mode="max"):
    """Theano's pooling under the names that Theano 0.8 gave to its arguments."""
    return pool_2d(input, ws=ds, ignore_border=ignore_border, stride=st, pad=padding, mode=mode)


def _install() -> None:
    """Makes the removed module importable; does nothing where Theano still has it."""
    if hasattr(theano.tensor.signal, "downsample") or _NAME in sys.modules:
        return
    module = types.ModuleType(_NAME, "Alias of theano.tensor.signal.pool for Lasagne 0.1.")
    module.max_pool_2d = max_pool_2d
    sys.modules[_NAME] = module
    theano.tensor.signal.downsample = module


_install()
