"""Diagnose a federation before training: its skew, problems and costs, and the methods to compare first."""

from __future__ import annotations

from fedstrata.doctor.diagnosis import Advice, CostEstimate, Diagnosis, Problem
from fedstrata.doctor.examine import examine

__all__ = ["Advice", "CostEstimate", "Diagnosis", "Problem", "examine"]
