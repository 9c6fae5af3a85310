"""What methods cost beside local training, by the formulas that FedPhoenix's authors give: FLOPs a round.

A number costs 2 FLOPs in a mean, 4 in a variance, about 10 when it is drawn from a normal law, and 1 when it is added
to an average.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from fedstrata.core.piece import Piece
from fedstrata.core.plan import Setup

LABEL = "FLOPs a round beside training"


def fedphoenix(numbers: int, theta: float, cohort: int) -> float:
    """Count mean and variance of all weights once, draws for a share of them for each client, and the average.

    >>> round(fedphoenix(1, 2 / 64, 10), 3)
    19.125
    """
    return (6 + (10 * theta + 1) * cohort) * numbers


def fedprox(numbers: int, steps: float, cohort: int) -> float:
    """Count three FLOPs a number in each local step of each client.

    >>> fedprox(1, 50, 10)
    1500
    """
    return 3 * steps * cohort * numbers


def fedmut(numbers: int, cohort: int) -> float:
    """Count the step once, and a product and a sum for each client.

    >>> fedmut(1, 10)
    21
    """
    return numbers * (1 + 2 * cohort)


def clusteredsampling(numbers: int, cohort: int, clients: int) -> float:
    """Count distances of each participant's update to all clients': difference, absolute value, sum.

    >>> clusteredsampling(1, 10, 100)
    3000
    """
    return 3 * cohort * clients * numbers


def proximal(_: Piece, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:  # noqa: ARG001
    """Return the ``formulas`` of a piece with a proximal term."""
    return {LABEL: fedprox(setup.layout.spec.total, steps(setup), setup.cohort)}


def steps(setup: Setup) -> float:
    """Return the local steps of a client, the mean over the first hundred that may take part."""
    some = [setup.local_steps(setup.samples.size(client)) for client in islice(setup.eligible, 100)]
    return sum(some) / len(some)
