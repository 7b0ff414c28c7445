"""The compile directory of a run and the shared cache behind it."""

import json
import multiprocessing
import os
import subprocess
import sys
import time

import pytest

from crosstrain_keras_theano import compiledir, environment
from crosstrain_service.training import Execution

PLATFORM = "compiledir_somewhere"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A run with an empty compile directory and an empty cache; gives the platform folder of the run."""
    monkeypatch.setenv(compiledir.VARIABLE, str(tmp_path / "run" / "theano"))
    monkeypatch.setenv(compiledir.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("THEANO_FLAGS", "base_compiledir=%s,openmp=False" % (tmp_path / "run" / "theano"))
    folder = tmp_path / "run" / "theano" / PLATFORM
    folder.mkdir(parents=True)
    return folder


def _module(folder, name, module="m1", key=b"key"):
    path = folder / name
    path.mkdir()
    (path / (module + ".so")).write_bytes(b"compiled " + module.encode())
    (path / "mod.cpp").write_text("source")
    (path / "__init__.py").write_text("")
    if key is not None:
        (path / "key.pkl").write_bytes(key)
    return path


def _cached():
    folder = os.path.join(compiledir.cache_folder(), PLATFORM)
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _use_other_run(monkeypatch, tmp_path, name="other"):
    monkeypatch.setenv(compiledir.VARIABLE, str(tmp_path / name))
    return tmp_path / name / PLATFORM


def test_modules_travel_through_the_cache(place, tmp_path, monkeypatch):
    source = _module(place, "tmpa")
    _module(place, "lazylinker_ext", "lazylinker_ext", key=None)
    assert compiledir.publish(str(place)) == 2
    assert compiledir.publish(str(place)) == 0
    other = _use_other_run(monkeypatch, tmp_path)
    assert compiledir.prepare() == 2
    assert (other / "tmpa" / "m1.so").read_bytes() == b"compiled m1"
    assert (other / "tmpa" / "m1.so").stat().st_ino == (source / "m1.so").stat().st_ino
    assert sorted(path.name for path in (other / "tmpa").iterdir()) == ["__init__.py", "key.pkl", "m1.so"]
    # Theano rewrites keys in place: neither the cache nor another run may see that.
    (other / "tmpa" / "key.pkl").write_bytes(b"changed")
    third = _use_other_run(monkeypatch, tmp_path, "third")
    compiledir.prepare()
    assert (third / "tmpa" / "key.pkl").read_bytes() == b"key"
    assert (source / "key.pkl").read_bytes() == b"key"


def test_incomplete_and_known_modules_stay_out(place):
    _module(place, "tmpa")
    _module(place, "tmpsame")
    _module(place, "tmpkeyless", "m2", key=None)
    (place / "tmpempty").mkdir()
    (place / "lock_dir").mkdir()
    (place / "lock_dir" / "lock").write_text("1_2_host")
    assert compiledir.publish(str(place)) == 1
    assert len(_cached()) == 1


def test_a_failed_copy_leaves_nothing_behind(place, monkeypatch):
    _module(place, "tmpa")

    def fail(old, new):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiledir.shutil, "copyfile", fail)
    assert compiledir.publish(str(place)) == 0
    assert not [name for name in _cached() if not name.startswith(".partial-")]
    monkeypatch.undo()


def test_partial_folders_of_the_dead_are_removed(place, tmp_path, monkeypatch):
    _module(place, "tmpa")
    compiledir.publish(str(place))
    cache = os.path.join(compiledir.cache_folder(), PLATFORM)
    for name, age in ((".partial-old", 7200), (".partial-new", 0)):
        os.mkdir(os.path.join(cache, name))
        os.utime(os.path.join(cache, name), (time.time() - age,) * 2)
    _module(place, "tmpb", "m2")
    assert compiledir.publish(str(place)) == 1
    assert _cached() == [".partial-new", "tmpa", "tmpb"]
    assert compiledir.prepare() == 0, "nothing that is there is replaced"
    assert (place / "tmpa" / "mod.cpp").exists()
    other = _use_other_run(monkeypatch, tmp_path)
    assert compiledir.prepare() == 2
    assert sorted(path.name for path in other.iterdir()) == ["tmpa", "tmpb"]


def test_a_cache_that_others_may_write_to_is_not_used(place, tmp_path, monkeypatch):
    _module(place, "tmpa")
    compiledir.publish(str(place))
    os.chmod(compiledir.cache_folder(), 0o777)
    other = _use_other_run(monkeypatch, tmp_path)
    assert compiledir.prepare() == 0
    assert not other.exists()
    _module(place, "tmpb", "m2")
    monkeypatch.setenv(compiledir.VARIABLE, str(place.parent))
    assert compiledir.publish(str(place)) == 0


def test_a_cache_that_cannot_be_written_costs_nothing(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(compiledir.CACHE_VARIABLE, str(tmp_path / "file"))
    _module(place, "tmpa")
    assert compiledir.publish(str(place)) == 0
    assert compiledir.prepare() == 0


def test_flags_and_versions_have_caches_of_their_own(place, monkeypatch):
    first = compiledir.cache_folder()
    monkeypatch.setenv("THEANO_FLAGS", "base_compiledir=/elsewhere,openmp=False")
    assert compiledir.cache_folder() == first
    monkeypatch.setenv("THEANO_FLAGS", "base_compiledir=/elsewhere,openmp=True")
    assert compiledir.cache_folder() != first


def _publish_many(arguments):
    folder, cache, flags, names = arguments
    os.environ.update(
        {compiledir.VARIABLE: os.path.dirname(folder), compiledir.CACHE_VARIABLE: cache, "THEANO_FLAGS": flags}
    )
    return sum(compiledir.publish(folder) for _ in range(len(names)))


def test_concurrent_runs(place, tmp_path):
    """Runs that compiled the same modules at once add each of them once."""
    work = []
    for run in range(4):
        folder = tmp_path / ("run%d" % run) / PLATFORM
        folder.mkdir(parents=True)
        for number in range(20):
            _module(folder, "tmp%d_%d" % (run, number), "m%d" % number)
        work.append((str(folder), str(tmp_path / "cache"), "openmp=False", list(range(20))))
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        added = pool.map(_publish_many, work)
    os.environ["THEANO_FLAGS"] = "openmp=False"
    modules = [
        name
        for folder in _cached()
        for name in os.listdir(os.path.join(compiledir.cache_folder(), PLATFORM, folder))
        if name.endswith(".so")
    ]
    assert sum(added) == 20
    assert sorted(modules) == sorted("m%d.so" % number for number in range(20))


_RUN = """
import json
from crosstrain_keras_theano.device import T, theano
from crosstrain_keras_theano import compiledir
from theano.gof.cc import get_module_cache
x = T.matrix()
value = theano.function([x], T.sum(T.exp(x) * 3))([[0.0, 0.0]])
compiled = get_module_cache().stats[2]
published = compiledir.publish(theano.config.compiledir)
print(json.dumps([float(value), compiled, published, theano.config.compiledir]))
"""


def _run(tmp_path, **extra):
    variables = dict(os.environ)
    variables.update(environment("lasagne", Execution(), str(tmp_path)))
    variables.update(extra)
    variables[compiledir.CACHE_VARIABLE] = str(tmp_path / "cache")
    output = subprocess.run([sys.executable, "-c", _RUN], env=variables, check=True, stdout=subprocess.PIPE).stdout
    return variables, json.loads(output.decode().splitlines()[-1])


def test_a_second_run_compiles_nothing_and_no_lock_is_shared(tmp_path):
    """Also with a lock left behind, by a process on another host, in the user's and in the first run's
    directory.
    """
    home = tmp_path / "home"
    variables, (value, compiled, published, folder) = _run(tmp_path, HOME=str(home))
    assert (value, published) == (6.0, compiled) and compiled > 0
    assert not os.path.exists(variables[compiledir.VARIABLE]), "removed at exit"
    for base in (home / ".theano" / os.path.basename(folder), tmp_path / "old" / os.path.basename(folder)):
        (base / "lock_dir").mkdir(parents=True)
        (base / "lock_dir" / "lock").write_text("1_2345_another.host")
    begin = time.time()
    _, (value, compiled, published, other) = _run(tmp_path, HOME=str(home))
    assert (value, compiled, published) == (6.0, 0, 0)
    assert other != folder
    assert time.time() - begin < 60, "Theano waits two minutes for a lock"
