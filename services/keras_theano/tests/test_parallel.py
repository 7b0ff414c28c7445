"""Several ranks by MPI compute what one computes."""

import numpy as np
import pytest
from parallel_cases import CASES, ENGINES, EVERYTHING, LOCAL, SMALL

import crosstrain_keras_theano
from crosstrain_service.parallel import sums, trial
from crosstrain_service.training import Execution, Parallel, Ranks
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
def several(tmp_path_factory):
    """What each rank found, by case and number of ranks."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    for size, names in sorted(NAMES.items()):
        trial.run("parallel_cases", names, size, folder, timeout=900)
    return lambda name, size: trial.results(folder, name, size)


@pytest.fixture(scope="module")
def alone():
    """What one rank finds."""
    found = {}

    def compute(name):
        if name not in found:
            found[name] = trial.work(engine_class(CASES[name].engine), CASES[name], Ranks())
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


@pytest.mark.parametrize("name, size", SAME)
def test_ranks_compute_what_one_computes(several, alone, name, size):
    ranks, one = several(name, size), alone(name)
    for other in ranks[1:]:
        for key, value in ranks[0].items():
            if key.split("/")[0] in ("parameter", "optimizer"):
                assert other[key].tobytes() == value.tobytes(), key
    tolerance = TOLERANCE[CASES[name].execution["precision"]]
    assert deviation(ranks[0], one) < tolerance
    total = sum(value.nbytes for key, value in ranks[0].items() if key.startswith("parameter/"))
    for found in ranks:
        sent = found["reduced_bytes"] - total * len(found["losses"])
        assert (sent > 0) if CASES[name].model is EVERYTHING else sent == 0
        assert found["sync_seconds"] > 0
    parts = [[trial.share(batch, size, rank).part for rank in range(size)] for batch in CASES[name].batches]
    losses = np.array([found["losses"] for found in ranks]).T
    assert np.abs((losses * np.array(parts)).sum(axis=1) - one["losses"]).max() < 10 * tolerance


@pytest.mark.parametrize("fault", [name for name in trial.FAULTS if name])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_wrong_weight_of_shares_is_seen(several, alone, engine, fault):
    found, one = several(engine + " float32", 2)[0], alone(engine + " float32")
    names = CASES[engine + " float32"].parameters
    faulty = {"parameter/" + name: found["fault/%s/%s" % (fault, name)] for name in names}
    assert deviation(faulty, one, ("parameter",)) > 100 * TOLERANCE["float32"]


PROBED = [(name.split()[0], size) for name, size in SAME if name.endswith("everything")]


@pytest.mark.parametrize("engine, size", PROBED)
def test_a_probe_gives_the_gradients_of_the_whole_batch(several, alone, engine, size):
    ranks, one = several(engine + " everything", size), alone(engine + " everything")
    for key, value in one.items():
        group = key.split("/")[0]
        if group == "gradients":
            assert np.abs(sum(found[key] for found in ranks) - value).max() < 1e-12, key
        elif group in ("outputs", "output_gradients"):
            rows = np.concatenate([found[key] for found in ranks])
            assert rows.shape == value.shape and np.abs(rows - value).max() < 1e-12, key


@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_of_two_ranks_loads_in_three(several, alone, engine):
    found = several(engine + " second half", 3)[0]
    assert deviation(found, alone(engine + " everything")) < TOLERANCE["float64"]


@pytest.mark.parametrize("engine", ENGINES)
def test_native_ranks_draw_and_normalise_on_their_own(several, engine):
    first, second = several(engine + " local", 2)
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
