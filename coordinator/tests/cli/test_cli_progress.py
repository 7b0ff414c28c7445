"""What is shown while a job is watched."""

from __future__ import annotations

import pytest

from crosstrain.cli.progress import LiveTable, PlainLines, Progress
from crosstrain.results.records import JobRecord
from crosstrain_protos.v1 import run_pb2
from doubles.recorded import Recording


@pytest.mark.parametrize("kind", [PlainLines, LiveTable])
def test_warnings_and_losses_are_shown_at_once(kind: type[Progress], capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording()
    run = recording.add_run("torch", "2.13.0", variant="data=2")
    recording.emit(run, state_changed=run_pb2.StateChanged(state=run_pb2.RUN_STATE_RUNNING))
    recording.emit(run, log=run_pb2.LogLine(severity="info", text="nothing to worry about"))
    recording.emit(run, log=run_pb2.LogLine(severity="warning", text="rank 1: has not gone on for 75 s in step 8"))
    recording.emit(run, rank_lost=run_pb2.RankLost(rank=1, reason="has not gone on for 300 s in step 8"))
    record = JobRecord(recording.job)
    with kind(20) as shown:
        for event in recording.events:
            record.add(event)
            shown.update(record, event)
    told = " ".join(capsys.readouterr().err.split())
    assert "torch@2.13.0[data=2] #0: warning: rank 1: has not gone on for 75 s in step 8" in told
    assert "error: rank 1 lost: has not gone on for 300 s in step 8; on_rank_loss: all start again" in told
    assert "nothing to worry about" not in told
