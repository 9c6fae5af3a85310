"""Rows: the same numbers in memory and on disk, whatever was moved, merged or resumed in between (T25)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.common.errors import StateError
from fedstrata.storage import Checkpoint, MappedRows, MemoryRows, load, preflight, save
from fedstrata.storage import client_state as rows_module

STORES = [MemoryRows, MappedRows]


def row(value, client=0):
    """Rows differ in form between clients, and hold what a float cannot."""
    extra = {"count": torch.tensor(value)} if client % 2 else {}
    return {
        "piece.local": torch.full((3, 2), float(value)),
        "odd": torch.tensor([-0.0, 1e-45]),
        "empty": torch.empty(0, 2),
    } | extra


def assert_row(found, value, client=0):
    wanted = row(value, client)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def assert_all(store, truth):
    assert store.seen() == len(truth)
    for client, value in truth.items():
        assert_row(store.get(client), value, client)


@pytest.mark.parametrize("store", STORES)
def test_a_row_exists_once_it_was_written(tmp_path, store):
    rows = store()
    assert rows.get(3) is None
    assert rows.seen() == 0
    rows.put(0, {3: row(1, 3)})
    assert rows.seen() == 1
    assert_row(rows.get(3), 1, 3)
    save(tmp_path, Checkpoint(0), rows)
    assert_row(rows.get(3), 1, 3)
    assert rows.get(4) is None


@pytest.mark.parametrize("store", STORES)
def test_a_stored_state_cannot_be_changed_from_outside(tmp_path, store):
    rows = store()
    mine = row(1)
    rows.put(0, {0: mine})
    for _ in range(2):  # fresh, then committed
        mine["piece.local"].fill_(9)
        rows.get(0)["piece.local"].fill_(9)
        assert_row(rows.get(0), 1)
        if not tmp_path.joinpath("rows-0.safetensors").exists():
            rows.commit(tmp_path, 0)


@pytest.mark.parametrize("store", STORES)
def test_a_view_of_a_large_vector_is_stored_alone(store):
    rows = store()
    rows.put(0, {0: {"head": torch.arange(1000.0)[10:12]}})
    assert rows.get(0)["head"].untyped_storage().nbytes() == 8


plans = st.lists(st.dictionaries(st.integers(0, 7), st.integers(0, 99), max_size=4), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(plans, st.sampled_from([2, 3, 64]), st.data())
def test_both_stores_hold_what_a_dictionary_would(tmp_path_factory, plans, files, data):
    """Any sequence of writes, commits and resumes into either store.

    With so few files that moving and merging happen.
    """
    folder = tmp_path_factory.mktemp("rows")
    before, rows_module.FILES = rows_module.FILES, files
    try:
        rows, truth = data.draw(st.sampled_from(STORES))(), {}
        for at, plan in enumerate(plans):
            rows.put(at, {client: row(value, client) for client, value in plan.items()})
            truth |= plan
            assert_all(rows, truth)
            save(folder, Checkpoint(at), rows)
            assert_all(rows, truth)
            if data.draw(st.booleans()):
                rows = data.draw(st.sampled_from(STORES))()
                load(folder, rows)
                assert_all(rows, truth)
            assert (
                len([p for p in folder.iterdir() if p.name.startswith("rows-")]) <= 2 * files + 2
            )  # those of two checkpoints
    finally:
        rows_module.FILES = before


@pytest.mark.parametrize("store", STORES)
def test_both_stores_write_the_same_bytes(tmp_path, store):
    rows = store()
    for at in range(6):
        rows.put(at, {client: row(at, client) for client in (at % 4, at + 10)})
        save(tmp_path, Checkpoint(at), rows)
    reference = MemoryRows()
    for at in range(6):
        reference.put(at, {client: row(at, client) for client in (at % 4, at + 10)})
        save(tmp_path / "reference", Checkpoint(at), reference)
    for path in tmp_path.glob("rows-*"):
        assert path.read_bytes() == (tmp_path / "reference" / path.name).read_bytes()


def test_only_new_rows_are_written(tmp_path):
    rows = MappedRows()
    rows.put(0, {client: {"w": torch.zeros(1000)} for client in range(50)})
    save(tmp_path, Checkpoint(0), rows)
    rows.put(1, {7: {"w": torch.ones(1000)}})
    save(tmp_path, Checkpoint(1), rows)
    assert (tmp_path / "rows-1.safetensors").stat().st_size < 5000
    assert (tmp_path / "rows-0.safetensors").stat().st_size > 200_000


@pytest.mark.parametrize("store", STORES)
def test_dead_rows_are_cleared_away(tmp_path, store):
    """The disk holds about twice the living rows, and what the checkpoint before needs: at most four times here."""
    rows = store()
    for at in range(200):
        rows.put(at, {(at * 7 + i) % 20: {"w": torch.full((1000,), float(at))} for i in range(3)})
        save(tmp_path, Checkpoint(at), rows)
    assert sum(path.stat().st_size for path in tmp_path.glob("rows-*")) < 4 * 20 * 4000


@pytest.mark.parametrize("store", STORES)
def test_many_rounds_with_new_clients_stay_few_files(tmp_path, store):
    rows = store()
    for at in range(150):
        rows.put(at, {at: row(at, at)})
        rows.commit(tmp_path, at)
    assert len(rows._files) <= rows_module.FILES
    assert_all(rows, {at: at for at in range(150)})


@pytest.mark.parametrize("store", STORES)
def test_a_round_without_rows_writes_no_file(tmp_path, store):
    rows = store()
    save(tmp_path, Checkpoint(0), rows)
    assert not list(tmp_path.glob("rows-*"))
    load(tmp_path, store())


def test_uncommitted_rows_are_forgotten_at_a_resume(tmp_path):
    rows = MappedRows()
    rows.put(0, {0: row(0)})
    save(tmp_path, Checkpoint(0), rows)
    rows.put(1, {0: row(1), 2: row(1)})
    rows.commit(tmp_path, 1)  # and the process dies before the manifest
    back = MappedRows()
    load(tmp_path, back)
    assert_all(back, {0: 0})
    back.put(1, {0: row(5)})
    save(tmp_path, Checkpoint(1), back)
    assert_all(back, {0: 5})


def test_one_file_of_the_part_missing_is_an_error_not_a_fresh_start(tmp_path):
    rows = MappedRows()
    for at in range(3):
        rows.put(at, {at: row(at)})
        save(tmp_path, Checkpoint(at), rows)
    (tmp_path / "rows-0.safetensors").unlink()
    for store in STORES:
        with pytest.raises(StateError, match=r"rows-0\.safetensors is missing"):
            load(tmp_path, store())


def test_reading_survives_the_clearing_of_its_file(tmp_path):
    rows = MappedRows()
    for at in range(5):
        rows.put(at, {0: row(at), 1: row(at, 1)} if at == 0 else {0: row(at)})
        save(tmp_path, Checkpoint(at), rows)
        assert_row(rows.get(1), 0, 1)
        assert_row(rows.get(0), at)


@pytest.mark.parametrize(
    "bad",
    [
        {"w": [1.0]},
        {"w": torch.ones(1, dtype=torch.complex64)},
        {"w": torch.ones(1).to_sparse()},
        {"w": torch.ones(1, device="meta")},
        {"a b": torch.ones(1)},
    ],
    ids=["list", "complex", "sparse", "meta", "name"],
)
def test_what_cannot_be_stored_is_refused_at_once_and_as_a_whole(bad):
    rows = MemoryRows()
    with pytest.raises(StateError, match="client 1's row"):
        rows.put(0, {0: row(0), 1: bad})
    assert rows.seen() == 0


def test_rounds_go_forward_only(tmp_path):
    rows = MemoryRows()
    rows.put(3, {0: row(0)})
    with pytest.raises(StateError, match="only go forward"):
        rows.put(2, {0: row(0)})
    with pytest.raises(StateError, match="cannot be committed"):
        rows.commit(tmp_path, 2)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_rows_that_cannot_fit_are_refused_with_the_arithmetic(tmp_path, where):
    with pytest.raises(StateError) as caught:
        preflight(1_000_000, 10**9, None if where == "memory" else tmp_path / "not" / "yet")
    message = str(caught.value)
    assert "1,000,000 clients x 1 GB" in message
    assert ("= 1 PB" if where == "memory" else "x 2 (old rows are cleared later) = 2 PB") in message
    assert "Options" in message


def test_rows_that_fit_pass():
    preflight(100, 1000, None)
    preflight(0, 10**18, None)


def test_memory_does_not_grow_with_rounds(tmp_path):
    """T10: with states on disk, only those of the last round are in memory."""
    rows = MappedRows()
    for at in range(30):
        rows.put(at, {client: {"w": torch.zeros(100)} for client in range(at, at + 5)})
        save(tmp_path, Checkpoint(at), rows)
        assert not rows._fresh
        assert len(rows._maps) == len(rows._files) <= rows_module.FILES
