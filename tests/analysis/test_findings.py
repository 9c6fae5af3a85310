"""What a comparison says: numbers against computation by hand, the answer's words, the flags."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from fedstrata.analysis.caveats import across, skew_flags
from fedstrata.analysis.comparison import Budget, Screening
from fedstrata.analysis.findings import findings
from fedstrata.analysis.records import Spread
from fedstrata.analysis.scores import points, threshold
from fedstrata.common.errors import ConfigError
from fedstrata.report.terminal import comparison_table, flag_lines
from helpers.handmade import METHODS, comparison, facts, result

EIGHT = ("fedavg", "fedprox(mu=0.01)", "scaffold", "fedavgm", "fedadam", "moon", "fedper", "ditto")


def scored(values, personal=None, seeds=None, **more):
    """A comparison whose selected accuracies are these: label -> one for each seed, None for a run that failed."""
    labels = tuple(values)
    seeds = tuple(range(len(next(iter(values.values()))))) if seeds is None else seeds
    results = {}
    for label, row in values.items():
        for place, (seed, value) in enumerate(zip(seeds, row, strict=True)):
            if value is not None:
                mine = None if personal is None else personal[label][place]
                accuracy = {
                    "final": value,
                    "best": value,
                    "window": value,
                    "selected": value,
                    "personal": mine,
                    "personal_selected": mine,
                }
                results[label, seed] = result(label, seed, rounds=8, pace=0.1, accuracy=accuracy, private=0)
    base = comparison(labels, seeds, **more)
    return dataclasses.replace(base, results=results)


def codes(found):
    return [flag.code for flag in found.flags]


def text_of(found, code):
    return next(flag.text for flag in found.flags if flag.code == code)


def test_means_and_differences_are_those_of_the_summaries():
    made = comparison()
    found = findings(made)
    ours = [made.results["fedavgm", seed].summary["accuracy"]["selected"] for seed in made.seeds]
    theirs = [made.results["fedavg", seed].summary["accuracy"]["selected"] for seed in made.seeds]
    line = found.line("fedavgm")
    assert line.scores["selected"] == Spread(
        pytest.approx(np.mean(ours)), pytest.approx(np.std(ours, ddof=1)), tuple(ours)
    )
    test = stats.ttest_rel(ours, theirs)
    it = line.differences["selected"]
    assert (it.mean, it.p, it.n) == (pytest.approx(np.mean(np.subtract(ours, theirs))), pytest.approx(test.pvalue), 3)
    assert (it.low, it.high) == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_p_values_are_corrected_over_the_methods():
    found = findings(comparison())
    told = [line.differences["selected"] for line in found.lines if line.label != "fedavg"]
    order = sorted(told, key=lambda it: it.p)
    assert order[0].corrected == pytest.approx(min(1, 4 * order[0].p))
    assert all(a.corrected <= b.corrected for a, b in itertools.pairwise(order))
    for it in told:
        assert it.verdict == ("not shown" if it.corrected >= 0.05 else "better" if it.mean > 0 else "worse")


def test_a_difference_of_rmse_is_better_where_it_is_negative():
    found = findings(comparison(regression=True, seeds=tuple(range(6))))
    assert not found.larger
    assert found.headline == ("rmse_selected", "personal_rmse_selected")
    it = found.line("fedavgm").differences["rmse_selected"]
    assert it.mean < 0
    assert it.verdict == "better"
    assert found.line("fedper").differences["rmse_selected"].verdict == "worse"
    assert "fedavgm has the best shared model" in found.answer
    assert "below fedavg" in found.answer
    assert found.chance is None
    assert found.line("fedavg").fairness["histogram"] is None


def test_the_selected_error_is_that_of_the_round_with_the_best_validation_score():
    made = comparison(regression=True)
    rows = made.results["fedavg", 0].rounds
    chosen = max(rows, key=lambda row: row["validation"])
    line = findings(made).line("fedavg")
    assert line.scores["rmse_selected"].values[0] == chosen["metrics"]["rmse"]
    assert line.scores["personal_rmse_selected"].values[0] == -chosen["personal"]
    assert line.scores["personal_rmse"].values[0] == -rows[-1]["personal"]


@pytest.mark.parametrize(
    ("shape", "headline"),
    [
        ({}, ("selected", "personal_selected")),
        ({"validation": False}, ("window", "personal")),
        ({"clients": 0}, ("selected",)),
        ({"regression": True, "validation": False}, ("rmse_window", "personal_rmse")),
    ],
)
def test_the_headline_follows_who_validates_and_who_tests(shape, headline):
    found = findings(comparison(**shape))
    assert found.headline == headline
    assert ("no-validation" in codes(found)) == (not shape.get("validation", True))


def test_one_run_without_validation_makes_the_headline_one_that_all_have():
    found = findings(comparison(runs={"ditto": {"validation": False}}))
    assert found.headline == ("window", "personal")
    assert "no-validation" in codes(found)


def test_differences_pair_the_seeds_that_both_have():
    found = findings(scored({"a": [0.5, 0.6, 0.7, 0.8], "b": [None, 0.7, 0.9, 0.9]}, baseline="a"))
    it = found.line("b").differences["selected"]
    assert it.n == 3
    assert it.mean == pytest.approx((0.1 + 0.2 + 0.1) / 3)
    assert found.line("a").scores["selected"].n == 4


@pytest.mark.parametrize("seeds", [1, 2])
def test_under_three_seeds_nothing_is_concluded(seeds):
    found = findings(comparison(seeds=tuple(range(seeds))))
    assert found.answer.startswith(
        f"With {seeds} seed{'s' if seeds > 1 else ''} no conclusion about a difference can be drawn"
    )
    assert codes(found)[0] == "few-seeds"
    for line in found.lines[1:]:
        it = line.differences["selected"]
        assert (it.verdict, it.p, it.corrected) == ("no conclusion", None, None)
        assert (it.low is None) == (seeds == 1)
    assert "better than" not in found.answer


def test_seeds_that_no_method_finished_do_not_count():
    found = findings(comparison(("fedavg", "ditto"), failed=[("fedavg", 2), ("ditto", 2)]))
    assert found.answer.startswith("With 2 seeds no conclusion")


def test_a_method_with_two_seeds_of_three_is_left_open():
    found = findings(comparison(failed=(("ditto", 1),)))
    assert found.line("ditto").differences["personal_selected"].verdict == "no conclusion"
    assert "nothing can be concluded about it (only 2 seeds in common)" in found.answer
    assert "1 of 15 runs failed" in text_of(found, "failed-runs")
    assert text_of(found, "few-seeds").endswith("ditto (2).")


def test_the_answer_names_the_best_with_its_numbers():
    found = findings(
        scored(
            {"a": [0.50, 0.52, 0.51, 0.49], "b": [0.60, 0.63, 0.61, 0.58], "c": [0.55, 0.50, 0.52, 0.51]}, baseline="a"
        )
    )
    it = found.line("b").differences["selected"]
    start = (
        f"On 4 seeds, b has the best shared model: 0.605 selected accuracy, {it.mean:.3f} [{it.low:.3f}, {it.high:.3f}]"
        " above a (p "
    )
    assert found.answer.startswith(start)
    assert "after correction for 2 methods); its margin over the next best, c, 0.085 [" in found.answer


def test_the_answer_says_that_nothing_differs():
    found = findings(scored({"a": [0.50, 0.60, 0.55], "b": [0.58, 0.55, 0.54], "c": [0.50, 0.58, 0.55]}, baseline="a"))
    assert found.answer.startswith(
        "On 3 seeds, no method is shown to differ from a in its shared model: the best mean is b's, 0.557 selected"
        " accuracy"
    )


def test_the_answer_names_a_baseline_that_wins():
    values = {"a": [0.80, 0.81, 0.80], "b": [0.50, 0.52, 0.51], "c": [0.80, 0.80, 0.79]}
    found = findings(scored(values, baseline="a"))
    assert (
        "a (the baseline) has the best shared model: 0.803 selected accuracy; b is shown to be worse than a."
        in found.answer
    )
    quiet = findings(scored({"a": [0.80, 0.81, 0.80], "c": [0.80, 0.80, 0.79]}, baseline="a"))
    assert quiet.answer.endswith("no other method is shown to differ from a.")


def test_a_best_mean_that_is_not_shown_does_not_hide_one_that_is():
    values = {"a": [0.50, 0.50, 0.51, 0.50], "steady": [0.60, 0.60, 0.61, 0.601], "wild": [0.40, 0.90, 0.70, 0.55]}
    found = findings(scored(values, baseline="a"))
    assert "wild has the best mean, 0.637 selected accuracy, but is not shown to be better than a" in found.answer
    assert "steady is shown to be better than a" in found.answer


def test_the_same_difference_in_all_seeds_is_said_and_not_tested():
    found = findings(scored({"a": [0.5, 0.6, 0.7], "b": [0.6, 0.7, 0.8]}, baseline="a"))
    it = found.line("b").differences["selected"]
    assert (it.p, it.verdict) == (None, "no conclusion")
    assert it.low == it.high == pytest.approx(0.1)
    assert "the same difference in all 3 seeds: without spread there is no test" in found.answer


def test_equal_scores_are_not_shown_to_differ():
    found = findings(scored({"a": [0.5, 0.6, 0.7], "b": [0.5, 0.6, 0.7]}, baseline="a"))
    it = found.line("b").differences["selected"]
    assert (it.mean, it.low, it.high, it.p, it.verdict, it.note) == (
        0.0,
        0.0,
        0.0,
        None,
        "not shown",
        "equal in all 3 seeds",
    )
    assert "no other method is shown to differ from a" in found.answer


def test_shared_and_personal_models_are_answered_apart():
    found = findings(comparison(seeds=tuple(range(8))))
    shared, personal = found.answer.split(". On the same seeds, ")
    assert "fedavgm has the best shared model" in shared
    assert personal.startswith("ditto has the best personal models")
    line = found.line("fedper")
    assert line.uses_personal
    assert line.shared_unused
    assert "fedper (0.13" in text_of(found, "shared-unused")
    assert not found.line("ditto").shared_unused
    assert found.line("ditto").uses_personal
    assert "fedper (whose shared model no client uses)" in shared
    assert not found.line("fedavg").uses_personal


def test_a_shared_model_that_nobody_uses_does_not_win_in_silence():
    found = findings(comparison(("fedavg", "fedper"), runs={"fedper": {"top": 0.9}}))
    assert "but no client uses that model: layers of fedper are private to the clients" in found.answer


def test_nothing_finished_says_nothing():
    made = comparison(("fedavg", "ditto"), failed=[(m, s) for m in ("fedavg", "ditto") for s in (0, 1, 2)])
    found = findings(made)
    assert found.answer == "No run has finished with a score, so there is no conclusion yet."
    assert codes(found)[:2] == ["no-runs", "failed-runs"]
    assert found.lines[0].scores == {}
    assert found.targets == {}


def test_a_baseline_without_runs_leaves_no_difference():
    found = findings(comparison(("fedavg", "ditto"), failed=[("fedavg", s) for s in (0, 1, 2)]))
    assert "fedavg, the baseline, has no result on a common seed" in found.answer
    assert found.line("ditto").differences == {}


def test_one_method_alone_has_nothing_to_be_compared_with():
    assert "there is no other result to compare it with" in findings(comparison(("fedavg",))).answer


def test_the_way_to_the_target_is_cumulated_over_the_rounds():
    made = comparison(("fedavg", "scaffold"))
    found = findings(made, target=0.5)
    for label in ("fedavg", "scaffold"):
        rounds, moved, work, seconds = [], [], [], []
        for run in made.runs(label):
            hit = next(place for place, row in enumerate(run.rounds) if row["accuracy"] >= 0.5)
            upto = run.rounds[: hit + 1]
            rounds.append(hit + 1)
            moved.append(sum(row["bytes_up"] + row["bytes_down"] for row in upto))
            work.append(sum(row["flops"] for row in upto))
            seconds.append(sum(row["seconds"] for row in upto))
        reached = found.line(label).target
        assert reached.seeds == (3, 3)
        assert reached.rounds.values == tuple(rounds)
        assert reached.bytes.values == tuple(moved)
        assert reached.flops.mean == pytest.approx(np.mean(work))
        assert reached.seconds.mean == pytest.approx(np.mean(seconds))


def test_the_default_target_is_a_share_of_the_best_mean():
    found = findings(comparison())
    best = max(line.scores["selected"].mean for line in found.lines)
    assert found.target == found.targets["selected"] == pytest.approx(0.95 * best)
    assert found.line("fedper").target.seeds == (0, 3)
    assert found.line("fedper").target.rounds is None
    assert found.line("fedper").targets["personal_selected"].rounds is not None
    error = findings(comparison(regression=True))
    assert error.target == pytest.approx(min(line.scores["rmse_selected"].mean for line in error.lines) / 0.95)


def test_an_accuracy_budget_is_the_target():
    found = findings(comparison(fields={"budget": Budget("accuracy", 0.4)}))
    assert found.target == 0.4


@pytest.mark.parametrize(("target", "regression"), [(0.0, False), (1.5, False), (math.nan, False), (-1.0, True)])
def test_an_impossible_target_is_refused(target, regression):
    with pytest.raises(ConfigError, match="target is"):
        findings(comparison(("fedavg",), regression=regression), target)


def test_of_two_columns_of_rounds_the_second_says_that_it_is_of_personal_models():
    heads = [
        str(column.header)
        for column in comparison_table(findings(comparison())).columns
        if str(column.header).startswith("rounds")
    ]
    assert [head.endswith(",\npersonal") for head in heads] == [False, True]


def test_a_run_evaluated_now_and_then_reaches_its_target_in_an_evaluated_round():
    found = findings(comparison(("fedavg",), every=7), target=0.45)
    assert all(rounds % 7 == 0 for rounds in found.lines[0].target.rounds.values)


def test_the_front_holds_who_is_not_beaten_in_score_and_cost():
    found = findings(comparison(("fedavg", "scaffold", "moon", "fedavgm"), seeds=tuple(range(5))))
    assert found.line("fedavgm").front == {"bytes", "flops"}
    assert found.line("scaffold").front == frozenset()  # more bytes than fedavgm, and worse
    assert found.line("moon").front == frozenset()
    assert found.line("fedavg").front == frozenset()  # as cheap as fedavgm
    own = findings(comparison()).line("ditto").fronts
    assert own["personal_selected"] == {"bytes", "flops"}


def test_margins_are_to_the_best_other_method():
    found = findings(comparison())
    best = max(found.lines, key=lambda line: line.scores["selected"].mean)
    for line in found.lines:
        rival, it = line.margins["selected"]
        assert rival == (best.label if line is not best else "fedprox(mu=0.01)")
        assert it.mean == pytest.approx(line.scores["selected"].mean - found.line(rival).scores["selected"].mean)
    it = found.line("fedavgm").margins["selected"][1]
    assert it.corrected is None or it.corrected >= it.p


def test_fairness_counts_every_client_of_every_seed():
    made = comparison()
    fairness = findings(made).line("fedavg").fairness
    assert sum(fairness["histogram"]) == fairness["clients"] == 60
    worst = [np.mean(sorted(c["personal"] for c in run.clients.values())[:2]) for run in made.runs("fedavg")]
    assert fairness["worst10"] == pytest.approx(np.mean(worst))
    assert findings(comparison(clients=0)).line("fedavg").fairness == {}


def test_stability_is_that_of_the_evaluated_scores():
    made = comparison(("fedavg",), seeds=(0, 1))
    curves = [[row["accuracy"] for row in run.rounds] for run in made.runs("fedavg")]
    stability = findings(made).line("fedavg").stability
    assert stability["std"] == pytest.approx(np.mean([np.std(c[-3:], ddof=1) for c in curves]))
    assert stability["drop"] == pytest.approx(max(max(-np.diff(c)) for c in curves))


def test_a_shared_model_is_scored_at_the_clients_where_no_server_tests():
    run = result("fedavg")
    run = dataclasses.replace(run, rounds=[{**row, "accuracy": None, "shared_on_clients": 0.25} for row in run.rounds])
    assert {point.score for point in points(run)} == {0.25}


@pytest.mark.parametrize(("chance", "limit"), [(0.1, 0.2), (1 / 3, 2 / 3), (0.5, 0.75), (0.9, 0.95)])
def test_twice_chance_is_capped_half_of_the_way_to_one(chance, limit):
    assert threshold(chance) == pytest.approx(limit)


def test_a_baseline_under_twice_chance_makes_every_line_uninformative():
    found = findings(comparison(facts_more={"chance": 0.3}))
    assert not any(line.informative for line in found.lines)
    assert "fedavg has 0.556 selected accuracy where chance is 0.300" in text_of(found, "not-informative")
    assert "not informative: the baseline is under twice chance (0.30)" in found.answer
    assert all(line.informative for line in findings(comparison()).lines)


def test_with_few_classes_the_limit_is_half_of_the_way_from_chance_to_one_and_is_called_so():
    found = findings(comparison(facts_more={"chance": 0.5}))
    assert "half of the way from chance to 1" in text_of(found, "not-informative")
    assert "the baseline is under half of the way from chance to 1 (0.50)" in found.answer
    assert "twice chance" not in found.answer + shown(comparison_table(found))


def test_fedavg_is_what_chance_is_held_against_even_beside_another_baseline():
    made = comparison(("ditto", "fedavg"), baseline="ditto", runs={"fedavg": {"top": 0.15}})
    assert not findings(made).lines[0].informative


def test_a_sound_comparison_has_no_flags():
    assert findings(comparison(("fedavg", "fedavgm"), rounds=60, noise=0.003)).flags == ()


PAIR = ("fedavg", "moon")
DROPPED = Screening((5,), {"moon": 5, "x": 5}, ("moon", "x"), ("x",), 0.5, 0.0126, 0.9874)
FLAGGED = [
    (
        "implausible",
        "under the 0.550 of always naming the commonest class",
        {"runs": {"moon": {"top": 0.3}}, "facts_more": {"chance": 0.55}},
    ),
    (
        "implausible",
        "On iid data, clients that train alone",
        {"methods": ("fedavg", "local"), "runs": {"local": {"top": 0.8}}, "facts_more": {"law": "iid"}},
    ),
    ("same-model", "fedavg and moon end with the same shared model", {"model_sha256": "ab"}),
    ("nothing-learned", "fedavg seed 0 (0.100)", {"flat": 0.1}),
    ("refused-replies", "6 of fedavg: nan", {"refused": {"nan": 2}}),
    ("no-update", "3 of fedavg", {"rounds_without_update": 1}),
    ("short-run", "fedavg (+0.0", {"pace": 40}),
    ("mixed-executors", "3 by threads with 2 workers", {"runs": {"moon": {"executor": "threads", "workers": 2}}}),
    ("side-by-side", "2 runs at a time", {"fields": {"side_by_side": 2}}),
    (
        "budget-unspent",
        "6 runs ended with their last round before the budget of 1 GB",
        {"fields": {"budget": Budget("bytes", 1e9)}},
    ),
    (
        "budget-overshoot",
        "fedavg seed 0 (348 MB)",
        {"stopped_by": "stop.bytes", "fields": {"budget": Budget("bytes", 3e8)}},
    ),
    ("screened", "1 of 2 would have been kept (50%, between 1% and 99%)", {"fields": {"screening": DROPPED}}),
    ("screened", "None was trained to the end", {"fields": {"screening": Screening((5,), {"moon": 5})}}),
]


@pytest.mark.parametrize(
    ("code", "said", "shape"), FLAGGED, ids=[f"{code}-{place}" for place, (code, _, _) in enumerate(FLAGGED)]
)
def test_a_flag_is_raised_with_its_numbers(code, said, shape):
    found = findings(comparison(**({"methods": PAIR} | shape)))
    assert any(flag.code == code and said in flag.text for flag in found.flags), found.flags


def test_a_run_that_loses_what_it_had_learned_is_said_to_diverge():
    run = result("fedavg", rounds=12, noise=0.001)
    for row in run.rounds[-3:]:
        row["accuracy"] = 0.2
    found = findings(dataclasses.replace(comparison(("fedavg",), rounds=12, noise=0.001), results={("fedavg", 0): run}))
    assert "then 0.200" in text_of(found, "diverged")


def test_a_best_round_far_above_the_honest_score_is_said():
    run = result("fedavg")
    best = dict(run.summary["accuracy"]) | {"best": 0.9}
    found = findings(comparison(("fedavg",), accuracy=best))
    assert "fedavg (0.900 against" in text_of(found, "best-on-test")


def test_noise_alone_is_rarely_called_a_rise():
    seen = sum(
        "short-run" in codes(findings(comparison(("fedavg",), seeds=range(s, s + 3), rounds=60, pace=0.5)))
        for s in range(0, 300, 3)
    )
    assert seen <= 12  # 5 expected of 100; more than 12 has a probability under 0.002


def test_an_accuracy_that_rises_with_skew_is_implausible():
    def at(top):
        return findings(comparison(("fedavg",), runs={"fedavg": {"top": top}}, seeds=(0, 1, 2)))

    fine = skew_flags([(0.8, at(0.4)), (0.1, at(0.6)), (0.4, at(0.5))])
    assert fine == ()
    (flag,) = skew_flags([(0.8, at(0.6)), (0.1, at(0.5))])
    assert flag.code == "implausible"
    assert "fedavg gets better with more skew: 0.50" in flag.text
    assert "at 0.1" in flag.text


def test_comparisons_are_held_against_each_other_only_where_the_partition_alone_differs():
    def at(top, skew, settings=None, methods=("moon", "fedavg")):
        config = {"data": "made", "partition": f"of skew {skew}", "out": f"runs-{skew}", "rounds": 30} | (
            settings or {}
        )
        made = comparison(
            methods, runs={"fedavg": {"top": top}}, facts_more={"skew": {"label_skew": skew}}, fields={"config": config}
        )
        return made, findings(made)

    (flag,) = across([at(0.6, 0.8), at(0.5, 0.1)])
    assert flag.text.startswith("fedavg gets better with more skew"), "of fedavg, whatever the baseline is"
    assert across([at(0.5, 0.8), at(0.6, 0.1)]) == ()
    assert across([at(0.6, 0.8, {"rounds": 40}), at(0.5, 0.1)]) == (), "other rounds"
    assert across([at(0.6, 0.8), at(0.5, 0.1, methods=("moon",))]) == (), "no fedavg in one of them"
    assert across([at(0.6, None), at(0.5, 0.1)]) == (), "skew unknown"


def shown(thing, width=120):
    console = Console(record=True, width=width, markup=False, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    with console.file:
        console.print(thing)
    return console.export_text()


def test_a_table_of_eight_methods_fits_120_columns():
    found = findings(comparison(EIGHT, failed=(("fedper", 2),)))
    text = shown(comparison_table(found))
    assert "…" not in text
    lines = text.splitlines()
    assert max(map(len, map(str.rstrip, lines))) <= 120
    assert len(lines) <= 30
    for line in found.lines:
        row = next(row for row in lines if row.strip().startswith(line.label))
        assert f"{line.scores['selected'].mean:.3f} ± {line.scores['selected'].std:.3f}" in row
        assert "GFLOP" in row
    it = found.line("scaffold").differences["selected"]
    assert f"{it.mean:+.3f} [{it.low:.3f}, {it.high:.3f}] *" in text
    assert "chance 0.100" in text
    assert "(unused)" in text
    assert "(2 of 3)" in text


def test_a_table_says_where_it_is_not_informative():
    text = shown(comparison_table(findings(comparison(facts_more={"chance": 0.3}))))
    assert "chance 0.300 (not informative" in text


def test_a_table_without_any_run_has_dashes():
    made = comparison(("fedavg", "ditto"), failed=[(m, s) for m in ("fedavg", "ditto") for s in (0, 1, 2)])
    assert shown(comparison_table(findings(made))).count(" - ") >= 2


def test_flags_are_a_line_each():
    found = findings(comparison(METHODS, seeds=(0,)))
    assert len(flag_lines(found)) == len(found.flags) > 0
    assert all(text.startswith("! ") and "\n" not in text for text in flag_lines(found))


def test_made_facts_add_up():
    told = facts()
    assert sum(told.sizes) == told.train == sum(map(sum, told.counts))
