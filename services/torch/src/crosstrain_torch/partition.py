"""Which layers a rank of a pipeline holds, and how tensor ranks divide a layer. Imports no framework.

Tensor ranks divide a convolution by its output channels and a dense layer by its outputs ("columns") or, where its
input is divided already, by its inputs ("rows", whose partial sums are added up over the ranks). Layers that treat
every channel by itself keep a divided activation divided; before all others it is gathered. A layer with fewer outputs
than ranks is computed whole by each of them.
"""

from typing import List, NamedTuple, Optional, Tuple

from crosstrain_service.model import Convolution, Dense, Dropout, Flatten, Layer, Model, Pad, Pool, Relu, Shape
from crosstrain_service.parallel.shares import share_sizes

#: Sizes of the ranks' parts of a dimension.
Sizes = Tuple[int, ...]


class Division(NamedTuple):
    """How tensor ranks compute a layer; no sizes where nothing is divided.

    ``gathered``: sizes of the input's parts that are gathered first. ``kind``: "columns", "rows" or empty;
    ``divided``: sizes of the weight's parts along that dimension. ``output``: of the output's parts (dimension 1).
    """

    gathered: Sizes = ()
    kind: str = ""
    divided: Sizes = ()
    output: Sizes = ()


def divisions(layers: List[Layer], inputs: List[Shape], ranks: int, native: bool) -> List[Division]:
    """One division a layer; ``inputs``: whole shapes of the layers' inputs, ``native``: dropout draws whole masks."""
    kept = (Relu, Pool, Pad, Flatten) if native else (Relu, Pool, Pad, Flatten, Dropout)
    found = []
    parts: Sizes = ()
    for layer, shape in zip(layers, inputs):
        if isinstance(layer, Dense) and parts:
            division = Division(kind="rows", divided=parts)
        elif isinstance(layer, (Convolution, Dense)):
            outputs = layer.out_channels if isinstance(layer, Convolution) else layer.units
            sizes = tuple(share_sizes(outputs, ranks)) if outputs >= ranks > 1 else ()
            division = Division(parts, "columns" if sizes else "", sizes, sizes)
        elif parts and isinstance(layer, kept):
            area = _product(shape[1:]) if isinstance(layer, Flatten) else 1
            division = Division(output=tuple(size * area for size in parts))
        else:
            division = Division(gathered=parts)
        parts = division.output
        found.append(division)
    return found


def stages(model: Model, count: int) -> Optional[List[range]]:
    """Numbers of the layers of each of ``count`` stages, the largest of which computes as little as possible.

    Every stage begins with a layer that has parameters (the first with the network); None if there are too few.
    """
    trained = {name.rsplit(".", 1)[0] for name in model.parameter_shapes()}
    starts = [number for number, layer in enumerate(model.layers) if layer.name in trained]
    if len(starts) < count:
        return None
    edges = [0] + starts[1:] + [len(model.layers)]
    costs = _costs(model)
    blocks = [sum(costs[begin:end]) for begin, end in zip(edges, edges[1:])]
    cuts = _balanced(blocks, count)
    return [range(edges[begin], edges[end]) for begin, end in zip(cuts, cuts[1:])]


def _costs(model: Model) -> List[int]:
    """Multiplications, or values produced, of each layer for one sample."""
    inputs, outputs = model.input_shapes(), model.output_shapes()
    found = []
    for layer in model.layers:
        cost = _product(outputs[layer.name])
        if isinstance(layer, Convolution):
            cost *= inputs[layer.name][0] * _product(layer.kernel)
        elif isinstance(layer, Dense):
            cost *= inputs[layer.name][0]
        found.append(cost)
    return found


def _balanced(blocks: List[int], count: int) -> List[int]:
    """Edges of ``count`` runs of blocks, none empty, whose largest sum is least."""
    best = {(0, 0): (0, [0])}
    for run in range(1, count + 1):
        for end in range(run, len(blocks) - (count - run) + 1):
            found = []
            for begin in range(run - 1, end):
                if (run - 1, begin) in best:
                    largest, edges = best[run - 1, begin]
                    found.append((max(largest, sum(blocks[begin:end])), edges + [end]))
            best[run, end] = min(found)
    return best[count, len(blocks)][1]


def _product(sizes: Shape) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
