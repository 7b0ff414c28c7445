"""A framework that ends its process: only the child dies, its last words reach the user, the service goes on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.cases.builder import Case, case, conv, pool
from tests.conformance.suite import Conformance
from tests.support.service import Service, ServiceUnavailable


def overflowing() -> Case:
    """Caffe unfolds the input for a convolution; here that array has 64 x 23 x 23 x 256 x 256 elements, over 2^31."""
    layers = [conv("conv", 2, 23, begin=11), pool("pool", "max", 256, 256)]
    pixels = np.zeros((1, 64, 256, 256), np.float32)
    return case("overflow", "", (64, 256, 256), layers, samples=1, batch=1, steps=1, labels=[0], pixels=pixels)


@pytest.mark.timeout(300)
def test_a_failed_check_in_caffe() -> None:
    small = case("small", "", (1, 4, 4), [conv("conv", 2, 3)], steps=1)
    try:
        service = Service("caffe")
        suite = Conformance(service, "caffe")
    except ServiceUnavailable as reason:
        pytest.skip(str(reason))
    with service:
        service.training.Probe(suite.request("overflow", [overflowing()], "float32"), timeout=60)
        ends = [
            event.state_changed.error.message
            for event in service.watch("overflow", 120)
            if event.WhichOneof("event") == "state_changed" and event.state_changed.HasField("error")
        ]
        assert len(ends) == 1 and "SIGABRT" in ends[0]
        assert "Caffe stopped: Check failed" in ends[0] and "INT_MAX" in ends[0]
        service.training.Probe(suite.request("afterwards", [small], "float32"), timeout=60)
        events = service.watch("afterwards", 120)
        recorded = [event for event in events if event.WhichOneof("event") == "probe_recorded"]
        assert len(recorded) == 1 and not recorded[0].probe_recorded.HasField("error")
