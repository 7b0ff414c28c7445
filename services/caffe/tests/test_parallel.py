"""Several ranks by MPI compute what one computes."""

import parallel_cases
import pytest
from parallel_cases import CASES

import crosstrain_caffe
from crosstrain_caffe.engine import CaffeEngine
from crosstrain_service.parallel import sums, trial
from crosstrain_service.training import Execution, Parallel

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
def found(tmp_path_factory):
    return trial.Findings(parallel_cases, NAMES, str(tmp_path_factory.mktemp("ranks")), lambda name: CaffeEngine)


@pytest.mark.parametrize("name, size", [(name, size) for size in NAMES for name in SAME if name in NAMES[size]])
def test_ranks_compute_what_one_computes(found, name, size):
    found.assert_like_one(name, size, TOLERANCE, 1e-5)


@pytest.mark.parametrize("fault", [name for name in trial.FAULTS if name])
def test_a_wrong_weight_of_shares_is_seen(found, fault):
    assert found.deviation_of_fault("momentum", 2, fault) > 100 * TOLERANCE


def test_a_probe_gives_the_gradients_of_the_whole_batch(found):
    found.assert_probe_like_one("masks", 3, 1e-6, 1e-5)


def test_a_checkpoint_of_two_ranks_loads_in_three(found):
    assert trial.deviation(found.several("second half", 3)[0], found.alone("clip and decay")) < TOLERANCE


def test_every_rank_draws_its_own_dropout(found):
    first, second = found.several("native dropout", 2)
    assert first["parameter/dense2.weight"].tobytes() == second["parameter/dense2.weight"].tobytes()
    assert first["state/random"].tobytes() != second["state/random"].tobytes()


def test_local_batch_norm_keeps_parameters_equal(found):
    first, second = found.several("local batch norm", 2)
    assert first["parameter/dense.weight"].tobytes() == second["parameter/dense.weight"].tobytes()
    assert first["statistics/norm.running_mean"].tobytes() != second["statistics/norm.running_mean"].tobytes()
    assert trial.deviation(first, found.alone("local batch norm"), ("parameter",)) > 100 * TOLERANCE


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
