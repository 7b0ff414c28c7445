"""How a batch is cut among ranks: near-equal contiguous shares, the first ones one sample larger."""

from typing import List


def share_sizes(samples: int, shares: int) -> List[int]:
    """Samples in each share; shares differ by at most one, and are empty where there are fewer samples than shares."""
    size, larger = divmod(samples, shares)
    return [size + (index < larger) for index in range(shares)]


def share_slice(samples: int, shares: int, index: int) -> slice:
    """The rows of one share among ``samples`` rows."""
    size, larger = divmod(samples, shares)
    start = index * size + min(index, larger)
    return slice(start, start + size + (index < larger))
