"""The spool: gap-free numbers, checksums, torn tails, growing files."""

import os
import threading

import pytest

from crosstrain_service.spool import MAX_PAYLOAD, SpoolReader, SpoolWriter


def write(path, count, start=0):
    writer = SpoolWriter(path)
    for index in range(start, start + count):
        writer.append(lambda sequence, index=index: b"%d:%d" % (sequence, index))
    writer.close()


def everything(path, after=0, limit=1 << 20):
    reader, found = SpoolReader(path), []
    while True:
        records = reader.read(after, limit)
        if not records:
            return found
        found += records


def test_numbers_have_no_gap_over_several_writers(tmp_path):
    path = str(tmp_path / "spool")
    write(path, 3)
    write(path, 2, 3)
    assert everything(path) == [(n, b"%d:%d" % (n, n - 1)) for n in range(1, 6)]
    assert [number for number, _ in everything(path, after=3)] == [4, 5]
    assert [number for number, _ in everything(path, limit=1)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("cut", range(1, 24))
def test_torn_tail_is_cut_off_before_the_next_record(tmp_path, cut):
    path = str(tmp_path / "spool")
    write(path, 2)
    whole = os.path.getsize(path)
    os.truncate(path, whole - min(cut, 19))
    assert [number for number, _ in everything(path)] == [1]
    write(path, 1, 7)
    assert everything(path) == [(1, b"1:0"), (2, b"2:7")]


@pytest.mark.parametrize("position", [0, 4, 8, 17])
def test_damaged_record_ends_what_is_read(tmp_path, position):
    path = str(tmp_path / "spool")
    write(path, 3)
    with open(path, "r+b") as file:
        file.seek(19 + position)
        byte = file.read(1)
        file.seek(19 + position)
        file.write(bytes([byte[0] ^ 0xFF]))
    assert everything(path) == [(1, b"1:0")]


def test_reader_follows_a_growing_file(tmp_path):
    path = str(tmp_path / "spool")
    reader = SpoolReader(path)
    assert reader.read() == []
    write(path, 1)
    assert len(reader.read()) == 1
    assert reader.read() == []
    write(path, 1, 1)
    assert reader.read() == [(2, b"2:1")]


def test_threads_share_a_writer(tmp_path):
    path = str(tmp_path / "spool")
    writer = SpoolWriter(path)
    threads = [threading.Thread(target=lambda: [writer.append(lambda n: b"%d" % n) for _ in range(200)])
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert everything(path) == [(n, b"%d" % n) for n in range(1, 801)]


def test_oversized_record_is_refused_and_uses_no_number(tmp_path):
    path = str(tmp_path / "spool")
    writer = SpoolWriter(path)
    with pytest.raises(ValueError):
        writer.append(lambda n: b"x" * (MAX_PAYLOAD + 1))
    assert writer.append(lambda n: b"x") == 1
