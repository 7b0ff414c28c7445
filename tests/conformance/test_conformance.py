"""Every engine of the catalogue against every case: computed within the bounds, or refused by name."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crosstrain.compare.certificate.checks import check_records
from crosstrain_service.capabilities import EXACT
from tests.support.catalogue import EngineId, choose

from .cases import BY_NAME, CASES, Case
from .conftest import note
from .declared import LISTED, documented, sign
from .suite import PRECISIONS, PROBE_SECONDS, Conformance, lacking, wanted

# The first test of an engine runs all its cases, and may have to wait for a compiler.
pytestmark = pytest.mark.timeout(PROBE_SECONDS + 120)

KNOWN = tomllib.loads((Path(__file__).parent / "known_failures.toml").read_text()).get("failure", [])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        found = choose(metafunc.config.getoption("--engines"))
        metafunc.parametrize("engine", found, ids=str, scope="session")


def known_failure(engine: EngineId, case: Case, precision: str) -> str:
    """Why a case is known to fail; empty if it is not."""
    for entry in KNOWN:
        same = entry["engine"] in (engine.name, str(engine)) and entry["case"] == case.name
        if same and entry.get("precision", precision) == precision:
            return str(entry["reason"])
    return ""


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(engine: EngineId, case: Case, precision: str, conformance: Callable[[EngineId], Conformance]) -> None:
    suite = conformance(engine)
    if not wanted(case, precision, suite.declared):
        pytest.skip("in float64 only some cases are repeated")
    missing = lacking(case, precision, suite.declared)
    if missing:
        code, reason, message = suite.refusal(case, precision)
        assert (code, reason) == ("FAILED_PRECONDITION", "UNSUPPORTED"), message
        for name in missing:
            assert name in message
        return
    outcome = suite.outcome(case, precision)
    checks = list(check_records(case.problem(precision), outcome.records))
    failures = [outcome.error] if outcome.error else []
    failures += [str(check) for check in checks if not check.holds]
    known = known_failure(engine, case, precision)
    if known:
        assert failures, f"passes now: remove its entry from known_failures.toml ({known})"
        pytest.xfail(known)
    note(str(engine), case.name, checks)
    assert not failures, f"{len(failures)} failures, first of all:\n" + "\n".join(failures[:8])
    assert len(checks) > 8 * len(case.steps), "the checks did not cover the steps"


#: Settings of an execution by the feature that they need.
SETTINGS: dict[str, dict[str, Any]] = {
    "semantics.native": {"semantics": "native"},
    "device.cuda": {"device": "cuda"},
    "execution.nondeterministic": {"deterministic": False},
    "execution.inter_threads": {"inter_threads": 2},
    "compiler.xla": {"compiler": "xla"},
    "compiler.torch.compile": {"compiler": "torch.compile"},
    "compiler.theano:fast_run": {"compiler": "theano:fast_run"},
}


@pytest.mark.parametrize("feature", SETTINGS)
def test_undeclared_setting_is_refused(
    engine: EngineId, feature: str, conformance: Callable[[EngineId], Conformance]
) -> None:
    suite = conformance(engine)
    if sign(suite.declared.get(feature)) != "no":
        pytest.skip(f"{engine} declares {feature}")
    precision = "float32" if sign(suite.declared.get("precision.float32")) != "no" else "float64"
    code, reason, message = suite.refusal(BY_NAME["conv_delta"], precision, **SETTINGS[feature])
    assert (code, reason) == ("FAILED_PRECONDITION", "UNSUPPORTED"), message
    # A device that is missing altogether is refused before the engine is asked.
    unsupported = f"engine {engine.name} does not support: {feature}"
    assert ("no cuda:0" if feature == "device.cuda" else unsupported) in message


def test_declared_features_are_documented(engine: EngineId, conformance: Callable[[EngineId], Conformance]) -> None:
    declared = conformance(engine).declared
    shown = documented(str(engine))
    assert shown, f"docs/semantics.md has no column for {engine}: run python -m tests.conformance.declared"
    # The page tells of services with all additions; Horovod and MPI may not be had on every machine.
    lacking = {name for name, feature in declared.items() if "in this environment" in feature.note}
    told = {name: sign(declared.get(name)) for name in LISTED if name not in lacking}
    assert {name: shown[name] for name in told} == told
    for name, feature in declared.items():
        if feature.support != EXACT:
            assert feature.note, f"{name} is {feature.support} without a note that says how or why"


def test_known_failures_name_cases_and_engines() -> None:
    for entry in KNOWN:
        assert entry["case"] in {case.name for case in CASES}
        assert choose(entry["engine"])
        assert entry["reason"]
