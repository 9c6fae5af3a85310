"""What ``make test`` runs and what only ``make test-all`` does."""

import pytest


def tiered(cases, short):
    """Cases for parametrize, tuples for several names: ``make test`` runs those in ``short``, ``make test-all`` all."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in short else pytest.mark.full)
        for case in cases
    ]
