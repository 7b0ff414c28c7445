"""The fingerprint: complete text facts without an absolute path."""

import re

import pytest
from local import Local, parts

from crosstrain_service import fingerprint
from crosstrain_service.engine import EngineInfo
from crosstrain_service.errors import without_paths
from crosstrain_service.training import Execution

INFO = EngineInfo("engine", "1.2", {}, {"blas": "OpenBLAS 0.3 from /opt/lib/libopenblas.so"})
#: A path from the root, wherever a value may hide it.
PATH = re.compile(r"(^|[\s=:,;'\"(\[])/\w")


def test_no_fact_holds_an_absolute_path(monkeypatch):
    monkeypatch.setenv("THEANO_FLAGS", "device=cpu,base_compiledir=/home/someone/.theano,gcc.cxxflags=-I/usr/x")
    monkeypatch.setenv("XLA_FLAGS", '--xla_gpu_cuda_data_dir=/usr/local/cuda --xla_dump_to="/tmp/a b"')
    monkeypatch.setenv("KERAS_BACKEND", "theano")
    facts = fingerprint.facts(INFO, Execution(cpu_affinity=(0, 1), compiler="xla"))
    assert facts["env.THEANO_FLAGS"].startswith("device=cpu,base_compiledir=<path>,gcc.cxxflags=")
    assert facts["library.blas"] == "OpenBLAS 0.3 from <path>" and facts["env.KERAS_BACKEND"] == "theano"
    assert facts["threads.affinity"] == "0,1" and facts["maths.compiler"] == "xla"
    for name, value in facts.items():
        assert isinstance(value, str) and not PATH.search(value), name


def test_facts_of_an_engine_are_cleaned_too(tmp_path):
    from crosstrain_reference.engine import ReferenceEngine

    class Engine(ReferenceEngine):
        def fingerprint(self):
            return {"blas": "/usr/lib/libblas.so.3"}

    facts = parts(Local(tmp_path).train(Engine), "fingerprint")[0].facts
    assert facts["maths.blas"] == "<path>" and facts["training.seed"] == "5"
    assert not [name for name, value in facts.items() if PATH.search(value)]


@pytest.mark.parametrize("text, clean", [
    ("cannot open /usr/lib/x.so: no such file", "cannot open <path>: no such file"),
    ("File '/root/a b'", "File '<path> b'"), ("and/or 3/4 n/a / 2", "and/or 3/4 n/a / 2"),
    ("a=/x,b=/y", "a=<path>,b=<path>"), ("/", "/"), ("<path>/x", "<path>/x")])
def test_paths_are_replaced_and_nothing_else(text, clean):
    assert without_paths(text) == clean
