"""``torch.compile`` computes the canonical function as well, in one graph per batch size."""

import dataclasses

import numpy as np
import oracle
import pytest

from crosstrain_service.model import Convolution, Dense, Dropout, Flatten, Model, Pool, Relu
from crosstrain_service.testing import make_batches
from crosstrain_torch.device import compiler_obstacle


@pytest.mark.skipif(bool(compiler_obstacle()), reason=compiler_obstacle())
def test_compiled_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch._dynamo.utils

    model = Model("compiled", (1, 7, 7), 4, (
        Convolution("conv1", 3, (1, 1), (1, 1), (0, 0), (0, 0), bias=False), Relu("relu1"),
        Pool("pool1", "max", (3, 3), (2, 2), (1, 1), (1, 1)),
        Flatten("flatten"), Dropout("dropout1", 0.3), Dense("dense1", 4),
    )).validate()  # fmt: skip
    settings = oracle.training(oracle.RULES["momentum"])
    batches = make_batches(model, 4, 5)
    last = batches[-1]
    masks = {name: mask[:2] for name, mask in last.masks.items()}
    batches[-1] = dataclasses.replace(last, x=last.x[:2].copy(), labels=last.labels[:2].copy(), masks=masks)
    batches[1].x[:] = 0  # Every window ties, every unit is exactly 0.
    torch._dynamo.utils.counters.clear()
    built = oracle.engine(model, settings, compiler="torch.compile")
    oracle.assert_steps_equal(built, model, settings, batches, 2e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert not torch._dynamo.utils.counters["graph_break"]
    assert built.fingerprint()["compiler"] == "torch.compile"
    assert np.isfinite(built.predict(batches[0].x)).all()
    built.close()
