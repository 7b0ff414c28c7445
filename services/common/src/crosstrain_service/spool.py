"""An append-only file of events with gap-free sequence numbers and checksums.

The child of a run writes it, the front reads it while it grows. A record is a header of 16
bytes, little-endian (payload length uint32, CRC-32 uint32, sequence number uint64; the checksum covers
the sequence number and the payload), followed by the payload: a serialised ``RunEvent``.
A torn tail, left by a crash, is cut off before the next writer appends.
"""

import os
import struct
import threading
import zlib
from typing import Callable, List, Tuple

_HEADER = struct.Struct("<IIQ")
#: No record may be larger; it must fit in one gRPC message with others.
MAX_PAYLOAD = 2 << 20
_READ = 4 << 20


class SpoolWriter:
    """Appends records; safe to call from several threads. Use one writer per file."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        reader = SpoolReader(path)
        last = 0
        while True:
            records = reader.read(last)
            if not records:
                break
            last = records[-1][0]
        self._sequence = last
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(self._file, reader.offset)
        self._size = reader.offset

    @property
    def last_sequence(self) -> int:
        """Sequence number of the newest record, 0 before the first."""
        return self._sequence

    def append(self, make_payload: Callable[[int], bytes]) -> int:
        """Appends one record and returns its sequence number.

        ``make_payload(sequence)`` gives its bytes. Raises ``OSError`` if the disk is full; the file
        then ends with the record before, and the number is not used up.
        """
        with self._lock:
            sequence = self._sequence + 1
            payload = make_payload(sequence)
            if len(payload) > MAX_PAYLOAD:
                raise ValueError("an event of %d bytes is over the limit of %d" % (len(payload), MAX_PAYLOAD))
            checksum = zlib.crc32(payload, zlib.crc32(struct.pack("<Q", sequence)))
            data = memoryview(_HEADER.pack(len(payload), checksum, sequence) + payload)
            written = 0
            try:
                while written < len(data):
                    written += os.pwrite(self._file, data[written:], self._size + written)
            except OSError:
                os.ftruncate(self._file, self._size)
                raise
            self._size += len(data)
            self._sequence = sequence
            return sequence

    def sync(self) -> None:
        """Forces what was appended to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


class SpoolReader:
    """Reads records in order while the file grows."""

    def __init__(self, path: str) -> None:
        self._path = path
        #: End of the last whole record read or skipped, bytes.
        self.offset = 0
        #: Sequence number of that record.
        self.last_sequence = 0

    def read(self, after: int = 0, limit: int = _READ) -> List[Tuple[int, bytes]]:
        """Next records (sequence, payload) with a sequence number above ``after``, at most about
        ``limit`` bytes; an empty list if there is none yet. A record that is incomplete or whose
        checksum is wrong ends the readable part."""
        records: List[Tuple[int, bytes]] = []
        try:
            with open(self._path, "rb") as file:
                while not records:
                    file.seek(self.offset)
                    data = file.read(max(limit, MAX_PAYLOAD + _HEADER.size))
                    before = self.offset
                    self._parse(data, after, limit, records)
                    if self.offset == before:
                        break
        except FileNotFoundError:
            pass
        return records

    def _parse(self, data: bytes, after: int, limit: int, records: List[Tuple[int, bytes]]) -> None:
        position = 0
        taken = 0
        while position + _HEADER.size <= len(data) and taken < limit:
            length, checksum, sequence = _HEADER.unpack_from(data, position)
            end = position + _HEADER.size + length
            if length > MAX_PAYLOAD or sequence != self.last_sequence + 1 or end > len(data):
                break
            payload = data[position + _HEADER.size:end]
            if zlib.crc32(payload, zlib.crc32(struct.pack("<Q", sequence))) != checksum:
                break
            self.last_sequence = sequence
            if sequence > after:
                records.append((sequence, payload))
                taken += length
            self.offset += end - position
            position = end
