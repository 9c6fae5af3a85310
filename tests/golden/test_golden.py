"""Numbers change on purpose only. On the machine that recorded them, bits; elsewhere the same numbers to 1e-4. See record.py."""

import json
import math

import pytest

from golden import record

KNOWN = json.loads(record.FILE.read_text(encoding="utf-8"))
ELSEWHERE = 1e-4  # another order of float sums, through some hundreds of local steps


def test_every_golden_run_is_recorded():
    assert list(KNOWN["runs"]) == list(record.RUNS)


@pytest.mark.parametrize("name", record.RUNS)
def test_a_golden_run_is_unchanged(name):
    found, known = record.measure(record.RUNS[name]), KNOWN["runs"][name]
    assert (found["bytes_up"], found["flops"]) == (known["bytes_up"], known["flops"])
    if record.machine() == KNOWN["machine"]:
        assert found == known
        return
    for key in ("loss", "norm", "mean"):
        assert found[key] == pytest.approx(known[key], rel=ELSEWHERE)
    for key in ("accuracy", "personal"):  # one test sample of 360, or of a client's few, may change sides
        assert (found[key] is None) == (known[key] is None)
        assert found[key] is None or math.isclose(found[key], known[key], abs_tol=0.01)
