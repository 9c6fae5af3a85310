"""Checkpoints: bit for bit what was saved, or an error that names the file and the way on (faults rows 12, 43, 44, 45,
53).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os

import pytest
import torch

from fedstrata.common.errors import StateError
from fedstrata.storage import Checkpoint, MappedRows, MemoryRows, committed, load, save, sha256_of


def tensors(seed):
    g = torch.Generator().manual_seed(seed)
    odd = torch.tensor([-0.0, 1e-45, -1e-45, float("nan"), float("inf"), 3.4e38])
    return {
        "params/flat": torch.randn(100, generator=g),
        "odd": odd,
        "state/count": torch.tensor(seed),
        "state/half": torch.randn(3, 2, generator=g).to(torch.bfloat16),
        "empty": torch.empty(0, 3),
        "mask": torch.tensor([True, False]),
    }


def point(n):
    return Checkpoint(n, tensors(n), {"lines": 100 * n, "ratio": 0.1, "note": 'é "', "list": [1, None, True]})


def filled(folder, rounds, store=MappedRows):
    rows = store()
    for n in range(rounds):
        rows.put(n, {client: {"local": torch.full((4,), float(n))} for client in (n % 3, 10 + n)})
        save(folder, point(n), rows)
    return rows


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def assert_is(checkpoint, n):
    assert checkpoint.round == n
    assert checkpoint.meta == point(n).meta
    assert checkpoint.tensors.keys() == tensors(n).keys()
    for name, tensor in tensors(n).items():
        back = checkpoint.tensors[name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert sha256_of([back]) == sha256_of([tensor])  # bits, so -0.0, denormals and NaN payloads count


def test_what_is_loaded_is_what_was_saved_bit_for_bit(tmp_path):
    save(tmp_path / "deep" / "checkpoints", point(3))
    assert_is(load(tmp_path / "deep" / "checkpoints"), 3)


@pytest.mark.parametrize("store", [MemoryRows, MappedRows])
def test_loaded_tensors_lie_where_torch_would_put_them(tmp_path, store):
    """A product with one sample chooses its kernel by the address; the last bits of a resumed run follow."""
    rows = store()
    for n in range(3):
        rows.put(n, {client: {"local": torch.randn(13 + n), "seen": torch.ones(())} for client in range(5)})
        save(tmp_path, point(n), rows)
    again = store()
    loaded = load(tmp_path, again)
    tensors = [*loaded.tensors.values(), *(t for client in range(5) for t in again.get(client).values())]
    assert len(tensors) > 10
    assert all(t.data_ptr() % 64 == 0 for t in tensors)


def test_loaded_tensors_can_be_written_to(tmp_path):
    save(tmp_path, point(0))
    load(tmp_path).tensors["params/flat"].add_(1)


def test_views_of_one_vector_are_saved_as_they_are_seen(tmp_path):
    flat = torch.arange(12.0)
    save(tmp_path, Checkpoint(0, {"t": flat.reshape(3, 4).T, "part": flat[5:7]}))
    assert torch.equal(load(tmp_path).tensors["t"], flat.reshape(3, 4).T)
    assert load(tmp_path).tensors["part"].tolist() == [5, 6]


def test_the_two_newest_are_kept_with_all_that_they_name(tmp_path):
    filled(tmp_path, 6)
    assert committed(tmp_path) == [5, 4]
    assert [n for n in names(tmp_path) if n.startswith("state")] == [
        f"state-{n}.{e}" for n in (4, 5) for e in ("json", "safetensors")
    ]
    for previous, n in ((False, 5), (True, 4)):
        rows = MappedRows()
        assert_is(load(tmp_path, rows, previous=previous), n)
        assert rows.seen() == 3 + n + 1
        assert rows.get(10)["local"].tolist() == [0.0] * 4
        assert rows.get(n % 3)["local"].tolist() == [float(n)] * 4


def test_files_are_private_to_the_user(tmp_path):
    filled(tmp_path, 1)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("number", [0, 1])
def test_history_is_not_rewritten(tmp_path, number):
    filled(tmp_path, 2)
    before = digests(tmp_path)
    with pytest.raises(StateError, match="round 1 is committed"):
        save(tmp_path, point(number))
    assert digests(tmp_path) == before


@pytest.mark.parametrize(
    "meta", [{"x": float("nan")}, {"x": (1, 2)}, {1: 2}, {"x": {1: 2}}, {"x": object()}, {"x": 10**30}]
)
def test_meta_that_would_not_come_back_are_refused(tmp_path, meta):
    with pytest.raises(StateError, match="plain JSON"):
        save(tmp_path, Checkpoint(0, {}, meta))
    assert not tmp_path.joinpath("state-0.json").exists()


def test_an_empty_folder_says_so(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StateError, match="no checkpoint"):
            load(folder)


def test_one_checkpoint_has_none_before_it(tmp_path):
    filled(tmp_path, 1)
    with pytest.raises(StateError, match="none before it"):
        load(tmp_path, previous=True)


FILES = ["state-2.json", "state-2.safetensors", "rows-2.safetensors"]
DAMAGE = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "last byte gone": lambda data: data[:-1],
    "one byte more": lambda data: data + b" ",
    "zeros": lambda data: bytes(len(data)),
    "missing": lambda data: None,
}


def damage(path, change):
    data = change(path.read_bytes())
    path.unlink() if data is None else path.write_bytes(data)


def assert_damaged(folder, name):
    before = digests(folder)
    with pytest.raises(StateError) as caught:
        load(folder, MappedRows())
    assert name in str(caught.value)
    assert "--previous continues from the checkpoint before, of round 1" in str(caught.value)
    assert digests(folder) == before  # nothing deleted, nothing moved


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_newest_checkpoint_is_never_used(tmp_path, name, kind):
    filled(tmp_path, 3)
    damage(tmp_path / name, DAMAGE[kind])
    if (name, kind) == ("state-2.json", "missing"):  # then round 2 was never committed
        assert_is(load(tmp_path, MappedRows()), 1)
        return
    assert_damaged(tmp_path, name)
    rows = MappedRows()
    assert_is(load(tmp_path, rows, previous=True), 1)
    assert rows.seen() == 4
    if kind != "missing":
        assert (tmp_path / f"{name}.aside").exists()  # left for inspection
    save(tmp_path, point(2), rows)  # and the run goes on
    assert_is(load(tmp_path, MappedRows()), 2)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_seen(tmp_path, name):
    filled(tmp_path, 3)
    path = tmp_path / name
    good = path.read_bytes()
    positions = range(len(good)) if name.endswith("json") else [*range(64), *range(64, len(good), 13)]
    for position in positions:
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        with pytest.raises(StateError, match=f"{name}.*damaged"):
            load(tmp_path, MappedRows())
    path.write_bytes(good)
    assert_is(load(tmp_path, MappedRows()), 2)


def test_the_one_before_may_be_damaged_too(tmp_path):
    filled(tmp_path, 3)
    for n in (1, 2):
        damage(tmp_path / f"state-{n}.safetensors", DAMAGE["half"])
    before = digests(tmp_path)
    with pytest.raises(StateError, match=r"state-1.safetensors.*start the run anew"):
        load(tmp_path, previous=True)
    assert digests(tmp_path) == before


def test_going_back_keeps_rows_that_both_checkpoints_name(tmp_path):
    rows = MappedRows()
    rows.put(0, {1: {"local": torch.ones(2)}})
    for n in range(3):
        save(tmp_path, point(n), rows)
    assert (tmp_path / "rows-0.safetensors").exists()
    back = MappedRows()
    load(tmp_path, back, previous=True)
    assert back.get(1)["local"].tolist() == [1, 1]
    assert (tmp_path / "rows-0.safetensors").exists()


def test_a_manifest_with_a_damaged_neighbour_is_put_aside_not_deleted(tmp_path):
    rows = filled(tmp_path, 3)
    damage(tmp_path / "state-2.json", DAMAGE["half"])
    save(tmp_path, point(3), rows)
    assert committed(tmp_path) == [3, 1]
    assert (tmp_path / "state-2.json.aside").exists()
    damage(tmp_path / "state-3.safetensors", DAMAGE["half"])
    save(tmp_path, point(4), rows)
    assert committed(tmp_path) == [4, 1]
    assert (tmp_path / "state-3.json.aside").exists()
    assert_is(load(tmp_path, MappedRows(), previous=True), 1)


def test_another_version_of_the_format_is_refused_by_name(tmp_path):
    save(tmp_path, point(0))
    body = json.dumps({"format": 2, "round": 0}).encode()
    (tmp_path / "state-0.json").write_bytes(
        b'{"digest":"%s","body":%s}\n' % (hashlib.sha256(body).hexdigest().encode(), body)
    )
    with pytest.raises(StateError, match="format 2"):
        load(tmp_path)


def test_a_manifest_cannot_lead_out_of_the_folder(tmp_path):
    save(tmp_path / "run", point(0))
    (tmp_path / "secret").write_bytes(b"x")
    part = {"seen": 0, "files": [{"name": "../secret", "sha256": hashlib.sha256(b"x").hexdigest(), "bytes": 1}]}
    with pytest.raises(StateError, match="not a list of rows files"):
        MemoryRows().open(tmp_path / "run", part)


def test_a_link_is_not_followed(tmp_path):
    filled(tmp_path, 1)
    real = tmp_path / "state-0.safetensors"
    real.rename(tmp_path / "elsewhere")
    real.symlink_to("elsewhere")
    with pytest.raises(StateError, match="cannot read"):
        load(tmp_path)


class Shim:
    """The operating system's calls, of which one fails: after ``room`` bytes were written, or at the n-th call of one
    name.
    """

    def __init__(self, monkeypatch, code, *, room=None, call=None, at=1):
        self.monkeypatch, self.code, self.room, self.call, self.left = monkeypatch, code, room, call, at
        for name in ("write", "fsync", "open", "rename", "replace"):
            monkeypatch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name, real):
        def served(*args, **kwargs):
            if name == self.call:
                self.left -= 1
                if self.left == 0:
                    raise OSError(self.code, os.strerror(self.code))
            if name == "write" and self.room is not None:
                if self.room == 0:
                    raise OSError(self.code, os.strerror(self.code))
                count = real(args[0], args[1][: self.room])
                self.room -= count
                return count
            return real(*args, **kwargs)

        return served


def fails_cleanly(folder, rows, match):
    before = digests(folder)
    with pytest.raises(StateError, match=match):
        save(folder, point(3), rows)
    after = digests(folder)
    assert {name: after[name] for name in before} == before
    assert not [name for name in after if name.endswith(".tmp")]


def bytes_of_a_save(folder):
    filled(folder, 4)
    return sum((folder / f"{n}").stat().st_size for n in ("state-3.json", "state-3.safetensors", "rows-3.safetensors"))


def test_a_full_disk_at_any_byte_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    total = bytes_of_a_save(tmp_path / "measure")
    for room in [*range(0, total, 97), total - 2, total - 1]:
        folder = tmp_path / f"full-{room}"
        rows = filled(folder, 3)
        rows.put(3, {client: {"local": torch.full((4,), 3.0)} for client in (0, 13)})
        with monkeypatch.context() as patch:
            Shim(patch, errno.ENOSPC, room=room)
            fails_cleanly(folder, rows, "No space left.*Free some space.*intact")
        assert_is(load(folder, MappedRows()), 2)
        save(folder, point(3), rows)  # with space again, the same store commits the same round
        back = MappedRows()
        assert_is(load(folder, back), 3)
        assert back.get(13)["local"].tolist() == [3.0] * 4


@pytest.mark.parametrize("call", ["write", "fsync", "open", "replace"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.ENOSPC])
def test_a_failing_call_is_an_error_not_a_checkpoint(tmp_path, monkeypatch, call, code):
    for at in range(1, 60):
        folder = tmp_path / f"{call}-{at}"
        rows = filled(folder, 3)
        rows.put(3, {0: {"local": torch.full((4,), 3.0)}})
        with monkeypatch.context() as patch:
            shim = Shim(patch, code, call=call, at=at)
            message = ""
            try:
                save(folder, point(3), rows)
            except StateError as error:
                message = str(error)
            if shim.left > 0:
                break  # a save makes fewer calls of this kind
            assert os.strerror(code) in message
        assert not [name for name in names(folder) if name.endswith(".tmp")]
        back = load(folder, MappedRows())
        assert_is(back, back.round)
        # After the manifest's rename a failure can only concern the flush of the folder or the reading back: the round
        # may be there.
        assert back.round == 2 or call in ("fsync", "open")
    else:
        pytest.fail("more calls than expected")


def test_a_read_only_folder_is_refused(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere; the shim above replaces it")
    filled(tmp_path, 1)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StateError, match="writable"):
            save(tmp_path, point(1))
    finally:
        tmp_path.chmod(0o700)


def test_a_write_that_reads_back_differently_deletes_nothing(tmp_path, monkeypatch):
    filled(tmp_path, 3)
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(len(data))))  # a disk that lies
    with pytest.raises(StateError, match="damaged"):
        save(tmp_path, point(3))
    monkeypatch.undo()
    assert committed(tmp_path) == [3, 2, 1]
    assert_is(load(tmp_path, MappedRows(), previous=True), 2)


def test_a_model_hash_is_over_bytes_in_order():
    a, b = torch.tensor([1.0, -0.0]), torch.tensor([3])
    assert sha256_of([a, b]) == hashlib.sha256(a.numpy().tobytes() + b.numpy().tobytes()).hexdigest()
    assert sha256_of([a, b]) != sha256_of([b, a])
    assert sha256_of([torch.tensor([0.0])]) != sha256_of([torch.tensor([-0.0])])
    assert sha256_of([torch.arange(6.0).reshape(2, 3).T]) == sha256_of([torch.tensor([[0.0, 3], [1, 4], [2, 5]])])
