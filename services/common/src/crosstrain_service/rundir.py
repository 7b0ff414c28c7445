"""The folder of one run: the only thing the front and the child of a run share.

    request.pb    kind and request, written before anything else
    events.spool  the run's events
    child.json    process id, its start time, attempt
    run.lock      held (flock) by the child as long as it lives
    cancel        present once cancelling was asked for
    reserve       a little disk space, freed to record that the disk is full
    child.log     what the child and its framework print
    checkpoints/  see checkpoint.py
    work/         scratch space of the framework
"""

import errno
import fcntl
import json
import os
import shutil
import signal
from typing import Any, Dict, List, NamedTuple, Optional

from crosstrain_protos.v1 import run_pb2, service_pb2

RESERVE_BYTES = 64 << 10

_REQUESTS = {
    run_pb2.RUN_KIND_TRAIN: service_pb2.TrainRequest,
    run_pb2.RUN_KIND_EVALUATE: service_pb2.EvaluateRequest,
    run_pb2.RUN_KIND_PROBE: service_pb2.ProbeRequest,
}


class StoredRequest(NamedTuple):
    """What a run was asked for, when (seconds since 1970), and of which version of the engine."""

    kind: int
    request: Any
    body: bytes
    created: float
    version: str


class RunDir:
    """Paths and small files of one run."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.spool = os.path.join(path, "events.spool")
        self.checkpoints = os.path.join(path, "checkpoints")
        self.work = os.path.join(path, "work")
        self.log = os.path.join(path, "child.log")
        self._lock = os.path.join(path, "run.lock")
        self._cancel = os.path.join(path, "cancel")
        self._reserve = os.path.join(path, "reserve")

    def create(self, kind: int, request: Any, created: float, version: str) -> None:
        """Makes the folder and stores the request, durably; raises ``OSError``."""
        os.makedirs(self.work, mode=0o700, exist_ok=True)
        with open(self._reserve, "wb") as file:
            file.write(b"\0" * RESERVE_BYTES)
        header = json.dumps({"kind": kind, "created": created, "version": version}).encode() + b"\n"
        write_file(os.path.join(self.path, "request.pb"), header + body_of(request))

    def stored(self) -> Optional[StoredRequest]:
        """The stored request; None if the folder was not completed."""
        try:
            with open(os.path.join(self.path, "request.pb"), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        header, body = data.split(b"\n", 1)
        info: Dict[str, Any] = json.loads(header.decode())
        request = _REQUESTS[info["kind"]].FromString(body)
        return StoredRequest(info["kind"], request, body, info["created"], info["version"])

    def lock(self) -> Optional[int]:
        """Takes the lock of the living child; returns its handle, or None if another process has it."""
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise
        return handle

    def alive(self) -> bool:
        """Whether a child holds the lock."""
        handle = self.lock()
        if handle is None:
            return True
        os.close(handle)
        return False

    def holders(self) -> List[int]:
        """Processes beside this one that have the lock's file open (Linux): those of the child, and what they left."""
        path = os.path.realpath(self._lock)
        found = []
        for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
            if not name.isdigit() or int(name) == os.getpid():
                continue
            folder = os.path.join("/proc", name, "fd")
            try:
                links = [os.readlink(os.path.join(folder, handle)) for handle in os.listdir(folder)]
            except OSError:  # it has ended, or is somebody else's
                continue
            if path in links:
                found.append(int(name))
        return found

    def write_child(self, attempt: int) -> None:
        """Notes that this process is the child."""
        entry = {"pid": os.getpid(), "started": start_time(os.getpid()), "attempt": attempt}
        write_file(os.path.join(self.path, "child.json"), json.dumps(entry).encode())

    def child(self) -> Optional[Dict[str, Any]]:
        """What the newest child noted; None before the first."""
        try:
            with open(os.path.join(self.path, "child.json")) as file:
                return json.load(file)  # type: ignore[no-any-return]
        except (FileNotFoundError, ValueError):
            return None

    def request_cancel(self) -> None:
        """Notes, durably where there is room, that the run is to end."""
        try:
            self._mark_cancelled()
        except OSError:
            self.free_reserve()
            self._mark_cancelled()

    def _mark_cancelled(self) -> None:
        # An empty file is never torn, and creating it twice at the same time does no harm.
        os.close(os.open(self._cancel, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sync_folder(self.path)

    def cancel_requested(self) -> bool:
        """Whether the run is to end."""
        return os.path.exists(self._cancel)

    def request_checkpoint(self) -> None:
        """Asks the living child, if there is one, for a checkpoint after its step at work."""
        child = self.child()
        if child is not None and start_time(child["pid"]) == child["started"] and self.alive():
            try:
                os.kill(child["pid"], signal.SIGUSR1)
            except (ProcessLookupError, PermissionError):
                pass

    def free_reserve(self) -> None:
        """Gives the reserved space back to the disk."""
        try:
            os.unlink(self._reserve)
        except OSError:
            pass

    def discard(self) -> None:
        """Removes the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def clean(self) -> None:
        """Removes what only an unfinished run needs: checkpoints, scratch space, reserve."""
        for folder in (self.checkpoints, self.work):
            shutil.rmtree(folder, ignore_errors=True)
        self.free_reserve()

    def last_output(self, limit: int = 300) -> str:
        """The last line that the child printed, for an error message; empty if there is none."""
        try:
            with open(self.log, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 8192))
                lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
        except OSError:
            return ""
        lines = [line for line in lines if line]
        return lines[-1][:limit] if lines else ""


def body_of(request: Any) -> bytes:
    """Bytes that are equal for equal requests."""
    return request.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def write_file(path: str, data: bytes) -> None:
    """Writes a small file completely or not at all."""
    temporary = path + ".incoming"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        sync_folder(os.path.dirname(path))
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


def sync_folder(path: str) -> None:
    """Forces the names in a folder to the disk."""
    handle = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def start_time(pid: int) -> int:
    """Start of a process in clock ticks since boot, which tells it from a later one of the same id;
    0 if there is none, or only a zombie."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0
