"""Local steps without a gradient."""

from dataclasses import dataclass

from fedstrata.core.piece import Piece
from helpers import lab


def test_row_14_a_gradient_of_nothing_is_clipped_without_dividing_by_it():
    @dataclass(frozen=True)
    class Nothing(Piece):
        def objective(self, loss, ctx):
            return lambda p, b: 0 * loss(p, b)

    for optimizer in ("sgd", "adam"):
        found = lab.play(Nothing(), local_clip=1.0, local_optimizer=optimizer, local_lr=0.01)
        assert lab.bits(found.model) == lab.bits(lab.parts().setup.model)
        assert all(row["updated"] and row["refused"] == [] for row in found.rows)
