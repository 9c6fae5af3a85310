"""Lines of results survive a torn tail, and a run folder has one owner (faults rows 49, 54)."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedstrata.common.errors import StateError
from fedstrata.storage import append_line, lock, read_lines, truncate_lines
from helpers.tiers import tiered

ROWS = [{"round": n, "accuracy": 0.1 * n, "name": 'é"\n', "auc": None} for n in range(4)]


def written(path):
    return [append_line(path, row) for row in ROWS]


def test_lines_come_back_as_they_were(tmp_path):
    lengths = written(tmp_path / "rounds.jsonl")
    assert lengths[-1] == (tmp_path / "rounds.jsonl").stat().st_size
    lines = read_lines(tmp_path / "rounds.jsonl")
    assert (lines.rows, lines.torn) == (ROWS, 0)
    assert [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()] == ROWS


def test_a_tail_torn_at_any_byte_is_left_out_and_counted(tmp_path):
    path = tmp_path / "rounds.jsonl"
    lengths = written(path)
    whole = path.read_bytes()
    for length in range(lengths[-2], lengths[-1]):
        path.write_bytes(whole[:length])
        lines = read_lines(path)
        assert lines.rows == ROWS[:3]
        assert lines.torn == length - lengths[-2]
        if lines.torn:
            with pytest.raises(StateError, match="torn line"):
                append_line(path, ROWS[3])
        assert truncate_lines(path, lengths[-2]) == lines.torn
        assert append_line(path, ROWS[3]) == lengths[-1]
        assert path.read_bytes() == whole


def test_lines_of_an_uncommitted_round_are_cut_off(tmp_path):
    path = tmp_path / "rounds.jsonl"
    lengths = written(path)
    assert read_lines(path, lengths[1]).rows == ROWS[:2]
    assert truncate_lines(path, lengths[1]) == lengths[3] - lengths[1]
    assert read_lines(path).rows == ROWS[:2]


def test_committed_lines_that_are_gone_are_an_error(tmp_path):
    path = tmp_path / "rounds.jsonl"
    length = written(path)[-1]
    for task in (read_lines, truncate_lines):
        with pytest.raises(StateError, match=f"{length + 1} were committed"):
            task(path, length + 1)
        with pytest.raises(StateError, match="missing"):
            task(tmp_path / "other.jsonl", 1)
    assert truncate_lines(tmp_path / "other.jsonl", 0) == 0


@pytest.mark.parametrize("bad", [b'{"a":NaN}', b'{"a":1e999}', b'{"a":1,"a":2}', b"{", b"", b"[]", b"\xff", b"[" * 100])
def test_a_bad_line_before_the_last_is_damage(tmp_path, bad):
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(b'{"a":0}\n' + bad + b'\n{"a":1}\n')
    with pytest.raises(StateError, match="line 2 is damaged"):
        read_lines(path)


@pytest.mark.parametrize("row", [{"a": float("nan")}, {"a": object()}, {"a": "\ud800"}])
def test_a_row_that_is_not_json_is_refused_and_nothing_written(tmp_path, row):
    path = tmp_path / "rounds.jsonl"
    with pytest.raises(StateError, match="plain JSON"):
        append_line(path, row)
    assert not path.exists()


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "rounds.jsonl"
    append_line(path, ROWS[0])
    before = path.read_bytes()
    real, room = os.pwrite, [10]

    def short(handle, data, place):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(handle, data[: room[0]], place)
        room[0] -= count
        return count

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", short)
        with pytest.raises(StateError, match="No space"):
            append_line(path, ROWS[1])
    assert path.read_bytes() == before


def test_a_second_owner_in_this_process_is_refused(tmp_path):
    with lock(tmp_path / "run"):
        with pytest.raises(StateError, match=f"process {os.getpid()} on "), lock(tmp_path / "run"):
            pass
        with lock(tmp_path / "other"):
            pass
    with lock(tmp_path / "run"):
        pass


HOLD = """
import os, sys, time
from pathlib import Path
from fedstrata.storage import lock
with lock(Path(sys.argv[1])):
    if sys.argv[2] == "fork" and os.fork() == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)
    print("held", flush=True)
    time.sleep(20)
"""


@pytest.mark.parametrize("how", tiered(["alone", "fork"], ["alone"]))
def test_another_process_is_refused_until_the_owner_is_dead(tmp_path, how):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), how], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as owner:
        children = []
        try:
            assert owner.stdout.readline() == "held\n"
            with pytest.raises(StateError, match=f"in use by process {owner.pid} on .* since"), lock(tmp_path):
                pass
            if how == "fork":
                children = [
                    int(pid) for pid in Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
                ]
                assert children
        finally:
            owner.send_signal(signal.SIGKILL)
            owner.wait()
        try:
            deadline = time.monotonic() + 5
            while True:  # a worker that is still alive does not hold the folder
                try:
                    with lock(tmp_path):
                        break
                except StateError:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
