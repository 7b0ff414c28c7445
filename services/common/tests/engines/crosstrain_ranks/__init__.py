"""The reference engine on several ranks, for tests of what starts and watches them: gradients are added by files."""

ENGINES = {
    "ranks": "crosstrain_ranks.engine:RanksEngine",
    "one-process": "crosstrain_ranks.engine:OneProcessEngine",
    "raising-rank": "crosstrain_ranks.engine:RaisingEngine",
    "killed-rank": "crosstrain_ranks.engine:KilledEngine",
    "leaving-rank": "crosstrain_ranks.engine:LeavingEngine",
    "hanging-rank": "crosstrain_ranks.engine:HangingEngine",
    "mismatched-ranks": "crosstrain_ranks.engine:MismatchedEngine",
    "slow-start": "crosstrain_ranks.engine:SlowStartEngine",
    "drifting-rank": "crosstrain_ranks.engine:DriftingEngine",
}


def environment(engine, execution, run_dir):
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TEST_RANK": str(execution.ranks.rank),
            "TEST_FOLDER": run_dir}


def processes(engine, execution, ranks):
    return 1 if engine == "one-process" else ranks


def refusal(engine, model, training, execution):
    return "clipping on 5 ranks" if training.clip_norm and execution.parallel.data == 5 else ""
