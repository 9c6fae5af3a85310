"""Comparisons whose files are damaged, and sentences about runs that are not all there."""

import dataclasses
import json

import pytest

from fedstrata.analysis.findings import findings
from fedstrata.common.errors import StateError
from fedstrata.compare.comparison_file import FILE, read
from helpers.comparisons import asked, make
from helpers.handmade import comparison, result


def scored(values):
    """The answer on a comparison whose selected accuracies are these: label -> one for each seed, None for a run that
    failed.
    """
    seeds = tuple(range(len(next(iter(values.values())))))
    told = {"personal": None, "personal_selected": None}
    runs = {
        (label, seed): result(
            label, seed, rounds=8, clients=0, accuracy={"final": v, "best": v, "window": v, "selected": v, **told}
        )
        for label, row in values.items()
        for seed, v in zip(seeds, row, strict=True)
        if v is not None
    }
    return findings(dataclasses.replace(comparison(tuple(values), seeds), results=runs)).answer


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"format": 1}'])
def test_the_same_call_mends_a_damaged_record_as_its_message_promises(tmp_path, text):
    contest = asked(tmp_path, seeds=(0,), executor="loop", rounds=1)
    contest.folder.mkdir()
    record = contest.folder / FILE
    record.write_bytes(text)
    with pytest.raises(StateError, match=r"damaged|format"):
        read(contest.folder)
    make(contest, observers=(lambda _event: None,))  # in this process
    assert len(read(contest.folder).results) == 2
    assert (contest.folder / f"{FILE}.damaged-1").read_bytes() == text


def test_a_record_of_another_comparison_is_still_refused(tmp_path):
    contest = asked(tmp_path, seeds=(0,))
    contest.folder.mkdir()
    (contest.folder / FILE).write_text(json.dumps({"format": 1, "digest": "another"}))
    with pytest.raises(StateError, match="another comparison"):
        make(contest)
    assert (contest.folder / FILE).exists()


def test_a_baseline_whose_mean_misses_the_hard_seed_is_not_called_best():
    answer = scored({"fedavg": (0.8, 0.81, 0.79, None), "scaffold": (0.82, 0.832, 0.811, 0.2)})
    assert (
        "fedavg (the baseline) has the best mean, 0.800 selected accuracy, but not on the same seeds as every other"
        " method" in answer
    )
    assert "on seeds in common, scaffold is shown to be better than fedavg" in answer


def test_equal_scores_have_no_best_one():
    assert "has the best" not in scored({"fedavg": (0.5, 0.6, 0.5), "scaffold": (0.5, 0.6, 0.5)})
    answer = scored({"fedavg": (0.5, 0.6, 0.5), "scaffold": (0.5, 0.6, 0.5), "moon": (0.2, 0.4, 0.3)})
    assert (
        "fedavg (the baseline) and scaffold have the same score in every seed, 0.533 selected accuracy; moon is shown"
        " to be worse" in answer
    )


def test_a_difference_over_fewer_seeds_than_the_means_says_so():
    assert "0.200 above fedavg on the 1 seed in common" in scored(
        {"fedavg": (0.5, 0.6), "scaffold": (0.7, None), "moon": (0.4, 0.5)}
    )
