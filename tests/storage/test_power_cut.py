"""A power cut at any moment of a save leaves the round before or the new one, whole (faults row 42, goal D2).

The operating system's calls are recorded; then the disk is imagined after each of them: what was not flushed may be
lost, torn or there, and of the renames and removals since the last flush of the folder any prefix may have reached the
disk.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from fedstrata.storage import Checkpoint, MappedRows, committed, load, save, sha256_of


class Recorder:
    """Every call that changes the folder, in order."""

    def __init__(self, monkeypatch, folder):
        self.calls, self.open, self.folder = [], {}, str(folder)
        real = {name: getattr(os, name) for name in ("open", "write", "fsync", "replace", "rename", "unlink", "close")}

        def opened(path, flags, *args, **kwargs):
            handle = real["open"](path, flags, *args, **kwargs)
            if str(path).startswith(self.folder):
                self.open[handle] = str(path)
                if flags & os.O_TRUNC:
                    self.calls.append(("create", str(path)))
            return handle

        def closed(handle):
            self.open.pop(handle, None)
            real["close"](handle)

        def wrote(handle, data):
            count = real["write"](handle, data)
            if handle in self.open:
                self.calls.append(("write", self.open[handle], bytes(data[:count])))
            return count

        def synced(handle):
            real["fsync"](handle)
            if handle in self.open:
                self.calls.append(("sync", self.open[handle]))

        def moved(source, target, **kwargs):
            real["replace"](source, target)
            self.calls.append(("move", str(source), str(target)))

        def removed(path, **kwargs):
            if os.path.lexists(path):
                self.calls.append(("remove", str(path)))
            real["unlink"](path)

        fakes = {
            "open": opened,
            "close": closed,
            "write": wrote,
            "fsync": synced,
            "replace": moved,
            "rename": moved,
            "unlink": removed,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(os, name, fake)


class Content:
    def __init__(self, safe=b""):
        self.safe, self.now = safe, safe

    def on_disk(self, fate):
        lost = self.now.removeprefix(self.safe)
        if fate == "lost":
            return self.safe
        if fate == "torn":  # half of the blocks of 512 bytes arrived, the rest reads as zeros
            kept = len(lost) // 1024 * 512
            return self.safe + lost[:kept] + bytes(len(lost) - kept)
        return self.now


def disks(before, calls, folder):
    """Every disk that a power cut after these calls may leave: name -> bytes."""
    contents = {str(folder / name): Content(data) for name, data in before.items()}
    names, pending = dict(contents), []
    for call in calls:
        if call[0] == "create":
            fresh = Content()
            contents[call[1]] = fresh
            pending.append(("link", call[1], fresh))
        elif call[0] == "write":
            contents[call[1]].now += call[2]
        elif call[0] == "sync" and call[1] == str(folder):
            for change in pending:
                apply(names, change)
            pending = []
        elif call[0] == "sync":
            contents[call[1]].safe = contents[call[1]].now
        elif call[0] == "move":
            contents[call[2]] = contents.pop(call[1])
            pending.append(call)
        elif call[0] == "remove":
            contents.pop(call[1])
            pending.append(call)
    for kept in range(len(pending) + 1):
        if kept:
            apply(names, pending[kept - 1])
        for fate in ("lost", "torn", "there"):
            yield {Path(name).name: content.on_disk(fate) for name, content in names.items()}


def apply(names, change):
    if change[0] == "link":
        names[change[1]] = change[2]
    elif change[0] == "move":
        if change[1] in names:
            names[change[2]] = names.pop(change[1])
    else:
        names.pop(change[1], None)


def state(at):
    return Checkpoint(at, {"model": torch.full((300,), float(at))}, {"at": at})


def test_a_power_cut_at_any_call_leaves_a_whole_round(tmp_path, monkeypatch):
    folder, imagined = tmp_path / "run", tmp_path / "imagined"
    rows = MappedRows()
    for at in range(4):
        rows.put(at, {client: {"local": torch.full((200,), float(at))} for client in (at % 2, 10 + at)})
        if at < 3:
            save(folder, state(at), rows)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with monkeypatch.context() as patch:
        recorder = Recorder(patch, folder)
        save(folder, state(3), rows)
    assert committed(folder) == [3, 2]
    kinds = [call[0] for call in recorder.calls]
    assert kinds.count("move") == 3
    assert "remove" in kinds
    seen, tried = [], set()
    for done in range(len(recorder.calls) + 1):
        for disk in disks(before, recorder.calls[:done], folder):
            image = tuple(sorted(disk.items()))
            if image in tried:
                continue
            tried.add(image)
            shutil.rmtree(imagined, ignore_errors=True)
            imagined.mkdir()
            for name, data in disk.items():
                (imagined / name).write_bytes(data)
            back = MappedRows()
            checkpoint = load(imagined, back)
            at = checkpoint.round
            assert at in (2, 3)
            assert sha256_of([checkpoint.tensors["model"]]) == sha256_of([state(at).tensors["model"]])
            assert back.seen() == 2 + at + 1
            assert back.get(at % 2)["local"].tolist() == [float(at)] * 200
            assert load(imagined, MappedRows(), previous=True).round == at - 1
            seen.append(at)
    assert {2, 3} == set(seen)
    assert len(tried) > 20
    assert next(iter(disks(before, recorder.calls, folder))).keys() == {
        path.name for path in folder.iterdir()
    }  # nothing is left over at the end


def test_the_imagined_disk_would_show_a_missing_flush(tmp_path, monkeypatch):
    """The test of the test: without flushes the same search finds a broken disk."""
    folder, imagined = tmp_path / "run", tmp_path / "imagined"
    save(folder, state(0))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with monkeypatch.context() as patch:
        recorder = Recorder(patch, folder)
        save(folder, state(1))
    calls = [call for call in recorder.calls if call[0] != "sync"]
    broken = 0
    for done in range(len(calls) + 1):
        for disk in disks(before, calls[:done], folder):
            shutil.rmtree(imagined, ignore_errors=True)
            imagined.mkdir()
            for name, data in disk.items():
                (imagined / name).write_bytes(data)
            try:
                load(imagined)
            except ValueError:
                broken += 1
    assert broken
