"""Arithmetic on parameters: one flat vector, named views, values."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.params import Model, Params, dot, sqdist, tmap, zeros


def three(start=0.0):
    return Params.of(
        {
            "a": torch.arange(6.0).reshape(2, 3) + start,
            "b": torch.tensor([10.0 + start]),
            "c": torch.arange(2.0) + 20 + start,
        }
    )


def test_views_share_storage_with_the_flat_vector():
    p = three()
    p.flat[6] = -1
    assert p["b"].item() == -1
    p["a"][1, 2] = 7
    assert p.flat[5].item() == 7


def test_of_copies_its_tensors():
    tensor = torch.zeros(2)
    p = Params.of({"x": tensor})
    tensor += 1
    assert p["x"].tolist() == [0, 0]


def test_operators_return_new_values():
    p, q = three(), three(1.0)
    before = p.flat.clone()
    assert torch.equal((p + q).flat, p.flat + q.flat)
    assert torch.equal((p - q).flat, p.flat - q.flat)
    assert torch.equal((2 * p / 4).flat, p.flat / 2)
    assert torch.equal((-p).flat, -p.flat)
    assert torch.equal(p.flat, before)


def test_or_replaces_named_tensors_and_leaves_the_others():
    p, part = three(), Params.of({"c": torch.tensor([5.0, 6.0]), "a": torch.zeros(2, 3)}).pick(["c"])
    joined = p | part
    assert joined["c"].tolist() == [5, 6]
    assert torch.equal(joined["a"], p["a"])
    assert p["c"].tolist() == [20, 21], "a copy"


def test_or_refuses_names_that_are_not_there():
    with pytest.raises(KeyError, match="nowhere"):
        three() | Params.of({"nowhere": torch.zeros(1)})


def test_or_keeps_our_statistics_and_drops_those_of_the_part():
    p = Model(three(), Params.of({"mean": torch.ones(1)}))
    part = Model(three(1.0), Params.of({"mean": torch.zeros(1)}))
    for joined in (p | three(1.0), p | part, p | part.pick(["a", "c"])):
        assert joined.statistics["mean"].item() == 1


def test_pick_is_a_view_of_one_stretch_and_a_copy_of_several():
    p = three()
    assert p.pick(["a", "b"]).flat.data_ptr() == p.flat.data_ptr()
    assert p.pick(["a", "c"]).flat.tolist() == [0, 1, 2, 3, 4, 5, 20, 21]
    assert len(p.pick([]).flat) == 0
    assert list(p.pick(["c", "a", "none"])) == ["a", "c"], "order of layout; absent names are left out"


def test_frozen_has_no_gradient_and_clone_has_its_own_vector():
    p = three()
    p.flat.requires_grad_()
    assert not p.frozen().flat.requires_grad
    assert p.frozen("batch_stats").eval_mode == "batch_stats"
    assert p.clone().flat.data_ptr() != p.flat.data_ptr()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_pick_then_or_gives_back_what_was_picked(sizes, data):
    p = Params.of({f"t{i}": torch.full((n,), float(i)) for i, n in enumerate(sizes)})
    names = data.draw(st.sets(st.sampled_from(list(p))))
    part = p.pick(names)
    assert torch.equal((p | (part + part)).pick(names).flat, 2 * part.flat)
    rest = frozenset(p) - names
    assert torch.equal((p | (part + part)).pick(rest).flat, p.pick(rest).flat)


def test_runs_are_the_longest_stretches():
    spec = three().spec
    assert spec.runs(["a", "b", "c"]) == ((0, 9),)
    assert spec.runs(["a", "c"]) == ((0, 6), (7, 9))


def test_reductions_act_on_the_last_axis():
    stacked = Params(torch.stack([three().flat, three(1.0).flat]), three().spec)
    assert stacked["a"].shape == (2, 2, 3)
    assert sqdist(stacked, three()).tolist() == [0, 9]
    assert dot(three(), three()).item() == float((three().flat ** 2).sum())
    assert tmap(torch.mul, three(), three()).flat.tolist() == (three().flat ** 2).tolist()
    assert not zeros(three()).flat.any()


def test_arithmetic_on_a_model_keeps_its_statistics():
    model = Model(three(), Params.of({"m": torch.ones(1)}))
    for made in (model + three(), model - three(), 2 * model / 4, -model, model.frozen(), model.new(model.flat)):
        assert isinstance(made, Model)
        assert made.statistics is model.statistics
    assert not isinstance(model.params, Model)
    assert model.params.flat is model.flat
    copy = model.clone()
    copy.statistics["m"].add_(1)
    assert model.statistics["m"].item() == 1


def test_torch_transforms_may_carry_parameters():
    out = torch.vmap(lambda p: (p * 2).flat)(Params(torch.ones(4, 9), three().spec))
    assert out.shape == (4, 9)
