"""Crashes of real processes: nothing is lost, doubled or executed twice."""

import errno
import os
import random
import signal
import subprocess
import time

import grpc
import pytest

from crosstrain_protos.v1 import errors_pb2, run_pb2
from crosstrain_service.spool import SpoolReader, SpoolWriter
from support import Service, curve, failure

STEPS = 60
#: Points at which a process is killed, spread over the whole run.
POINTS = int(os.environ.get("CROSSTRAIN_FAULT_POINTS", "20"))
MOMENTS = [index / POINTS for index in range(POINTS)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The curve of a run that nothing disturbs."""
    service = Service(tmp_path_factory.mktemp("undisturbed"), "crosstrain_single")
    service.train("calm", spec=service.spec(STEPS, checkpoint_every_steps=7))
    result = curve(service.watch("calm"))
    service.close()
    assert len(result) == STEPS
    return result


def wait_for_step(service, run_id, step):
    """Returns once the run has reported ``step``; at once for step 0."""
    if step == 0:
        return
    for event in service.watch(run_id):
        if event.WhichOneof("event") == "steps" and event.steps.first_step + len(event.steps.loss) > step:
            return


def test_killed_child_resumes_from_its_newest_checkpoint(own_service, expected):
    randomly = random.Random(1)
    for index, moment in enumerate(MOMENTS):
        run_id = "child-%d" % index
        own_service.train(run_id, spec=own_service.spec(STEPS, checkpoint_every_steps=7))
        wait_for_step(own_service, run_id, int(moment * STEPS))
        time.sleep(randomly.uniform(0, 0.03))
        while True:  # right after the start there may be no process yet
            try:
                os.kill(own_service.child_pid(run_id), signal.SIGKILL)
                break
            except FileNotFoundError:
                time.sleep(0.002)
        events = list(own_service.watch(run_id))
        assert events[-1].state_changed.state == run_pb2.RUN_STATE_SUCCEEDED
        losses = curve(events)
        assert losses == expected, "the resumed curve differs from the undisturbed one"
        starts = [event.attempt_started for event in events if event.WhichOneof("event") == "attempt_started"]
        assert 1 <= len(starts) <= 2
        assert own_service.run(run_id).attempt == (events[-1].attempt or 1)


def test_killed_front_adopts_the_running_child(own_service, expected):
    randomly = random.Random(2)
    for index, moment in enumerate(MOMENTS):
        run_id = "front-%d" % index
        own_service.train(run_id, spec=own_service.spec(STEPS, checkpoint_every_steps=7))
        wait_for_step(own_service, run_id, int(moment * STEPS))
        time.sleep(randomly.uniform(0, 0.03))
        own_service.kill()
        own_service.start()
        events = list(own_service.watch(run_id))
        assert events[-1].state_changed.state == run_pb2.RUN_STATE_SUCCEEDED
        assert curve(events) == expected
        starts = [event for event in events if event.WhichOneof("event") == "attempt_started"]
        assert len(starts) == 1, "the run was executed twice"
        assert own_service.run(run_id).state == run_pb2.RUN_STATE_SUCCEEDED


def test_adopted_child_can_be_cancelled(own_service):
    own_service.train("adopted", "stubborn", own_service.spec(5000))
    wait_for_step(own_service, "adopted", 3)
    own_service.kill()
    own_service.start()
    begin = time.time()
    assert own_service.cancel("adopted").state == run_pb2.RUN_STATE_CANCELLED
    assert time.time() - begin < 2.0


def test_queue_survives_the_front_in_order(own_service):
    names = ["one", "two", "three"]
    for name in names:
        own_service.train(name, spec=own_service.spec(20))
    own_service.kill()
    own_service.start()
    ends = []
    for name in names:
        assert sorted(curve(own_service.watch(name))) == list(range(20))
        ends.append(own_service.run(name).end_time.ToNanoseconds())
    assert ends == sorted(ends)


def test_two_fronts_on_one_state_folder_are_refused(own_service):
    with pytest.raises(AssertionError, match="another service uses the state folder"):
        Service(own_service.state, "crosstrain_single")
    own_service.train("still-alive", spec=own_service.spec(3))
    assert len(curve(own_service.watch("still-alive"))) == 3


class SmallDisk:
    """A file system of its own with little room (needs the right to mount)."""

    def __init__(self, path, megabytes):
        self.path = str(path)
        os.makedirs(self.path)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%dk" % int(megabytes * 1024), "tmpfs", self.path],
                              stderr=subprocess.PIPE)
        if done.returncode:
            pytest.skip("no right to mount a small file system: " + done.stderr.decode().strip())

    def fill(self, leave):
        """Leaves about ``leave`` bytes."""
        size = os.statvfs(self.path)
        with open(os.path.join(self.path, "filler"), "wb") as file:
            try:
                file.write(b"\0" * (size.f_bavail * size.f_frsize - leave))
                file.flush()
            except OSError:  # something else was faster: even better
                pass

    def empty(self):
        os.unlink(os.path.join(self.path, "filler"))

    def close(self):
        subprocess.run(["umount", "-l", self.path])


def test_full_disk_fails_the_run_with_a_clear_error_and_the_service_lives_on(tmp_path):
    disk = SmallDisk(tmp_path / "disk", 24)
    service = None
    try:
        service = Service(os.path.join(disk.path, "state"), "crosstrain_single")
        for name, every in (("spool", 0), ("checkpoint", 5)):
            service.train(name, spec=service.spec(4000, checkpoint_every_steps=every))
            wait_for_step(service, name, 2)
            disk.fill(2048)
            events = list(service.watch(name))
            last = events[-1].state_changed
            assert last.state == run_pb2.RUN_STATE_FAILED, name
            assert errors_pb2.ErrorReason.Name(last.error.reason) == "ERROR_REASON_STORAGE_FULL"
            assert "no room" in last.error.message
            curve(events)
            with pytest.raises(grpc.RpcError) as caught:
                service.put(os.urandom(1 << 20))
            assert failure(caught.value)[1].reason == "STORAGE_FULL"
            disk.empty()
            service.train("after-" + name, spec=service.spec(3))
            assert len(curve(service.watch("after-" + name))) == 3
    finally:
        if service is not None:
            service.close()
        disk.close()


def test_full_disk_leaves_the_spool_whole(tmp_path):
    disk = SmallDisk(tmp_path / "disk", 0.25)
    try:
        path = os.path.join(disk.path, "spool")
        writer = SpoolWriter(path)
        with pytest.raises(OSError) as caught:
            for _ in range(1000):
                writer.append(lambda number: b"x" * 5000)
        assert caught.value.errno == errno.ENOSPC
        last = writer.last_sequence
        reader, found = SpoolReader(path), []
        while True:
            records = reader.read()
            if not records:
                break
            found += records
        assert [number for number, _ in found] == list(range(1, last + 1))
        assert writer.append(lambda number: b"") == last + 1
    finally:
        disk.close()
