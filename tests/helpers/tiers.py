"""What ``make test`` runs and what only ``make test-all`` does."""

import pytest


def tiered(cases, short):
    """Cases for parametrize: ``make test`` runs those in ``short``, ``make test-all`` runs all."""
    return [pytest.param(case, marks=() if case in short else pytest.mark.full) for case in cases]
