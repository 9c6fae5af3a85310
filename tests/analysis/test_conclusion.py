"""Sentences about runs that are not all there."""

import dataclasses

from fedstrata.analysis.conclusion import p_text
from fedstrata.analysis.findings import findings
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


def test_a_shown_difference_never_reads_as_a_p_of_005():
    assert [p_text(p) for p in (0.0001, 0.004, 0.012, 0.0488, 0.0499, 0.05, 0.051, 0.3)] == [
        "< 0.001",
        "0.004",
        "0.01",
        "0.049",
        "just under 0.05",
        "0.05",
        "0.05",
        "0.30",
    ]
