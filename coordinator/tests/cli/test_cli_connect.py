"""What a command starts for its job."""

from __future__ import annotations

import json

import pytest

from crosstrain.cli import connect
from crosstrain.spec import parse_document


@pytest.mark.parametrize(
    "engines, wanted",
    [
        (["torch", "caffe"], set()),
        (["torch[data=2]", "caffe"], {"mpi"}),
        (["torch", "caffe[data=2,backend=mpi]", "torch[data=2,backend=horovod]"], {"mpi", "horovod"}),
        (["torch[data=2,backend=native]"], set()),
    ],
)
def test_services_get_what_the_ranks_of_a_job_communicate_by(engines: list[str], wanted: set[str]) -> None:
    text = f"""
name: ranks
model: cnn2
data: {{train: train.csv}}
training: {{optimizer: {{sgd: {{learning_rate: 0.05}}}}}}
engines: {json.dumps(engines)}
"""
    assert connect.additions_for(parse_document(text)) == wanted
