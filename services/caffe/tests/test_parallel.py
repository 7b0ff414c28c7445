"""Several ranks by MPI compute what one computes."""

import numpy as np
import parallel_cases
import pytest
from parallel_cases import CASES

import crosstrain_caffe
from crosstrain_caffe.engine import CaffeEngine
from crosstrain_service.parallel import sums, trial
from crosstrain_service.training import Execution, Parallel, Ranks

if sums.obstacle():
    pytest.skip(sums.obstacle(), allow_module_level=True)

#: Rounding of float32 sums in another order, relative to the largest value of a tensor.
TOLERANCE = 2e-6
#: By number of ranks.
NAMES = {
    2: [name for name in CASES if name not in ("second half",)],
    3: ["second half", "momentum", "clip and decay", "masks"],
    4: ["momentum", "adam", "masks"],
}
SAME = [name for name in CASES if name not in ("native dropout", "local batch norm", "second half")]


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """What each rank found, by case and number of ranks."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    for size, names in sorted(NAMES.items()):
        trial.run("parallel_cases", names, size, folder)
    return lambda name, size: trial.results(folder, name, size)


@pytest.fixture(scope="module")
def alone():
    """What one rank finds."""
    found = {}

    def compute(name):
        if name not in found:
            found[name] = trial.work(CaffeEngine, CASES[name], Ranks())
        return found[name]

    return compute


def deviation(found, expected, groups=("parameter", "optimizer")):
    """Largest difference of any tensor, relative to its largest value."""
    worst = 0.0
    for name, value in expected.items():
        if name.split("/")[0] in groups:
            scale = max(float(np.abs(value).max()), 1e-3)
            worst = max(worst, float(np.abs(found[name] - value).max()) / scale)
    return worst


@pytest.mark.parametrize("name, size", [(name, size) for size in NAMES for name in SAME if name in NAMES[size]])
def test_ranks_compute_what_one_computes(several, alone, name, size):
    ranks, one = several(name, size), alone(name)
    for other in ranks[1:]:
        for key, value in ranks[0].items():
            if key.split("/")[0] in ("parameter", "optimizer"):
                assert other[key].tobytes() == value.tobytes(), key
    assert deviation(ranks[0], one) < TOLERANCE
    total = sum(ranks[0]["parameter/" + key].nbytes for key in CASES[name].model.parameter_shapes())
    for found in ranks:
        assert found["reduced_bytes"] == total * len(found["losses"]) and found["sync_seconds"] > 0
    counts = [trial.share(batch, size, rank) for batch in CASES[name].batches for rank in range(size)]
    losses = np.array([found["losses"] for found in ranks]).T
    parts = np.array([share.part for share in counts]).reshape(losses.shape)
    assert np.abs((losses * parts).sum(axis=1) - one["losses"]).max() < 1e-5


@pytest.mark.parametrize("fault", ["sum", "mean of means", "divided twice"])
def test_a_wrong_weight_of_shares_is_seen(several, alone, fault):
    found = several("momentum", 2)[0]
    faulty = {"parameter/" + name: found["fault/%s/%s" % (fault, name)] for name in CASES["momentum"].parameters}
    assert deviation(faulty, alone("momentum"), ("parameter",)) > 100 * TOLERANCE


def test_a_probe_gives_the_gradients_of_the_whole_batch(several, alone):
    ranks, one = several("masks", 3), alone("masks")
    for key, value in one.items():
        group, name = key.split("/")[0], key
        if group == "gradients":
            assert np.abs(sum(found[name] for found in ranks) - value).max() < 1e-6
        elif group in ("outputs", "output_gradients"):
            rows = np.concatenate([found[name] for found in ranks])
            assert rows.shape == value.shape and np.abs(rows - value).max() < 1e-5


def test_a_checkpoint_of_two_ranks_loads_in_three(several, alone):
    assert deviation(several("second half", 3)[0], alone("clip and decay")) < TOLERANCE


def test_every_rank_draws_its_own_dropout(several):
    first, second = several("native dropout", 2)
    assert first["parameter/dense2.weight"].tobytes() == second["parameter/dense2.weight"].tobytes()
    assert first["state/random"].tobytes() != second["state/random"].tobytes()


def test_local_batch_norm_keeps_parameters_equal(several, alone):
    first, second = several("local batch norm", 2)
    assert first["parameter/dense.weight"].tobytes() == second["parameter/dense.weight"].tobytes()
    assert first["statistics/norm.running_mean"].tobytes() != second["statistics/norm.running_mean"].tobytes()
    assert deviation(first, alone("local batch norm"), ("parameter",)) > 100 * TOLERANCE


def test_batch_norm_over_ranks_is_refused():
    model, training = CASES["local batch norm"].model, CASES["local batch norm"].training

    def refused(model=model, **settings):
        local = settings.pop("local_batch_norm", False)
        execution = Execution(parallel=Parallel(data=2, backend="mpi", local_batch_norm=local), **settings)
        return crosstrain_caffe.refusal("caffe", model, training, execution)

    assert "batch norm" in refused() and "local_batch_norm" in refused(semantics="native")
    assert not refused(semantics="native", local_batch_norm=True)
    assert not refused(parallel_cases.SMALL)
    assert not crosstrain_caffe.refusal("caffe", model, training, Execution())


def test_declared():
    features = CaffeEngine.info().features
    assert features["parallel.data"].support == features["parallel.mpi"].support == "exact"
    for name in ("parallel.native", "parallel.horovod", "parallel.batch_norm", "parallel.hosts", "parallel.tensor"):
        assert features[name].support == "unsupported" and features[name].note
