"""Engines for tests of the runtime: the reference, made slow or made to fail."""

ENGINES = {
    "slow": "crosstrain_slow.engine:SlowEngine",
    "crashing": "crosstrain_slow.engine:CrashingEngine",
    "orphaning": "crosstrain_slow.engine:OrphaningEngine",
    "raising": "crosstrain_slow.engine:RaisingEngine",
    "diverging": "crosstrain_slow.engine:DivergingEngine",
    "stubborn": "crosstrain_slow.engine:StubbornEngine",
    "broken": "crosstrain_slow.missing:Nothing",
}


def environment(engine, execution, run_dir):
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
