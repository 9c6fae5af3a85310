"""Advice before measurement: what a federation looks like, what is wrong with it, what will be slow, and which methods
to compare first.
"""

from __future__ import annotations

from fedstrata.doctor.diagnosis import Advice, CostEstimate, Diagnosis, Problem
from fedstrata.doctor.examine import examine

__all__ = ["Advice", "CostEstimate", "Diagnosis", "Problem", "examine"]
