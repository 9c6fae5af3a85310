"""The script that tests under several instruction sets skips what a processor lacks, with the reason."""

from pathlib import Path

import pytest

import processors


@pytest.mark.parametrize(
    ("wanted", "best", "reason"),
    [
        ("DEFAULT", "AVX2", None),
        ("AVX2", "AVX2", None),
        ("AVX512", "AVX2", "this processor has no AVX512, only AVX2"),
        ("AVX2", "DEFAULT", "this processor has no AVX2, only DEFAULT"),
        ("DEFAULT", "SVE256", "this processor's instruction set is SVE256, which is none of DEFAULT, AVX2, AVX512"),
    ],
)
def test_what_a_processor_lacks_is_skipped_with_the_reason(wanted, best, reason):
    assert processors.lacking(wanted, best) == reason


def test_a_limited_process_uses_no_more_than_it_was_allowed():
    assert processors.capability(processors.limited("DEFAULT", "SSE41")) == "DEFAULT"


@pytest.mark.parametrize("path", processors.TESTS)
def test_what_is_tested_exists(path):
    assert (Path(__file__).parents[1] / path).exists()
