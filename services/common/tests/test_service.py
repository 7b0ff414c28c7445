"""The service over gRPC: a run from submission to result, and every way it may end."""

import concurrent.futures
import time

import grpc
import numpy as np
import pytest

from crosstrain_protos.v1 import errors_pb2, run_pb2, service_pb2
from crosstrain_service import weights
from support import MODEL, curve, failure, npy


def ended(service, run_id):
    events = list(service.watch(run_id))
    assert events[-1].WhichOneof("event") == "state_changed"
    return events, events[-1].state_changed


def test_describe_names_engines_that_cannot_run(service):
    engines = {item.name: item for item in service.training.Describe(service_pb2.DescribeRequest()).engines}
    assert engines["slow"].version == "1" and not engines["slow"].unavailable_reason
    assert "crosstrain_slow.missing" in engines["broken"].unavailable_reason
    with pytest.raises(grpc.RpcError) as caught:
        service.train("broken-1", "broken")
    assert failure(caught.value)[0] == "FAILED_PRECONDITION"
    assert failure(caught.value)[1].reason == "ENVIRONMENT"


def test_a_run_reports_everything_in_order(service):
    service.train("whole", spec=service.spec(25))
    events, last = ended(service, "whole")
    assert last.state == run_pb2.RUN_STATE_SUCCEEDED
    assert sorted(curve(events)) == list(range(25))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "state_changed" and kinds.index("fingerprint") < kinds.index("steps")
    epochs = [event.epoch_ended for event in events if event.WhichOneof("event") == "epoch_ended"]
    assert [(item.epoch, item.last_step) for item in epochs] == [(0, 9), (1, 19), (2, 24)]
    for event in events:
        if event.WhichOneof("event") == "steps":
            steps = event.steps
            for total, *parts in zip(steps.step_seconds, steps.data_seconds, steps.copy_seconds, steps.compute_seconds,
                                     steps.sync_seconds, steps.callback_seconds):
                assert min(parts) >= 0 and sum(parts) == pytest.approx(total, rel=1e-6, abs=1e-9)
    result = events[kinds.index("result")].result
    arrays, _ = weights.from_bytes(service.get(result.weights_digest))
    assert set(weights.check_weights(arrays, MODEL)[0]) == set(MODEL.parameter_shapes())
    assert result.steps == 25 and 0 < result.resources.memory_after_import_bytes <= result.resources.memory_peak_bytes
    run = service.run("whole")
    assert run.state == run_pb2.RUN_STATE_SUCCEEDED and run.attempt == 1
    assert run.last_sequence == events[-1].sequence and run.end_time.seconds >= run.start_time.seconds > 0


def test_watch_goes_on_after_any_sequence_number(service):
    service.train("cursor", spec=service.spec(10))
    events, _ = ended(service, "cursor")
    for after in range(len(events) + 1):
        assert [event.sequence for event in service.watch("cursor", after)] == list(
            range(after + 1, len(events) + 1))


def test_same_id_is_the_same_run_and_another_body_is_refused(service):
    spec = service.spec(5)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        runs = list(pool.map(lambda _: service.train("again", spec=spec), range(50)))
    assert len({(run.run_id, run.create_time.nanos) for run in runs}) == 1
    ended(service, "again")
    with pytest.raises(grpc.RpcError) as caught:
        service.train("again", spec=service.spec(6))
    assert failure(caught.value)[0] == "ALREADY_EXISTS" and failure(caught.value)[1].reason == "ID_REUSED"


def test_runs_of_one_device_wait_for_each_other_in_order(service):
    names = ["queue-%d" % index for index in range(4)]
    for name in names:
        service.train(name, spec=service.spec(5))
    spans = []
    for name in names:
        ended(service, name)
        run = service.run(name)
        spans.append((run.start_time.ToNanoseconds(), run.end_time.ToNanoseconds()))
    for (_, end), (start, _) in zip(spans, spans[1:]):
        assert end <= start


@pytest.mark.parametrize("engine", ["slow", "stubborn"])
def test_cancel_ends_the_process_within_two_seconds_and_frees_the_device(service, engine):
    run_id = "cancel-" + engine
    service.train(run_id, engine, service.spec(5000))
    for event in service.watch(run_id):
        if event.WhichOneof("event") == "steps":
            break
    begin = time.time()
    run = service.cancel(run_id)
    assert time.time() - begin < 2.0 and run.state == run_pb2.RUN_STATE_CANCELLED
    service.train("after-" + run_id, spec=service.spec(3))
    assert ended(service, "after-" + run_id)[1].state == run_pb2.RUN_STATE_SUCCEEDED
    assert service.cancel(run_id).state == run_pb2.RUN_STATE_CANCELLED


def test_waiting_run_can_be_cancelled(service):
    service.train("ahead", spec=service.spec(100))
    service.train("waiting", spec=service.spec(3))
    assert service.run("waiting").state == run_pb2.RUN_STATE_QUEUED
    begin = time.time()
    assert service.cancel("waiting").state == run_pb2.RUN_STATE_CANCELLED
    assert time.time() - begin < 2.0
    assert ended(service, "ahead")[1].state == run_pb2.RUN_STATE_SUCCEEDED


@pytest.mark.parametrize("engine, reason, text", [
    ("crashing", "CHILD_DIED", "SIGABRT in 3 attempts in a row; its last output: Check failed: blob shape 3 == 4"),
    ("raising", "ENGINE_FAILED", "RuntimeError: kernel image is invalid"),
    ("diverging", "NOT_FINITE", "step 5 is nan"),
])
def test_failures_reach_the_user_and_leave_the_service_working(service, engine, reason, text):
    service.train("fails-" + engine, engine, service.spec(20))
    _, last = ended(service, "fails-" + engine)
    assert last.state == run_pb2.RUN_STATE_FAILED

    assert errors_pb2.ErrorReason.Name(last.error.reason) == "ERROR_REASON_" + reason
    assert text in last.error.message and "\n" not in last.error.message and "/" not in last.error.message
    assert service.run("fails-" + engine).error.message == last.error.message


def test_evaluation_of_trained_weights_agrees_with_the_run(service):
    spec = service.spec(10)
    service.train("for-evaluation", spec=spec)
    events, _ = ended(service, "for-evaluation")
    result = [event.result for event in events if event.WhichOneof("event") == "result"][0]
    request = service_pb2.EvaluateRequest(run_id="evaluation", engine="slow")
    request.spec.model.CopyFrom(spec.model)
    request.spec.test.CopyFrom(spec.test)
    request.spec.weights_digests.extend([result.weights_digest, spec.initial_weights_digest])
    request.spec.execution.CopyFrom(spec.execution)
    service.training.Evaluate(request)
    events, last = ended(service, "evaluation")
    assert last.state == run_pb2.RUN_STATE_SUCCEEDED
    found = [event.evaluated for event in events if event.WhichOneof("event") == "evaluated"]
    assert [item.weights_digest for item in found] == list(request.spec.weights_digests)
    assert found[0].correct / found[0].samples == result.test_accuracy
    assert found[0].loss == pytest.approx(result.test_loss, rel=1e-12)


def test_probe_records_steps_and_reports_a_case_that_fails(service):
    spec = service.spec(4)
    request = service_pb2.ProbeRequest(run_id="probe", engine="slow")
    for name in ("good", "bad", "good-too", "too-late", "negative"):
        case = request.spec.cases.add(case_id=name, model=spec.model, train=spec.train, training=spec.training,
                                      initial_weights_digest=spec.initial_weights_digest, steps=[0, 3])
        case.training.max_steps = 4
        if name in ("too-late", "negative"):
            case.steps[1] = 4 if name == "too-late" else -1
        if name == "bad":
            case.training.learning_rates_digest = service.put(npy(np.full(2, 0.05)))
    request.spec.execution.CopyFrom(spec.execution)
    service.training.Probe(request)
    events, last = ended(service, "probe")
    assert last.state == run_pb2.RUN_STATE_SUCCEEDED
    found = [event.probe_recorded for event in events if event.WhichOneof("event") == "probe_recorded"]
    assert [(item.case_id, item.step) for item in found] == [
        ("good", 0), ("good", 3), ("bad", -2), ("good-too", 0), ("good-too", 3), ("too-late", -2), ("negative", -2)]
    assert "2 learning rates for 4 steps" in found[2].error.message
    for item in found[5:]:
        assert item.step == -2 and "is not within 0 to 3" in item.error.message
    tensors, _ = weights.from_bytes(service.get(found[0].digest))
    assert tensors["output/dense2"].shape == (6, 4) and tensors["loss"] == tensors["probe_loss"]
    initial = weights.initial_parameters(MODEL, 5)
    assert all((tensors["parameter/" + name] == value).all() for name, value in initial.items())
    change = tensors["parameter/dense2.bias"] - tensors["parameter_after/dense2.bias"]
    np.testing.assert_allclose(change, 0.05 * tensors["gradient/dense2.bias"], rtol=1e-12)


def test_probe_keeps_only_the_groups_asked_for_and_drops_its_records(service):
    spec = service.spec(1)
    request = service_pb2.ProbeRequest(run_id="dropped", engine="slow")
    request.spec.execution.CopyFrom(spec.execution)
    case = request.spec.cases.add(
        case_id="c", model=spec.model, train=spec.train, training=spec.training,
        initial_weights_digest=spec.initial_weights_digest, steps=[0], groups=["output", "labels"])
    service.training.Probe(request)
    events, _ = ended(service, "dropped")
    record = next(event.probe_recorded for event in events if event.WhichOneof("event") == "probe_recorded")
    tensors, _ = weights.from_bytes(service.get(record.digest))
    assert {name.split("/")[0] for name in tensors} == {"output", "labels"}
    drop = service_pb2.DropRecordsRequest(run_id="dropped")
    assert service.training.DropRecords(drop).freed_bytes > 0
    assert service.training.DropRecords(drop).freed_bytes == 0
    with pytest.raises(grpc.RpcError, match="ARTIFACT_NOT_FOUND|is stored here"):
        service.get(record.digest)
    case.groups.append("weights")
    request.run_id = "wrong"
    with pytest.raises(grpc.RpcError, match="none of input"):
        service.training.Probe(request)
