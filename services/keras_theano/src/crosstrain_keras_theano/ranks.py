"""Several ranks: sums over all of them as an operation of Theano's graphs, by MPI.

Every rank minimises its part of the whole batch's mean loss, ``part`` times the mean over its own rows, and adds the
gradients of all ranks. Theano has no communication of its own; the operation calls mpi4py in its ``perform``.
"""

from contextlib import contextmanager
from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np

from crosstrain_service.parallel.sums import Sums
from crosstrain_service.training import Ranks

from . import compiledir
from .device import T, floating, theano

# isort: split
from theano.gof.cmodule import get_module_cache
from theano.sandbox.rng_mrg import MRG_RandomStreams

Variable = Any


class AddOverRanks(theano.Op):
    """(token, tensors) to (token, sums): the sum over all ranks of each tensor, in one collective call.

    All tensors have one type. The token, a scalar, puts the collective calls of a graph in one order: each takes the
    token of the one before, since ranks that disagree on the order would add different things.
    """

    # Without __props__ an operation equals itself only, so that those of two engines are never merged.

    def __init__(self, team: "Team") -> None:
        self._team = team

    def make_node(self, token: Variable, *tensors: Variable) -> Any:
        """Types of the outputs are those of the inputs."""
        tensors = tuple(T.as_tensor_variable(tensor) for tensor in tensors)
        return theano.Apply(self, [token] + list(tensors), [token.type()] + [tensor.type() for tensor in tensors])

    def perform(self, node: Any, inputs: Any, outputs: Any, params: Any = None) -> None:
        """Adds by way of one new array, since Theano may go on to compute in place on the outputs."""
        tensors = inputs[1:]
        flat = np.empty(sum(tensor.size for tensor in tensors), tensors[0].dtype)
        start, parts = 0, []
        for tensor in tensors:
            parts.append(flat[start : start + tensor.size].reshape(tensor.shape))
            parts[-1][...] = tensor
            start += tensor.size
        self._team.sums.add(flat)
        outputs[0][0] = inputs[0].copy()
        for output, part in zip(outputs[1:], parts):
            output[0] = part

    def infer_shape(self, node: Any, shapes: Any) -> Any:
        """As the inputs; without it Theano would communicate to learn a shape."""
        return shapes

    def L_op(self, inputs: Any, outputs: Any, output_gradients: Any) -> List[Variable]:
        """A sum is part of every rank's loss, so its gradient is the sum of all ranks' gradients."""
        return [theano.gradient.DisconnectedType()()] + self._team.add(output_gradients[1:])

    def connection_pattern(self, node: Any) -> List[List[bool]]:
        """Each sum depends on its own tensor."""
        count = len(node.inputs)
        return [[row == column and row > 0 for column in range(count)] for row in range(count)]


class Team:
    """This rank among all: its part of the loss, and sums in graphs."""

    def __init__(self, ranks: Ranks, seed: int) -> None:
        """Raises ``ENVIRONMENT`` if MPI cannot be used."""
        self.sums = Sums(ranks)
        self._seed = seed
        self._rank = ranks.rank
        self._lead_compiledir = self.sums.told(str(theano.config.compiledir))
        #: This rank's part of the whole batch, a shared scalar to be set before every step.
        self.part = theano.shared(floating(1), name="part")
        self._add = AddOverRanks(self)
        self._token: Variable = T.constant(np.int8(0))

    def set_part(self, part: float) -> None:
        """Sets this rank's part of the batch that comes next."""
        self.part.set_value(floating(part))

    @contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Around the compilation of ``what`` in all ranks.

        Rank 0 compiles first, and the others, with directories of their own, take its modules; all at the same time
        if the cache has held them since an earlier run.
        """
        folder = str(theano.config.compiledir)
        known = self.sums.told("known" if self._rank == 0 and compiledir.noted(what, folder) else "")
        if self._rank and not known:
            self.sums.wait()
            compiledir.take(self._lead_compiledir, folder)
            get_module_cache(folder).refresh(cleanup=False)
        yield
        if self._rank == 0 and not known:
            compiledir.publish(folder)
            compiledir.note(what, folder)
            self.sums.wait()

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Sums added inside follow those that are there, but nothing that is added later follows them."""
        token = self._token
        try:
            yield
        finally:
            self._token = token

    def add(self, tensors: Sequence[Variable]) -> List[Variable]:
        """The sums over all ranks, after all other sums of the graph."""
        found = self._add(self._token, *tensors)
        self._token = found[0]
        return list(found[1:])

    def mean(self, value: Variable) -> Variable:
        """The whole batch's mean of a value that is a mean over this rank's rows; can be differentiated."""
        return self.add([value * self.part])[0]

    def moments(self, x: Variable) -> Tuple[Variable, Variable]:
        """Mean and biased variance per channel of x (B, C, ...) over the whole batch of all ranks, each (C,)."""
        axes = [0] + list(range(2, x.ndim))
        mean = self.mean(T.mean(x, axis=axes))
        centred = x - mean.dimshuffle(*(["x", 0] + ["x"] * (x.ndim - 2)))
        return mean, self.mean(T.mean(T.sqr(centred), axis=axes))

    def gradients(self, loss: Variable, variables: Sequence[Variable]) -> List[Variable]:
        """Gradients of the whole batch's mean loss, equal in all ranks, from this rank's mean loss."""
        with self.branch():
            return self.add(T.grad(loss * self.part, list(variables)))

    def draw_differently(self, streams: Sequence[Variable], first_step: int) -> None:
        """Seeds the generators of native dropout for this rank from ``first_step`` on."""
        for number, stream in enumerate(streams):
            random = np.random.RandomState([self._seed & 0xFFFFFFFF, self._rank, first_step, number])
            state = stream.get_value()
            generator = MRG_RandomStreams(int(random.randint(1, 2147462579)))
            fresh = generator.get_substream_rstates(len(state), theano.config.floatX)
            stream.set_value(np.asarray(fresh, state.dtype).reshape(state.shape))
