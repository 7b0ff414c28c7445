"""Several ranks by MPI compute what one computes."""

import parallel_cases
import pytest
from parallel_cases import CASES, ENGINES, EVERYTHING, LOCAL, SMALL

import crosstrain_keras_theano
from crosstrain_service.parallel import sums, trial
from crosstrain_service.training import Execution, Parallel
from support import engine_class

if sums.obstacle():
    pytest.skip(sums.obstacle(), allow_module_level=True)

#: Rounding of sums in another order, relative to the largest value of a tensor.
TOLERANCE = {"float64": 1e-12, "float32": 2e-6}
#: By number of ranks.
NAMES = {
    2: [name for name in CASES if not name.endswith("second half")],
    3: [engine + " second half" for engine in ENGINES],
    4: ["lasagne everything"],
}
SAME = [(name, size) for size, names in NAMES.items() for name in names if not name.endswith(("local", "second half"))]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return trial.Findings(parallel_cases, NAMES, str(tmp_path_factory.mktemp("ranks")), engine_class, timeout=900)


@pytest.mark.parametrize("name, size", SAME)
def test_ranks_compute_what_one_computes(found, name, size):
    tolerance = TOLERANCE[CASES[name].execution["precision"]]
    found.assert_like_one(name, size, tolerance, 10 * tolerance, more_sent=CASES[name].model is EVERYTHING)


@pytest.mark.parametrize("fault", [name for name in trial.FAULTS if name])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_wrong_weight_of_shares_is_seen(found, engine, fault):
    assert found.deviation_of_fault(engine + " float32", 2, fault) > 100 * TOLERANCE["float32"]


@pytest.mark.parametrize("name, size", [(name, size) for name, size in SAME if name.endswith("everything")])
def test_a_probe_gives_the_gradients_of_the_whole_batch(found, name, size):
    found.assert_probe_like_one(name, size, 1e-12, 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_of_two_ranks_loads_in_three(found, engine):
    first = found.several(engine + " second half", 3)[0]
    assert trial.deviation(first, found.alone(engine + " everything")) < TOLERANCE["float64"]


@pytest.mark.parametrize("engine", ENGINES)
def test_native_ranks_draw_and_normalise_on_their_own(found, engine):
    first, second = found.several(engine + " local", 2)
    for key in (key for key in first if key.startswith("parameter/")):
        assert first[key].tobytes() == second[key].tobytes(), key
    assert first["state/random/0"].tobytes() != second["state/random/0"].tobytes()
    assert first["statistics/norm.running_mean"].tobytes() != second["statistics/norm.running_mean"].tobytes()


@pytest.mark.parametrize("engine", ENGINES)
def test_refused_and_declared(engine):
    training = CASES[engine + " local"].training

    def refused(model, **settings):
        local = settings.pop("local_batch_norm", False)
        execution = Execution(parallel=Parallel(data=2, backend="mpi", local_batch_norm=local), **settings)
        return crosstrain_keras_theano.refusal(engine, model, training, execution)

    assert "local_batch_norm" in refused(LOCAL, semantics="native")
    assert not refused(LOCAL, semantics="native", local_batch_norm=True)
    assert not refused(LOCAL) and not refused(SMALL, semantics="native")
    features = engine_class(engine).info().features
    assert features["parallel.data"].support == features["parallel.mpi"].support == "exact"
    for name in ("parallel.native", "parallel.horovod", "parallel.hosts", "parallel.tensor"):
        assert features[name].support == "unsupported" and features[name].note
