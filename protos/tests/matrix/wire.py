"""Messages whose bytes were written out by hand from the protobuf encoding, independent of any library.

Each entry is (name, message, bytes). Python 3.7 syntax.
"""

from crosstrain_protos.v1 import artifact_pb2, errors_pb2, model_pb2, run_pb2, service_pb2, training_pb2
from google.protobuf import timestamp_pb2


def _replaced():
    message = artifact_pb2.WriteRequest(header=artifact_pb2.ArtifactHeader(digest="ab"))
    message.chunk = b"xy"
    assert message.WhichOneof("part") == "chunk" and not message.HasField("header")
    return message


def _cleared():
    message = training_pb2.Sgd(momentum=0.5, nesterov=False)
    message.ClearField("momentum")
    assert not message.HasField("momentum") and message.HasField("nesterov")
    return message


def cases():
    """The messages and their bytes."""
    return (
        # A scalar without presence: its zero is not sent.
        ("implicit zero", model_pb2.Dense(units=0, bias=False), b""),
        ("int32", model_pb2.Dense(units=300, bias=True), b"\x08\xac\x02\x10\x01"),
        ("negative int64", run_pb2.ProbeRecorded(step=-1), b"\x10" + b"\xff" * 9 + b"\x01"),
        # "optional" has presence: unset and zero differ.
        ("optional unset", training_pb2.Sgd(), b""),
        ("optional zero", training_pb2.Sgd(momentum=0.0), b"\x09" + b"\x00" * 8),
        ("optional cleared", _cleared(), b"\x10\x00"),
        # Setting one member of a oneof clears the other, and an empty one is still sent.
        ("oneof replaced", _replaced(), b"\x12\x02xy"),
        ("oneof empty message", model_pb2.Layer(relu=model_pb2.Relu()), b"\x2a\x00"),
        ("oneof empty bytes", artifact_pb2.WriteRequest(chunk=b""), b"\x12\x00"),
        ("string", errors_pb2.Error(reason=1, message="\u00e4"), b"\x08\x01\x12\x02\xc3\xa4"),
        # Repeated numbers are packed: one tag, one length.
        (
            "packed doubles",
            run_pb2.StepRecords(loss=[1.0, -2.0]),
            b"\x1a\x10\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\x00\xc0",
        ),
        ("packed int32", run_pb2.StepRecords(epoch=[0, 1, 300]), b"\x12\x04\x00\x01\xac\x02"),
        # A map is a list of (key = 1, value = 2), sorted by key when serialised deterministically.
        (
            "map",
            run_pb2.Fingerprint(facts={"b": "2", "a": "1"}),
            b"\x0a\x06\x0a\x01a\x12\x011\x0a\x06\x0a\x01b\x12\x012",
        ),
        (
            "timestamp",
            run_pb2.Run(create_time=timestamp_pb2.Timestamp(seconds=1, nanos=2)),
            b"\x3a\x04\x08\x01\x10\x02",
        ),
        ("enum", service_pb2.Feature(support=service_pb2.SUPPORT_EMULATED), b"\x10\x02"),
    )


_NEGATIVE_ZERO = b"\x00" * 7 + b"\x80"


def negative_zero():
    """Which kinds of double field keep the sign of -0.0: the result of kind -> whether it was sent.

    The pure Python implementation of protobuf 3.20 takes -0.0 for the default of a field without
    presence and does not send it.
    """
    return {
        "implicit": model_pb2.Dropout(rate=-0.0).SerializeToString() == b"\x09" + _NEGATIVE_ZERO,
        "optional": training_pb2.Sgd(momentum=-0.0).SerializeToString() == b"\x09" + _NEGATIVE_ZERO,
        "packed": run_pb2.StepRecords(loss=[-0.0]).SerializeToString() == b"\x1a\x08" + _NEGATIVE_ZERO,
    }
