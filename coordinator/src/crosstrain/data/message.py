"""An imported data set as a message of the API."""

from __future__ import annotations

from crosstrain_protos.v1 import data_pb2

from .info import DatasetInfo


def dataset_message(info: DatasetInfo) -> data_pb2.Dataset:
    """What a coordinator or a service is told of it; the arrays are stored there apart from it."""
    return data_pb2.Dataset(
        pixels_digest=info.pixels_digest,
        labels_digest=info.labels_digest,
        samples=info.samples,
        input_shape=info.input_shape,
        classes=info.classes,
        divisor=info.divisor,
    )
