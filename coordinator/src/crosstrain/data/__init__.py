"""User data in, content-addressed memory-mapped arrays out.

CSV, npz, IDX and image folders are checked and converted once; every engine then reads the same
``.npy`` files. The input of a network is ``pixels.astype(float32) / float32(divisor)``.
"""

from .cache import DataCache
from .checks import check_batches, check_pair, sample_digests
from .errors import DataError
from .importer import import_dataset, import_pair, options_like, share_divisor
from .info import DatasetInfo, Finding, ImportOptions
from .sources import Imported, import_sources

__all__ = [
    "DataCache",
    "DataError",
    "DatasetInfo",
    "Finding",
    "ImportOptions",
    "Imported",
    "check_batches",
    "check_pair",
    "import_dataset",
    "import_pair",
    "import_sources",
    "options_like",
    "sample_digests",
    "share_divisor",
]
