"""Numbers change on purpose only: on the machine of the record every bit, elsewhere the same numbers to 1e-4.

The file names the machine, its instruction set and the version of torch; see record.py.
"""

import json
import math

import pytest

from golden import record

KNOWN = json.loads(record.FILE.read_text(encoding="utf-8"))
ELSEWHERE = 1e-4
"""Another order of float sums, through some hundreds of local steps: 4e-7 at most on another maker's processor under
three instruction sets; the rest is for a ReLU that flips where a sum is zero to rounding."""


def differences(found, known, *, here):
    """What moved: any bit on the machine of the record, more than rounding elsewhere."""
    if here:
        return [key for key in known if found[key] != known[key]]
    moved = [key for key in ("bytes_up", "flops") if found[key] != known[key]]
    moved += [key for key in ("loss", "norm", "mean") if not math.isclose(found[key], known[key], rel_tol=ELSEWHERE)]
    for key in ("accuracy", "personal"):  # one test sample of 360, or of a client's few, may change sides
        if (found[key] is None) != (known[key] is None) or (
            found[key] is not None and abs(found[key] - known[key]) > 0.01
        ):
            moved.append(key)
    return moved


def test_every_golden_run_is_recorded():
    assert list(KNOWN["runs"]) == list(record.RUNS)


@pytest.mark.parametrize("name", record.RUNS)
def test_a_golden_run_is_unchanged(name):
    here = record.machine() == KNOWN["machine"]
    assert differences(record.measure(record.RUNS[name]), KNOWN["runs"][name], here=here) == []


def test_both_comparisons_see_a_change():
    known = next(iter(KNOWN["runs"].values()))
    assert differences(known | {"sha256": "0"}, known, here=True) == ["sha256"]
    assert differences(known | {"sha256": "0"}, known, here=False) == []
    assert differences(known | {"norm": known["norm"] * 1.001}, known, here=False) == ["norm"]
    assert differences(known | {"personal": 0.5}, known, here=False) == ["personal"]
    assert differences(known | {"flops": 1.0}, known, here=False) == ["flops"]
