"""The rules of the verdict, engine by engine and for the whole job."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compare.verdict.verdict_cases import (
    BROKEN,
    FAILED,
    REFERENCE,
    TIES,
    certificate,
    check,
    engine,
    envelope,
    evidence,
    flip,
    row,
    trace,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crosstrain.compare.freerun.traces import LossTrace
from crosstrain.compare.verdict import (
    CauseEvidence,
    CertificateEvidence,
    EngineEvidence,
    EnvelopeEvidence,
    Evidence,
    Failure,
    judge,
    read_verdict,
    verdict_json,
)


def _judged(*engines: EngineEvidence, **more: Any) -> dict[str, Any]:
    document = judge(evidence(*engines, **more))
    assert read_verdict(verdict_json(document).encode()) == document
    return document


def test_rounding() -> None:
    found = _judged(engine())
    assert (found["verdict"], found["exit_code"], found["next_steps"]) == ("ROUNDING", 0, [])
    assert found["sentence"] == (
        "PyTorch 2.13.0 and Lasagne 0.1 computed the same function; their losses differ by rounding only "
        "(largest local error 0.4 of the derived bound; 2 checks)."
    )
    assert row(found)["free_run"]["explained"] is True


def test_identical_needs_tensors_and_losses() -> None:
    tensors = {"start/0/output/conv1": "a1", "weights/conv1.weight": "b2"}
    one = engine("lasagne", "0.1", trace=trace(), tensors=tensors)
    same = engine(trace=trace(), tensors=tensors)
    found = _judged(engines=(one, same))
    assert (found["verdict"], found["exit_code"]) == ("IDENTICAL", 0)
    assert found["sentence"] == "PyTorch 2.13.0 gave bitwise the same losses and tensors as Lasagne 0.1."
    assert found["pairs"][0]["verdict"] == "IDENTICAL"
    for other in (
        engine(trace=trace(1e-8), tensors=tensors),
        engine(trace=trace(), tensors={**tensors, "weights/conv1.weight": "c3"}),
        engine(trace=trace(), tensors={}),
    ):
        found = _judged(engines=(one, other))
        assert found["verdict"] == found["pairs"][0]["verdict"] == "ROUNDING"
    shorter = engine(trace=LossTrace(np.arange(60), trace().losses[:60]), tensors=tensors)
    found = _judged(engines=(one, shorter))
    assert found["verdict"] == found["pairs"][0]["verdict"] == "INCONCLUSIVE"
    assert found["pairs"][0]["losses_equal"] is False


def test_losses_alone_show_nothing() -> None:
    """Equal to the last bit or not: without a check of a step, the verdict is open."""
    for run in (trace(), trace(1e-9)):
        found = _judged(engine(certificates=(), reason="this version keeps no gradients", trace=run))
        assert (found["verdict"], found["exit_code"]) == ("INCONCLUSIVE", 2)
        assert "this version keeps no gradients" in found["sentence"]
        assert any("crosstrain check" in step for step in found["next_steps"])
        assert found["pairs"][0]["verdict"] == "INCONCLUSIVE"


def test_a_named_mismatch() -> None:
    found = _judged(engine("keras-theano", "2.3.1", certificates=(BROKEN,), causes=(TIES,)))
    assert (found["verdict"], found["exit_code"]) == ("MISMATCH", 1)
    assert found["sentence"] == (
        "Keras-Theano 2.3.1 does not compute the same function: max-pooling sends the gradient to every tied "
        "maximum (first seen at step 0, layer pool1, backward). To restore parity: Choose the canonical semantics."
    )
    assert found["next_steps"] == ["Keras-Theano 2.3.1, gradient at ties: Choose the canonical semantics."]
    found_row = row(found, "keras-theano@2.3.1")
    assert found_row["certificate"]["first_failure"]["layer"] == "pool1"
    assert found_row["certificate"]["layers"][0]["holds"] is False
    assert found_row["causes"][0]["ids"] == ["pool.ties_all"]
    assert found["pairs"][0]["verdict"] == "MISMATCH"


def test_an_unknown_cause_shows_the_worst_element() -> None:
    found = _judged(engine(certificates=(BROKEN,)))
    assert found["verdict"] == "MISMATCH"
    assert "cause unknown (first seen at step 0, layer pool1, backward; at (0, 1, 2, 3) it has 1 where 0.5" in (
        found["sentence"]
    )


def test_a_failed_check_outweighs_everything() -> None:
    """However close the losses, and whatever else holds."""
    broken = engine(
        certificates=(certificate(), BROKEN), trace=trace(), flip=flip(), tensors={"x": "1"}, causes=(TIES,)
    )
    reference = engine("lasagne", "0.1", trace=trace(), tensors={"x": "1"})
    found = _judged(engines=(reference, broken), envelope=envelope())
    assert row(found)["verdict"] == found["verdict"] == "MISMATCH"
    assert found["pairs"][0]["verdict"] == "IDENTICAL", "between the two, nothing differs"


@pytest.mark.parametrize("ratio", [math.inf, math.nan, 1.0000001])
def test_checks_that_cannot_be_compared_fail(ratio: float) -> None:
    found = _judged(engine(certificates=(certificate(check(ratio=ratio)),)))
    assert found["verdict"] == "MISMATCH"


def test_a_check_on_the_bound_holds() -> None:
    assert _judged(engine(certificates=(certificate(check(ratio=1.0)),)))["verdict"] == "ROUNDING"


def test_inside_the_envelope() -> None:
    found = _judged(engine(trace=trace(1e-2, start=20)), envelope=envelope())
    assert found["verdict"] == "ROUNDING"
    assert "The runs parted at step 20 and stayed within what rounding does to this job." in found["sentence"]
    assert row(found)["free_run"]["outside_envelope_share"] < 0.05
    assert row(found)["free_run"]["rank_test"]["conclusive"] is False
    assert found["envelope"]["runs"] == 4
    assert len(found["envelope"]["steps"]) == 100


def test_outside_the_envelope_without_a_flip_is_open() -> None:
    found = _judged(engine(trace=trace(0.3, start=20)), envelope=envelope())
    assert (found["verdict"], found["exit_code"]) == ("INCONCLUSIVE", 2)
    assert "left the envelope of rounding" in found["sentence"]
    assert any("19" in step for step in found["next_steps"])
    assert found["pairs"][0]["verdict"] == "INCONCLUSIVE"


def test_a_departure_traced_to_a_flip_is_rounding() -> None:
    far = trace(0.3, start=20)
    assert _judged(engine(trace=far, flip=flip(20)), envelope=envelope())["verdict"] == "ROUNDING"
    found = _judged(engine(trace=far, flip=flip(3)))
    assert found["verdict"] == "ROUNDING"
    assert "at step 3 1 of 200,704 decisions of layer pool2 fell otherwise" in found["sentence"]
    assert row(found)["free_run"]["flip"]["layer"] == "pool2"
    assert found["pairs"][0]["verdict"] == "ROUNDING"


@pytest.mark.parametrize("given", [flip(21), flip(3, ratio=1.01), flip(3, ratio=math.nan), None])
def test_other_flips_explain_nothing(given: Any) -> None:
    found = _judged(engine(trace=trace(0.3, start=20), flip=given), envelope=envelope())
    assert found["verdict"] == "INCONCLUSIVE"


def test_too_few_perturbed_runs_are_inconclusive() -> None:
    found = _judged(engine(trace=trace(1e-3, start=20)), envelope=envelope(runs=3))
    assert found["verdict"] == "INCONCLUSIVE"
    assert "too few perturbed runs" in found["sentence"]
    assert any("3 perturbed runs; at least 4" in step for step in found["next_steps"])


def test_no_envelope_and_a_departure_is_inconclusive() -> None:
    assert _judged(engine(trace=trace(1e-3)))["verdict"] == "INCONCLUSIVE"


def test_a_check_job_needs_no_training() -> None:
    one = engine("lasagne", "0.1", trace=None)
    found = _judged(engines=(one, engine(trace=None)), task="check")
    assert (found["verdict"], found["exit_code"]) == ("ROUNDING", 0)
    assert row(found)["free_run"] is None
    assert found["pairs"][0]["verdict"] == "ROUNDING"


def test_a_training_job_needs_training() -> None:
    for engines in ((REFERENCE, engine(trace=None)), (engine("lasagne", "0.1", trace=None), engine())):
        found = _judged(engines=engines)
        assert found["verdict"] == "INCONCLUSIVE"
    empty = LossTrace(np.arange(0), np.empty(0))
    found = _judged(engine(trace=empty))
    assert row(found)["verdict"] == "INCONCLUSIVE"
    assert "no finished training run" in row(found)["sentence"]


def test_losses_that_are_not_finite() -> None:
    losses = trace().losses.copy()
    losses[30:] = np.nan
    broken = LossTrace(np.arange(100), losses)
    found = _judged(engine(trace=broken), envelope=envelope())
    assert row(found)["verdict"] == "INCONCLUSIVE"
    assert row(found)["free_run"]["max_difference"] == "inf"
    assert row(found)["free_run"]["departed_step"] == 30
    both = _judged(engines=(engine("lasagne", "0.1", trace=broken), engine(trace=broken)))
    assert both["verdict"] == "ROUNDING"
    assert "not finite at step 30" in row(both)["sentence"]


def test_runs_of_different_lengths() -> None:
    short = LossTrace(np.arange(60), trace(1e-8).losses[:60])
    found = _judged(engine(trace=short))
    assert row(found)["verdict"] == "INCONCLUSIVE"
    assert "60 and 100" in row(found)["sentence"]
    later = LossTrace(np.arange(60), trace(1e-3, start=10).losses[:60])
    found = _judged(engine(trace=later), envelope=envelope())
    assert row(found)["verdict"] == "ROUNDING", "early stopping may end runs that rounding set apart"
    assert "compared over the 60 steps that both runs have" in row(found)["sentence"].lower()
    apart = LossTrace(np.arange(200, 260), np.ones(60))
    assert "no step in common" in row(_judged(engine(trace=apart)))["sentence"]


def test_the_whole_is_the_worst() -> None:
    good, open_, bad = engine(), engine("caffe", "1.0", certificates=()), engine("keras-theano", "2.3.1",
                                                                                certificates=(BROKEN,))  # fmt: skip
    assert _judged(good)["verdict"] == "ROUNDING"
    assert _judged(good, open_)["verdict"] == "INCONCLUSIVE"
    found = _judged(good, open_, bad)
    assert (found["verdict"], found["exit_code"]) == ("MISMATCH", 1)
    assert len(found["pairs"]) == 6
    assert _judged()["verdict"] == "ROUNDING"
    none = _judged(engines=(), reference="")
    assert (none["verdict"], none["exit_code"]) == ("INCONCLUSIVE", 2)


def test_a_broken_reference_is_a_mismatch() -> None:
    found = _judged(engines=(engine("lasagne", "0.1", trace=trace(), certificates=(BROKEN,)), engine()))
    assert row(found, "lasagne@0.1")["verdict"] == "MISMATCH"
    assert row(found)["verdict"] == "ROUNDING"
    assert found["verdict"] == "MISMATCH"
    broken = engine("lasagne", "0.1", trace=trace(), certificates=(BROKEN,))
    parted = row(_judged(engines=(broken, engine(trace=trace(0.3)))))
    assert parted["verdict"] == "INCONCLUSIVE"
    assert "Lasagne 0.1, which does not compute the job's function itself" in parted["sentence"]


def test_two_probes_are_compared_without_training() -> None:
    one, two = (engine(label=f"torch@2.13.0 {name}", trace=None) for name in "ab")
    found = _judged(engines=(one, two), reference="", task="compare")
    assert (found["verdict"], found["exit_code"]) == ("ROUNDING", 0)
    assert [item["verdict"] for item in found["engines"]] == ["ROUNDING", "ROUNDING"]
    mixed = _judged(engines=(one, engine()), reference="", task="compare")
    assert mixed["verdict"] == "INCONCLUSIVE"


def test_what_could_not_be_compared_gives_code_3() -> None:
    failure = Failure("the probe of caffe@1.0", "its record of step 1 is damaged (digest differs)")
    found = _judged(engine(), could_not_compare=(failure,))
    assert (found["verdict"], found["exit_code"]) == ("INCONCLUSIVE", 3)
    assert found["sentence"].startswith("Could not compare the probe of caffe@1.0: its record of step 1 is damaged")
    assert row(found)["verdict"] == "ROUNDING"
    mismatch = _judged(engine(certificates=(BROKEN,)), could_not_compare=(failure,))
    assert (mismatch["verdict"], mismatch["exit_code"]) == ("MISMATCH", 1)
    nothing = _judged(engines=(), reference="", could_not_compare=(failure,))
    assert nothing["exit_code"] == 3


def test_runs_that_were_asked_for_different_things() -> None:
    one = engine("lasagne", "0.1", trace=trace(), asked={"training.learning_rate": "0.1", "model": "m1"})
    other = engine(asked={"training.learning_rate": "0.01", "model": "m1"})
    found = _judged(engines=(one, other), task="compare")
    assert (found["verdict"], found["exit_code"]) == ("INCONCLUSIVE", 3)
    assert "training.learning_rate (0.1 and 0.01)" in found["sentence"]
    assert "model" not in found["could_not_compare"][0]["reason"]


def test_two_engines_that_share_a_convention_agree_with_one_another() -> None:
    one = engine("lasagne", "0.1", trace=trace(), certificates=(BROKEN,), causes=(TIES,))
    other = engine("keras-theano", "2.3.1", certificates=(BROKEN,), causes=(TIES,))
    found = _judged(engines=(one, other))
    assert found["verdict"] == "MISMATCH", "neither computes the job's function"
    assert found["pairs"][0]["verdict"] == "ROUNDING"
    assert "in the same way: gradient at ties" in found["pairs"][0]["sentence"]
    compared = _judged(engines=(one, other), task="compare")
    assert (compared["verdict"], compared["exit_code"]) == ("ROUNDING", 0)


def test_engines_that_fail_differently_do_not_agree() -> None:
    """An unknown cause is not known to be the same one, nor one cause that shows at other places."""
    one = engine("lasagne", "0.1", trace=trace(), certificates=(BROKEN,), causes=(TIES,))
    unknown = CauseEvidence((), "", "", "start", 0, math.inf, unknown=True, where=("backward pool1",))
    elsewhere = certificate(check(), check("backward", "pool2", 9.0))
    for left, right, certificates in (
        ((unknown,), (unknown,), (BROKEN,)),
        ((TIES, unknown), (TIES, unknown), (BROKEN,)),
        ((TIES,), (TIES,), (elsewhere,)),
        ((TIES,), (), (BROKEN,)),
    ):
        first = engine("lasagne", "0.1", trace=trace(), certificates=one.certificates, causes=left)
        second = engine("keras-theano", "2.3.1", certificates=certificates, causes=right)
        assert _judged(engines=(first, second))["pairs"][0]["verdict"] == "MISMATCH"


def test_comparison_of_versions() -> None:
    """Accuracy dropped from one version to the next: a cause if a check fails, else open (never a guess)."""
    old = engine("tensorflow", "2.12.0", trace=trace())
    new = engine("tensorflow", "2.21.0", trace=trace(0.3), certificates=(BROKEN,), causes=(TIES,))
    found = _judged(engines=(old, new), reference=old.label, task="compare")
    assert found["verdict"] == "MISMATCH"
    assert "TensorFlow 2.21.0 does not compute the same function" in found["sentence"]
    open_ = engine("tensorflow", "2.21.0", trace=trace(0.3), certificates=())
    assert _judged(engines=(old, open_), reference=old.label, task="compare")["verdict"] == "INCONCLUSIVE"


def test_thread_counts_are_rounding() -> None:
    """Sums in another order differ in the last places: rounding, with the fact that differs listed."""
    one = engine(label="torch@2.13.0, 1 thread", trace=trace(), facts={"threads.intra": "1", "run_id": "a"})
    two = engine(label="torch@2.13.0, 2 threads", trace=trace(4.8e-7), facts={"threads.intra": "2", "run_id": "b"})
    found = _judged(engines=(one, two), reference=one.label, task="compare")
    assert found["verdict"] == "ROUNDING"
    assert found["pairs"][0]["fact_differences"] == [{"name": "threads.intra", "a": "1", "b": "2"}]
    assert "PyTorch 2.13.0 (1 thread)" in found["sentence"]
    assert found["sentence"].endswith("What they were set to differs: threads 1 and 2.")


def test_a_type_that_was_left_at_its_default_is_named() -> None:
    """Theano's floatX left at float64: the first check of the batch says so."""
    dtype = CauseEvidence(
        ("input.other_dtype",), "another type", "The engine holds the tensor in another type than the job's precision.",
        "start", 0, 0.0, where=("input batch",), restore="Set floatX=float32.")  # fmt: skip
    wrong = check("input", "batch", math.inf, note="found float64 (16, 1, 28, 28), expected float32 (16, 1, 28, 28)")
    found = _judged(engine("lasagne", "0.2", certificates=(certificate(wrong, check()),), causes=(dtype,)))
    assert found["verdict"] == "MISMATCH"
    assert "another type than the job's precision (first seen at step 0, input of batch)" in found["sentence"]
    unnamed = _judged(engine("lasagne", "0.2", certificates=(certificate(wrong),)))
    assert "found float64 (16, 1, 28, 28), expected float32" in unnamed["sentence"]


def test_a_strict_tolerance_would_be_wrong() -> None:
    """A difference of 4.8e-6 that the checks hold and the envelope covers is rounding."""
    found = _judged(engine(trace=trace(2.5e-6, start=1)), envelope=envelope(5e-6))
    assert row(found)["verdict"] == "ROUNDING"
    assert row(found)["free_run"]["departed_step"] == 1


def test_several_causes_are_all_told_and_the_headline_stays_short() -> None:
    half = CauseEvidence(
        ("relu.half_at_zero",), "gradient at zero", "At exactly 0 a ReLU passes half of the gradient on.", "start", 0,
        0.1, restore="Compare with 0.")  # fmt: skip
    found = _judged(engine("keras-theano", "2.3.1", certificates=(BROKEN,), causes=(TIES, half)))
    assert found["sentence"].endswith("1 further convention differs: gradient at zero.")
    assert "half of the gradient" in row(found, "keras-theano@2.3.1")["sentence"]
    assert len(found["next_steps"]) == 2


def test_an_engine_that_does_not_repeat_itself_is_named() -> None:
    repeats = (trace(1e-3, seed=8, start=4), trace(1e-3, seed=9, start=4))
    unsteady = engine(trace=trace(1e-4, start=4), repeats=repeats, facts={"maths.deterministic": "true"})
    found = _judged(unsteady, envelope=envelope())
    assert row(found)["repeats"]["non_deterministic"] is True
    assert row(found)["repeats"]["first_different_step"] == 4
    assert "the source is non-determinism (though deterministic algorithms were asked for)" in found["sentence"]
    steady = _judged(engine(repeats=(trace(1e-8),)))
    assert row(steady)["repeats"]["bitwise_equal"] is True
    assert "non-determinism" not in steady["sentence"]


def test_a_departure_at_the_change_of_the_learning_rate_is_said() -> None:
    at, after = (
        _judged(engine(trace=trace(0.3, start=step, rates=True)), envelope=envelope()) for step in (50, 51)
    )
    assert "at step 50, where the learning rate changes" in row(at)["sentence"]
    assert "at step 51, right after the learning rate changed" in row(after)["sentence"]
    assert "learning rate" not in row(_judged(engine(trace=trace(0.3, start=52, rates=True))))["sentence"]
    late = certificate(check("update", "conv1.weight", 50.0, case="rate-change", step=2), case="rate-change")
    found = _judged(engine(certificates=(certificate(), late)))
    assert "only from where the learning rate changes" in found["sentence"]


@pytest.mark.parametrize(
    "failed, said",
    [
        (check("evaluation", "logits", 9.0, step=-1), "only the evaluation differs"),
        (check("loss", "training step", 9.0), "only the loss reported differs"),
        (check("update", "conv1.weight", 9.0, case="last-batch"), "only in a smaller last batch"),
    ],
)
def test_the_part_that_is_affected_is_said(failed: Any, said: str) -> None:
    certificates = [certificate(), certificate(check(), failed, case=failed.case)]
    if failed.case == "start":
        certificates = certificates[1:]
    assert said in _judged(engine(certificates=tuple(certificates)))["sentence"]


def test_accuracies_that_differ_leave_the_verdict_open() -> None:
    seeds = range(8)
    good = {seed: 0.98 + 0.0001 * seed for seed in seeds}
    bad = {seed: 0.93 + 0.0001 * (seed % 3) for seed in seeds}
    reference = engine("lasagne", "0.1", trace=trace(), accuracies=good, test_accuracy=0.98)
    found = _judged(engines=(reference, engine(accuracies=bad, test_accuracy=0.93)))
    assert row(found)["verdict"] == "INCONCLUSIVE"
    assert row(found)["accuracy"]["tost"]["equivalent"] is False
    few = _judged(engines=(reference, engine(accuracies={0: 0.98, 1: 0.97})))
    assert row(few)["verdict"] == "ROUNDING"
    assert row(few)["accuracy"]["tost"]["equivalent"] is None
    assert "cannot be called equivalent yet: 2 seeds of" in row(few)["sentence"]
    single = _judged(engines=(reference, engine(accuracies={0: 0.98})))
    assert row(single)["accuracy"]["tost"]["seeds"] == 1
    assert "equivalent" not in row(single)["sentence"]


CERTIFICATES = st.lists(
    st.lists(
        st.builds(check, st.sampled_from(["input", "forward", "backward", "update", "loss"]), st.just("conv1"),
                  st.floats(0, 2) | st.sampled_from([0.0, math.inf, math.nan])),
        min_size=1, max_size=4,
    ).map(lambda checks: certificate(*checks)),
    max_size=2,
).map(tuple)  # fmt: skip
RUNS = st.builds(
    lambda first, losses: LossTrace(np.arange(first, first + len(losses)), np.array(losses, dtype=np.float64)),
    st.integers(0, 3),
    st.lists(st.floats(0, 3) | st.sampled_from([math.nan, math.inf, 1.0]), max_size=8),
)
ENGINES: Callable[[str], st.SearchStrategy[EngineEvidence]] = lambda name: st.builds(  # noqa: E731
    lambda certificates, run, repeats, found, tensors: EngineEvidence(
        name, "1", certificates=certificates, trace=run, repeats=tuple(repeats), flip=found, tensors=tensors
    ),
    CERTIFICATES,
    st.none() | RUNS,
    st.lists(RUNS, max_size=2),
    st.none() | st.builds(flip, st.integers(0, 8), st.floats(0, 2)),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"), max_size=2),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ENGINES("lasagne"), ENGINES("torch"), st.lists(RUNS, max_size=5), st.sampled_from(["train", "check", "compare"]))
def test_no_evidence_breaks_the_rules(
    one: EngineEvidence, other: EngineEvidence, perturbed: list[LossTrace], task: str
) -> None:
    spread = EnvelopeEvidence("lasagne@1", one.trace, tuple(perturbed)) if one.trace is not None else None
    document = judge(
        Evidence("j", "n", "m", "2026-01-02T03:04:05Z", "native", "float32", task, (one, other), "lasagne@1", spread)
    )
    assert read_verdict(verdict_json(document).encode()) == document
    for item, found in zip((one, other), document["engines"], strict=True):
        failed = any(not single.holds for certificate_ in item.certificates for single in certificate_.checks)
        assert (found["verdict"] == "MISMATCH") == failed
        if found["verdict"] == "ROUNDING":
            assert item.certificates
        if not item.certificates:
            assert found["verdict"] == "INCONCLUSIVE" or (found["verdict"] == "IDENTICAL" and item.tensors)
    pair = document["pairs"][0]
    if pair["verdict"] == "ROUNDING":
        assert one.certificates and other.certificates
    if pair["verdict"] == "MISMATCH":
        assert any(not single.holds for item in (one, other) for single in item.checks)
    if document["verdict"] == "IDENTICAL" and task != "check":
        assert one.tensors and other.tensors
    assert document["sentence"] and document["sentence"][0].isupper()


def test_evidence_is_checked() -> None:
    with pytest.raises(ValueError, match="more than once"):
        evidence(engine("lasagne", "0.1"))
    with pytest.raises(ValueError, match="not among the engines"):
        evidence(reference="caffe@1")
    with pytest.raises(ValueError, match="no checks"):
        engine(certificates=(CertificateEvidence("start", (0,), 2, ()),))
    with pytest.raises(ValueError, match="task"):
        evidence(task="guess")
    assert FAILED.holds is False


def test_mixed_precision_says_what_the_same_means_and_what_was_left_out() -> None:
    found = _judged(engine(skipped=2), precision="mixed_float16")
    assert "layers are computed in float16, with 11 significant bits" in found["parity"]
    assert "so many updates fewer: PyTorch 2.13.0 2 updates of 100." in found["parity"]
    assert "did not make the same number of updates" in found["parity"]
    assert [row["skipped_updates"] for row in found["engines"]] == [0, 2]
    assert "It left out 2 updates of 100 because a gradient overflowed float16." in found["engines"][1]["sentence"]
    # However close the losses are: one of the runs made other steps.
    assert found["engines"][1]["verdict"] == found["verdict"] == found["pairs"][0]["verdict"] == "INCONCLUSIVE"
    assert "overflowed float16, PyTorch 2.13.0 left out 2 updates of 100 and Lasagne 0.1 none" in found["sentence"]
    assert "mixed_bfloat16" in found["next_steps"][0]
    assert "No update was left out." in _judged(engine(), precision="mixed_float16")["parity"]
    assert "update was left out" not in _judged(engine(), precision="mixed_bfloat16")["parity"]
    assert _judged(engine())["parity"] == ""


def test_what_counts_as_rounding_of_the_loss_is_told() -> None:
    assert _judged(engine())["departure"] == 1e-6
    coarse = dataclasses.replace(trace(1e-3), unit=2.0**-11)
    found = _judged(engine(trace=coarse), precision="mixed_bfloat16")
    assert found["departure"] == pytest.approx(1e-6 * 2**13)
    assert found["engines"][1]["free_run"]["departed_step"] == -1
