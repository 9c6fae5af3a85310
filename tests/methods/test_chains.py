"""Any two methods either compose, and then train, or are refused with a reason; and pairs that mean the same agree."""

from itertools import permutations

import numpy as np
import pytest

from fedstrata.common.errors import FedstrataError
from fedstrata.methods import rows
from helpers import lab
from helpers.tiers import tiered

FIRST = {row.name: row.examples[0] for row in rows()}


def trained(chain):
    """What two short rounds left, or why there are none."""
    try:
        return lab.play(chain, rounds=2, cohort=2, local_epochs=1)
    except FedstrataError as error:
        return error


@pytest.mark.parametrize("name", tiered(FIRST, ("fedpart", "ditto")))
def test_every_pair_trains_or_is_refused_with_a_reason(name):
    for first, second in permutations(FIRST, 2):
        if first != name:
            continue
        found = trained(f"{FIRST[first]} + {FIRST[second]}")
        if isinstance(found, FedstrataError):
            assert len(str(found).split()) > 8, found
            continue
        assert all(row["updated"] and not row["refused"] for row in found.rows), (first, second)
        assert np.isfinite(found.model.flat.numpy()).all(), (first, second)
        assert all(np.isfinite(m.flat.numpy()).all() for m in found.models), (first, second)


@pytest.mark.parametrize(
    ("chain", "of"),
    [
        ("fedprox(mu=0) + fedavgm(beta=0)", "fedavg"),
        ("fedper + fedbabu(epochs=0)", "fedbabu(epochs=0)"),
        ("fedavgm(beta=0.5) + fedprox(mu=0)", "fedavgm(beta=0.5)"),
        ("fedprox(mu=0.1) + finetune(steps=0)", "fedprox(mu=0.1)"),
        ("fedper(personal='role:head') + fedper(personal='role:head')", None),
    ],
)
def test_a_neutral_piece_changes_no_bit(chain, of):
    if of is None:
        with pytest.raises(FedstrataError, match="occurs 2 times"):
            lab.play(chain)
        return
    left, right = lab.play(chain), lab.play(of)
    assert lab.bits(left.model) == lab.bits(right.model)
    assert [lab.bits(m) for m in left.models] == [lab.bits(m) for m in right.models]


def test_the_order_of_independent_pieces_does_not_matter():
    assert lab.bits(lab.play("fedprox(mu=0.1) + fedadam(lr=0.05)").model) == lab.bits(
        lab.play("fedadam(lr=0.05) + fedprox(mu=0.1)").model
    )


def test_private_layers_leave_server_states_of_other_pieces_alone():
    """A partial update leaves every other entry untouched, in parameters and in states."""
    found = lab.play("fedper + fedavgm(beta=0.9)")
    velocity = found.states["fedavgm"]["velocity"]
    assert not velocity["head.weight"].any()
    assert velocity["first.weight"].any()
    found = lab.play("scaffold + fedper")
    assert not found.states["scaffold"]["control"]["head.weight"].any()
    assert found.states["scaffold"]["control"]["first.weight"].any()
