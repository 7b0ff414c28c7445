"""The catalogue of errors is total: every reason has a status, every status can be sent."""

import glob
import os
import re

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from crosstrain_protos.v1 import errors_pb2
from crosstrain_service import errors, status
from crosstrain_service.events import error_from_proto

SOURCE = os.path.join(os.path.dirname(errors.__file__))


def test_every_reason_of_the_api_has_a_code():
    names = {name[len("ERROR_REASON_"):] for name in errors_pb2.ErrorReason.keys()} - {"UNSPECIFIED"}
    assert names == set(errors.CODES)


@pytest.mark.parametrize("reason", sorted(errors.CODES))
def test_every_reason_can_be_sent_and_read(reason):
    error = errors.CrosstrainError(reason, "what happened", "spec.field")
    assert getattr(grpc.StatusCode, error.code)
    message = status_pb2.Status.FromString(status.details(error))
    info = error_details_pb2.ErrorInfo()
    assert message.details[0].Unpack(info)
    assert (info.reason, info.domain, info.metadata["field"]) == (reason, "crosstrain", "spec.field")
    again = error_from_proto(error.to_proto())
    assert (again.reason, again.message, again.field) == (reason, "what happened", "spec.field")


def test_every_reason_named_in_the_source_is_in_the_catalogue():
    used = set()
    for path in glob.glob(os.path.join(SOURCE, "*.py")):
        with open(path) as file:
            used |= set(re.findall(r'CrosstrainError\(\s*"([A-Z_]+)"', file.read()))
    assert used and used <= set(errors.CODES)


def test_unknown_reason_is_a_defect():
    with pytest.raises(ValueError):
        errors.CrosstrainError("NO_SUCH_REASON", "text")


def test_every_reason_is_documented_with_its_status():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    with open(os.path.join(root, "docs", "errors.md")) as file:
        rows = dict(re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)`", file.read(), re.MULTILINE))
    assert rows == errors.CODES
