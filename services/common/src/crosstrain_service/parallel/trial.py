"""Engines on several MPI ranks, for the tests of adapters: without a service, but through their real training step.

``python -m crosstrain_service.parallel.trial MODULE FOLDER NAME...`` is what every rank executes: ``MODULE.CASES``
maps names to :class:`Case`, and every rank writes what it has computed to ``FOLDER/NAME-SIZE-RANK.npz``.
"""

import dataclasses
import importlib
import os
import subprocess
import sys
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

from ..engine import Batch, Engine  # noqa: F401  in a type comment
from ..model import Model
from ..testing import ListLoop
from ..training import Execution, Parallel, Ranks, Training
from . import mpi
from .shares import share_sizes, share_slice

#: Wrong weights of a share, which a comparison with one rank must not miss: name of the fault and (samples, total).
FAULTS = {
    "": lambda samples, total, size: (samples, total),
    "sum": lambda samples, total, size: (samples, samples or 1),
    "mean of means": lambda samples, total, size: (samples, samples * size or 1),
    "divided twice": lambda samples, total, size: (samples, total * size),
}


class Case(NamedTuple):
    """What ranks are to do with one engine.

    ``batches``: whole batches. ``halfway``: a number of batches after which the state is recorded; ``state``: a file
    written so, in "{folder}", to go on from. ``probe``: whether to record intermediate values of the first batch.
    ``faults``: of :data:`FAULTS`, trained as well, from the beginning.
    """

    engine: str
    model: Model
    training: Training
    batches: Sequence[Batch]
    parameters: Dict[str, np.ndarray]
    execution: Dict[str, Any] = {}
    halfway: int = 0
    state: str = ""
    probe: bool = False
    faults: Sequence[str] = ()


class _Timed(ListLoop):
    """Adds up the waiting time that is reported."""

    sync_seconds = 0.0

    def step_done(self, loss: Any, correct: Any = None, sync_seconds: float = 0.0, copy_seconds: float = 0.0) -> None:
        super().step_done(loss, correct, sync_seconds, copy_seconds)
        self.sync_seconds += sync_seconds


def share(batch: Batch, size: int, index: int, fault: str = "") -> Batch:
    """One share of a whole batch; a row stands in where it is empty."""
    total = len(batch.labels)
    samples = share_sizes(total, size)[index]
    rows = share_slice(total, size, index) if samples else slice(0, 1)
    masks = {name: mask[rows] for name, mask in batch.masks.items()}
    counted, of = FAULTS[fault](samples, total, size)
    return Batch(batch.step, batch.x[rows], batch.labels[rows], batch.learning_rate, masks, counted, of)


def work(kind: Any, case: Case, ranks: Ranks) -> Dict[str, np.ndarray]:
    """What one rank computes: "<group>/<name>" by name, "fault/<fault>/<name>" the parameters after a fault."""
    execution = Execution(parallel=Parallel(data=ranks.size, backend="mpi"), ranks=ranks)
    execution = dataclasses.replace(execution, **case.execution)
    engine = kind(case.model, case.training, execution)  # type: Engine
    engine.load_parameters(case.parameters)
    initial = engine.state()
    if case.state:
        with np.load(case.state.format(folder=ranks.folder), allow_pickle=False) as file:
            engine.load_state({name[8:]: file[name] for name in file.files if name.startswith("halfway/")})
    shares = [share(batch, ranks.size, ranks.rank) for batch in case.batches]
    found = {}  # type: Dict[str, np.ndarray]
    if case.probe:
        inside = engine.intermediates(shares[0])
        for group in ("outputs", "output_gradients", "gradients"):
            _put(found, group, getattr(inside, group))
    before = engine.reduced_bytes() or 0
    losses, waited = [], 0.0  # type: List[float], float
    for part in (shares[:case.halfway], shares[case.halfway:]):
        if part:
            loop = _Timed(part)
            engine.train(loop)
            losses += loop.losses
            waited += loop.sync_seconds
        if case.halfway:
            _put(found, "halfway", engine.state() if len(losses) == case.halfway else {})
    found["reduced_bytes"] = np.asarray((engine.reduced_bytes() or 0) - before)
    found["losses"], found["sync_seconds"] = np.asarray(losses), np.asarray(waited)
    for group, values in (("parameter", engine.parameters()), ("optimizer", engine.optimizer_state()),
                          ("state", engine.state()), ("statistics", engine.statistics())):
        _put(found, group, values)
    for fault in case.faults if ranks.size > 1 else ():
        engine.load_state(initial)
        engine.train(_Timed([share(batch, ranks.size, ranks.rank, fault) for batch in case.batches]))
        _put(found, "fault/" + fault, engine.parameters())
    engine.close()
    return found


def _put(found: Dict[str, np.ndarray], group: str, values: Dict[str, np.ndarray]) -> None:
    found.update(("%s/%s" % (group, name), np.array(value)) for name, value in values.items())


def run(module: str, names: Sequence[str], size: int, folder: str, timeout: float = 300.0) -> None:
    """Executes cases on ``size`` ranks of this host. Raises ``RuntimeError`` with their output if one fails."""
    launcher = mpi.launcher()
    assert launcher is not None
    command = [launcher, "-n", str(size), sys.executable, "-m", __name__, module, folder] + list(names)
    path = os.pathsep.join(item for item in sys.path if item)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=timeout, env=dict(os.environ, PYTHONPATH=path), check=False)
    if done.returncode:
        raise RuntimeError(done.stdout.decode("utf-8", "replace")[-4000:])


def results(folder: str, name: str, size: int) -> List[Dict[str, np.ndarray]]:
    """What every rank wrote for a case."""
    found = []
    for rank in range(size):
        with np.load(os.path.join(folder, "%s-%d-%d.npz" % (name, size, rank)), allow_pickle=False) as file:
            found.append({key: file[key] for key in file.files})
    return found


def deviation(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray],
              groups: Sequence[str] = ("parameter", "optimizer")) -> float:
    """Largest difference of any tensor of some groups, relative to its largest value (or to 0.001)."""
    worst = 0.0
    for name, value in expected.items():
        if name.split("/")[0] in groups:
            scale = max(float(np.abs(value).max()), 1e-3)
            worst = max(worst, float(np.abs(found[name] - value).max()) / scale)
    return worst


class Findings:
    """What cases give on several ranks, executed at once, and on one, executed when asked for.

    Args:
        cases: the module that is executed, with ``CASES``.
        names: those of the cases by number of ranks.
        folder: where ranks write.
        kind: the class of an engine by its name.
    """

    def __init__(self, cases: Any, names: Mapping[int, Sequence[str]], folder: str, kind: Callable[[str], Any],
                 timeout: float = 300.0) -> None:
        for size, chosen in sorted(names.items()):
            run(cases.__name__, chosen, size, folder, timeout)
        self._cases = cases.CASES  # type: Dict[str, Case]
        self._folder = folder
        self._kind = kind
        self._alone = {}  # type: Dict[str, Dict[str, np.ndarray]]

    def several(self, name: str, size: int) -> List[Dict[str, np.ndarray]]:
        """What each rank found."""
        return results(self._folder, name, size)

    def alone(self, name: str) -> Dict[str, np.ndarray]:
        """What one rank finds."""
        if name not in self._alone:
            case = self._cases[name]
            self._alone[name] = work(self._kind(case.engine), case, Ranks())
        return self._alone[name]

    def assert_like_one(self, name: str, size: int, tolerance: float, loss_tolerance: float,
                        more_sent: bool = False) -> None:
        """All ranks end alike, as one does; their losses add up; sent are all gradients in every step.

        ``more_sent``: whether ranks have to exchange more than gradients.
        """
        ranks, one = self.several(name, size), self.alone(name)
        for other in ranks[1:]:
            for key, value in ranks[0].items():
                if key.split("/")[0] in ("parameter", "optimizer"):
                    assert other[key].tobytes() == value.tobytes(), key
        worst = deviation(ranks[0], one)
        assert worst < tolerance, worst
        total = sum(value.nbytes for key, value in ranks[0].items() if key.startswith("parameter/"))
        for found in ranks:
            more = found["reduced_bytes"] - total * len(found["losses"])
            assert (more > 0) if more_sent else (more == 0), more
            assert found["sync_seconds"] > 0, "no waiting time was reported"
        parts = [[share(batch, size, rank).part for rank in range(size)] for batch in self._cases[name].batches]
        losses = np.array([found["losses"] for found in ranks]).T
        worst = float(np.abs((losses * np.array(parts)).sum(axis=1) - one["losses"]).max())
        assert worst < loss_tolerance, worst

    def deviation_of_fault(self, name: str, size: int, fault: str) -> float:
        """How far parameters are from those of one rank after a fault of :data:`FAULTS`."""
        found = self.several(name, size)[0]
        names = self._cases[name].parameters
        faulty = {"parameter/" + key: found["fault/%s/%s" % (fault, key)] for key in names}
        return deviation(faulty, self.alone(name), ("parameter",))

    def assert_probe_like_one(self, name: str, size: int, gradient_tolerance: float, tolerance: float) -> None:
        """Recorded gradients add up to those of one rank, and recorded rows are its rows."""
        ranks, one = self.several(name, size), self.alone(name)
        for key, value in one.items():
            group = key.split("/")[0]
            if group == "gradients":
                assert np.abs(sum(found[key] for found in ranks) - value).max() < gradient_tolerance, key
            elif group in ("outputs", "output_gradients"):
                rows = np.concatenate([found[key] for found in ranks])
                assert rows.shape == value.shape and np.abs(rows - value).max() < tolerance, key


def main() -> int:
    """Executes the cases named on the command line as one rank."""
    module, folder, names = sys.argv[1], sys.argv[2], sys.argv[3:]
    size = int(os.environ["PMI_SIZE"])
    ranks = Ranks(rank=mpi.rank(), size=size, local_rank=mpi.rank(), local_size=size, folder=folder)
    cases = importlib.import_module(module)
    execution = Execution(parallel=Parallel(data=size, backend="mpi"), ranks=ranks)
    package = importlib.import_module(cases.PACKAGE)  # type: ignore[attr-defined]
    kinds = {}
    for name in names:
        case = cases.CASES[name]  # type: ignore[attr-defined]
        if not kinds:
            private = os.path.join(folder, "work-%d-%d" % (size, ranks.rank))
            os.makedirs(private, exist_ok=True)
            os.environ.update(package.environment(case.engine, execution, private))  # type: ignore[attr-defined]
        if case.engine not in kinds:
            source, _, attribute = package.ENGINES[case.engine].partition(":")  # type: ignore[attr-defined]
            kinds[case.engine] = getattr(importlib.import_module(source), attribute)
        found = work(kinds[case.engine], case, ranks)
        np.savez(os.path.join(folder, "%s-%d-%d.npz" % (name, size, ranks.rank)), **found)
    from .sums import finish

    finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
