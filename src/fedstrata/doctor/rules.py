"""Collect the rules on which methods are sensible here: those of every method's row, and FedAvg's.

Rules speak before anything was trained; only a comparison decides. See ``fedstrata.methods.parts.advice``.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedstrata.methods import rows
from fedstrata.methods.parts.advice import Rule, always

MOST = 8  # methods of the proposed comparison, fedavg and a control included
BASELINE = Rule("baseline", always, "the baseline that differences are taken to")


def rules() -> Mapping[str, tuple[Rule, ...]]:
    """Return the rules by method, in call syntax, in the order in which candidates are proposed."""
    ranked = sorted(rows(), key=lambda row: row.rank)
    return {"fedavg": (BASELINE,), **{row.advised_as or row.name: row.advice for row in ranked if row.advice}}
