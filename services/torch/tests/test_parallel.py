"""Several ranks compute what one computes."""

import dataclasses
import functools

import numpy as np
import oracle
import pytest
import ranks

from crosstrain_service import weights
from crosstrain_service.engine import Batch
from crosstrain_service.testing import cnn2, make_batches
from crosstrain_service.training import Execution, Parallel, WeightDecay
from crosstrain_torch import synchronised_norm
from crosstrain_torch.engine import TorchEngine
from crosstrain_torch.horovod_backend import obstacle

EVERYTHING = oracle.everything()
SMALL = cnn2((1, 8, 8), 4, (4, 6), 10, dropout=0.4)
SIZES = (13, 13, 5, 1)
RATES = (0.05, 0.05, 0.1, 0.02, 0.02, 0.3)
HOROVOD = pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "built")


def batches(model, sizes=SIZES):
    drawn = [make_batches(model, step + 1, size)[step] for step, size in enumerate(sizes)]
    return [dataclasses.replace(batch, learning_rate=rate) for batch, rate in zip(drawn, RATES)]


def settings(rule="momentum", **options):
    return oracle.training(oracle.RULES[rule], RATES, **options)


def hard(rule="adam"):
    return settings(rule, clip_norm=0.5, weight_decay=WeightDecay(0.01))


def deviation(model, rules, given, parallel, fault=None, start=None, **execution):
    """The largest deviation of several ranks from one after training, and what they found."""
    one = ranks.train(Execution(**dict(execution, accumulation_steps=1)), model, rules, given, start=start)
    several = ranks.run(ranks.train, parallel, model, rules, given, None, fault, start, **execution)
    found = max(ranks.deviation(one.parameters, several[0].parameters),
                ranks.deviation(one.optimizer, several[0].optimizer))
    print("deviation %.2e" % found)
    return found, one, several


@pytest.mark.parametrize("size", [2, 3, 4])
def test_data_parallel(size):
    model = EVERYTHING
    found, one, several = deviation(model, hard(), batches(model), Parallel(data=size), precision="float64")
    assert found < 1e-12
    sizes = [[len(ranks.share(batch, _place(size, rank)).labels) for batch in batches(SMALL)] for rank in range(size)]
    for step, total in enumerate(SIZES):
        # A stand-in's loss counts for nothing.
        counted = [(rank.losses[step], share[step]) for rank, share in zip(several, sizes)][:total]
        mean = sum(loss * count for loss, count in counted) / total
        assert abs(mean - one.losses[step]) < 1e-12
    for rank in several:
        assert ranks.deviation(several[0].parameters, rank.parameters) == 0
        # Gradients, and sums of the batch norm layers (3 and 8 channels): 4 C + 1 in each step.
        expected = 8 * 4 * (sum(value.size for value in one.parameters.values()) + (4 * 3 + 1) + (4 * 8 + 1))
        assert rank.bytes == expected
        assert len(rank.waited) == 4 and min(rank.waited) > 0


def _place(size, rank):
    return dataclasses.replace(Execution(parallel=Parallel(data=size)), ranks=dataclasses.replace(
        Execution().ranks, rank=rank, size=size))


@pytest.mark.parametrize("parallel", [
    Parallel(tensor=2), Parallel(tensor=3), Parallel(pipeline=2), Parallel(pipeline=3, micro_batches=2),
    Parallel(data=2, tensor=2), Parallel(data=2, pipeline=2, micro_batches=3), Parallel(tensor=2, pipeline=2),
], ids=lambda p: "data%d-tensor%d-pipeline%d" % (p.data, p.tensor, p.pipeline))
def test_parts_of_the_network(parallel):
    found, one, several = deviation(SMALL, hard("nesterov"), batches(SMALL), parallel, precision="float64")
    assert found < 1e-12
    for rank in several:
        assert ranks.deviation(several[0].parameters, rank.parameters) == 0
        assert ranks.deviation(one.state, rank.state) < 1e-12
    if parallel.data == 1:
        for rank in several:
            np.testing.assert_allclose(rank.losses, one.losses, rtol=1e-12)


def test_batch_norm_and_normalisation_over_tensor_ranks():
    parallel = Parallel(data=2, tensor=2)
    found, _, _ = deviation(EVERYTHING, hard(), batches(EVERYTHING), parallel, precision="float64")
    assert found < 1e-12


@HOROVOD
@pytest.mark.parametrize("size", [2, 3])
def test_horovod(size):
    parallel = Parallel(data=size, backend="horovod")
    found, _, several = deviation(EVERYTHING, hard(), batches(EVERYTHING), parallel, precision="float64")
    assert found < 1e-12
    assert all(min(rank.waited) > 0 for rank in several)


@pytest.mark.parametrize("backend", ["native", pytest.param("horovod", marks=HOROVOD)])
def test_a_share_in_parts(backend):
    parallel = Parallel(data=2, backend=backend)
    found, one, several = deviation(SMALL, hard(), batches(SMALL), parallel, precision="float64", accumulation_steps=3)
    assert found < 1e-12
    once = 8 * sum(value.size for value in one.parameters.values())
    assert several[0].bytes == 4 * once


def test_one_rank_in_parts():
    given, rules = batches(SMALL), hard()
    one = ranks.train(Execution(precision="float64"), SMALL, rules, given)
    parts = ranks.train(Execution(precision="float64", accumulation_steps=4), SMALL, rules, given)
    assert ranks.deviation(one.parameters, parts.parameters) < 1e-12
    np.testing.assert_allclose(one.losses, parts.losses, rtol=1e-12)


@pytest.mark.parametrize("parallel", [
    Parallel(data=2, bucket_mib=1), Parallel(data=4), Parallel(data=3), Parallel(tensor=2), Parallel(pipeline=2),
    pytest.param(Parallel(data=2, backend="horovod"), marks=HOROVOD),
], ids=lambda p: "data%d-tensor%d-pipeline%d-%s" % (p.data, p.tensor, p.pipeline, p.backend))
def test_cnn2_in_float32(digits, parallel):
    """As near to float64 as one rank, whose sums are longer; two steps, before rounding chooses between maxima."""
    images, labels = digits
    order = np.random.RandomState(0).permutation(len(images))[:64 * 2]
    given = [Batch(step, images[rows], labels[rows], 0.05) for step, rows in enumerate(order.reshape(2, 64))]
    start = weights.initial_parameters(cnn2(), 0)
    exact = ranks.train(Execution(precision="float64"), cnn2(), settings(), given, start=start).parameters
    found, one, several = deviation(cnn2(), settings(), given, parallel, start=start)
    errors = [ranks.deviation(exact, {name: value.astype(np.float64) for name, value in run.parameters.items()})
              for run in (one, several[0])]
    assert found < 5e-6
    assert errors[1] < 1.5 * errors[0]


def test_dense_masks_are_those_of_one_rank():
    # Masks of other rows, or of other columns, give another function.
    model = cnn2((1, 4, 4), 4, (2,), 9, dropout=0.5)
    for parallel in (Parallel(data=2), Parallel(tensor=2), Parallel(data=2, tensor=2)):
        assert deviation(model, settings(), batches(model), parallel, precision="float64")[0] < 1e-12


def _half():
    Batch.part = property(lambda batch: 0.0 if not batch.samples else 0.5)


def _twice():
    Batch.part = property(lambda batch: batch.samples / batch.total / 2)


def _sum():
    Batch.part = property(lambda batch: batch.samples / batch.total * 2)


def _local():
    synchronised_norm.Share.__init__ = lambda share, group: share.__dict__.update(
        group=type(group).__mro__[1](), counted=True)


@pytest.mark.parametrize("fault", [_half, _twice, _sum, _local], ids=lambda f: f.__name__[1:])
def test_faults_show(fault):
    """Mean of means, divided twice, sum instead of mean, local batch norm: parity is lost."""
    given = batches(EVERYTHING, (13, 13, 5, 2))
    found, _, _ = deviation(EVERYTHING, settings("momentum"), given, Parallel(data=2), fault, precision="float64")
    assert 1e-6 < found < 10


def _resumed(execution, model, rules, given, state):
    return ranks.train(execution, model, rules, given, state)


@pytest.mark.parametrize("before, after", [
    (Parallel(data=2), Parallel(data=3)), (Parallel(data=3), Parallel(data=3)),
    (Parallel(tensor=2), Parallel(pipeline=2)), (Parallel(data=2, tensor=2), Parallel()),
], ids=["2-3", "3-3", "tensor-pipeline", "hybrid-one"])
def test_resuming_at_another_size(before, after):
    given, rules = batches(SMALL, (13, 13, 13, 13, 5, 1)), hard()
    whole = ranks.run(ranks.train, before, SMALL, rules, given)[0]
    first = ranks.run(ranks.train, before, SMALL, rules, given[:3])[0]
    second = ranks.run(ranks.train, after, SMALL, rules, given[3:], first.state)[0]
    found = ranks.deviation(whole.parameters, second.parameters)
    # Bit for bit where nothing changed, although buckets are arranged anew.
    assert found == 0 if before == after else found < 2e-6
    assert ranks.deviation(whole.state, second.state) <= found + 2e-6


def _inside(execution, model, rules, given):
    engine = TorchEngine(model, rules, execution)
    engine.load_parameters(oracle.parameters(model))
    found = engine.intermediates(ranks.share(oracle.cast(given, np.float64), execution))
    predicted = engine.predict(given.x.astype(np.float64))
    statistics = engine.batch_statistics(given.x.astype(np.float64)) if model.name == "everything" else {}
    counted = engine.reduced_bytes()
    engine.close()
    return found, counted, predicted, statistics


@pytest.mark.parametrize("parallel", [
    Parallel(data=2), Parallel(tensor=2), Parallel(pipeline=2), Parallel(data=2, tensor=2),
    Parallel(data=2, pipeline=2),
], ids=lambda p: "data%d-tensor%d-pipeline%d" % (p.data, p.tensor, p.pipeline))
def test_looking_inside(parallel):
    model = SMALL if parallel.pipeline > 1 else EVERYTHING
    given = batches(model)[0]
    one, _, logits, statistics = _inside(Execution(precision="float64"), model, settings(), given)
    found = ranks.run(_inside, parallel, model, settings(), given, precision="float64")
    shares = [inside for inside, _, _, _ in found][::parallel.ranks // parallel.data]
    for name, value in one.outputs.items():
        joined = np.concatenate([share.outputs[name] for share in shares])
        np.testing.assert_allclose(joined, value, rtol=1e-10, atol=1e-12, err_msg=name)
        joined = np.concatenate([share.output_gradients[name] for share in shares])
        np.testing.assert_allclose(joined, one.output_gradients[name], rtol=1e-10, atol=1e-12, err_msg=name)
    for name, value in one.gradients.items():
        total = sum(share.gradients[name] for share in shares)
        np.testing.assert_allclose(total, value, rtol=1e-10, atol=1e-12, err_msg=name)
    assert sum(share.loss * len(share.outputs["dense2"]) for share in shares) / 13 == pytest.approx(one.loss, rel=1e-12)
    for _, counted, predicted, seen in found:
        # Looking is no training.
        assert not counted
        np.testing.assert_allclose(predicted, logits, rtol=1e-10, atol=1e-12)
        assert set(seen) == set(statistics)
        for name, pair in statistics.items():
            np.testing.assert_allclose(seen[name], pair, rtol=1e-10, atol=1e-12)


def _drawn(execution, model, rules, given):
    engine = TorchEngine(model, rules, execution)
    engine.load_parameters(oracle.parameters(model))
    inside = engine.intermediates(given)
    engine.train(ranks.Loop([given]))
    engine.close()
    return inside.outputs["dropout1"]


def test_native_dropout_of_every_rank_is_its_own():
    given = batches(SMALL)[0]
    first, second = ranks.run(_drawn, Parallel(data=2), SMALL, settings(), given, semantics="native")
    again = ranks.run(_drawn, Parallel(data=2), SMALL, settings(), given, semantics="native")
    assert np.any(first != second)
    np.testing.assert_array_equal(again, [first, second])
    left, right = ranks.run(_drawn, Parallel(tensor=2), SMALL, settings(), given, semantics="native")
    np.testing.assert_array_equal(left, right)


def test_native_batch_norm_of_each_share():
    model = EVERYTHING
    given = batches(model, (13, 9, 1))
    parallel = Parallel(data=2, local_batch_norm=True)
    run = functools.partial(ranks.run, ranks.train, parallel, model, settings())
    with pytest.raises(AssertionError, match="Expected more than 1 value per channel"):
        run(batches(model, (3,)), semantics="native")
    first, second = run(given[:2], semantics="native")
    assert ranks.deviation(first.parameters, second.parameters) == 0
    assert np.any(first.statistics["norm1.running_mean"] != 0)


def test_several_hosts_meet_at_an_address():
    given = batches(SMALL)
    for parallel in (Parallel(data=2),) + ((Parallel(data=2, backend="horovod"),) if not obstacle() else ()):
        found = ranks.run(ranks.train, parallel, SMALL, settings(), given, members=2)
        assert ranks.deviation(found[0].parameters, found[1].parameters) == 0


def _after_another(execution, model, rules, given):
    first = ranks.train(execution, model, rules, given[:2])
    return ranks.train(execution, model, rules, given[2:], first.state)


@pytest.mark.parametrize("backend", ["native", pytest.param("horovod", marks=HOROVOD)])
def test_one_engine_after_another_in_the_same_processes(backend):
    parallel = Parallel(data=2, backend=backend)
    whole = ranks.run(ranks.train, parallel, SMALL, settings(), batches(SMALL))[0]
    parts = ranks.run(_after_another, parallel, SMALL, settings(), batches(SMALL))[0]
    assert ranks.deviation(whole.parameters, parts.parameters) == 0
