"""Statistics of a comparison against scipy and against computation by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedstrata.analysis import statistics as s
from fedstrata.common.errors import DataError

numbers = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 6))
samples = st.lists(numbers, min_size=1, max_size=12)
two = st.integers(2, 10).flatmap(
    lambda n: st.tuples(st.lists(numbers, min_size=n, max_size=n), st.lists(numbers, min_size=n, max_size=n))
)
probabilities = st.floats(0, 1)


@given(samples)
def test_mean_and_deviation_are_those_of_exact_fractions(values):
    mean, std = s.mean_std(values)
    exact = [Fraction(v) for v in values]
    middle = sum(exact) / len(exact)
    assert mean == pytest.approx(float(middle), abs=1e-12)  # sums of twelve numbers under 100 round to 1e-14
    if len(values) == 1:
        assert std is None
    else:
        assert std == pytest.approx(math.sqrt(sum((v - middle) ** 2 for v in exact) / (len(exact) - 1)), abs=1e-9)


@given(numbers, st.integers(2, 9))
def test_equal_values_have_a_deviation_of_exactly_zero(value, n):
    assert s.mean_std([value] * n) == (value, 0.0)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_a_mean_of_nothing_or_of_what_is_not_finite_is_refused(values):
    with pytest.raises(DataError, match="finite"):
        s.mean_std(values)


@given(two)
def test_paired_differences_agree_with_scipy(pair):
    ours, theirs = pair
    assume(np.ptp(np.subtract(ours, theirs)) > 1e-6)
    mine = s.paired(ours, theirs)
    scipy = stats.ttest_rel(ours, theirs)
    interval = scipy.confidence_interval(0.95)
    assert mine.n == len(ours)
    assert mine.p == pytest.approx(
        scipy.pvalue, rel=1e-7, abs=1e-12
    )  # scipy takes the mean of the differences in another order
    assert (mine.low, mine.high) == pytest.approx((interval.low, interval.high), rel=1e-7, abs=1e-9)
    assert mine.low <= mine.mean <= mine.high


@given(two)
def test_the_interval_excludes_zero_exactly_where_p_is_under_five_percent(pair):
    mine = s.paired(*pair)
    assume(mine.p is not None and abs(mine.p - 0.05) > 1e-9)
    assert (mine.p < 0.05) == (not mine.low <= 0 <= mine.high)


@given(two)
def test_a_paired_difference_turns_its_sign_with_its_sides(pair):
    there, back = s.paired(*pair), s.paired(*pair[::-1])
    assert there.mean == -back.mean
    assert there.p == back.p
    assert there.low == -back.high


def test_three_seeds_by_hand():
    # d = 1, 2, 3: mean 2, std 1, t = 2 sqrt(3), df 2: P(|T| > t) = 1 - t / sqrt(2 + t^2), and the 97.5 % quantile of
    # t(2) is 4.302653
    mine = s.paired([3.0, 4.0, 8.0], [2.0, 2.0, 5.0])
    t = 2 * math.sqrt(3)
    assert mine.p == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-12)
    assert mine.high - 2 == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)


def test_one_pair_has_a_difference_and_nothing_else():
    assert s.paired([0.5], [0.25]) == s.Paired(1, 0.25, None, None, None, None)


def test_two_pairs_have_an_interval_and_a_p_of_one_degree_of_freedom():
    mine = s.paired([1.0, 3.0], [0.0, 0.0])
    assert mine.p == pytest.approx(1 - 2 / math.pi * math.atan(2), rel=1e-12)  # t = 2 / 1 under Cauchy's distribution


def test_no_pairs_have_no_difference():
    assert s.paired([], []) is None


@given(st.lists(numbers, min_size=2, max_size=8), st.sampled_from([0.0, 0.02, -1.5, 0.1]))
def test_a_difference_that_is_the_same_in_all_seeds_is_a_point_without_a_test(theirs, step):
    ours = [value + step for value in theirs]  # rounds differently for each value
    mine = s.paired(ours, theirs)
    assert (mine.std, mine.p) == (0.0, None)
    assert mine.low == mine.high == mine.mean == pytest.approx(step, abs=1e-12)


def test_equal_methods_differ_by_exactly_zero():
    assert s.paired([0.1, 0.7, 0.3], [0.1, 0.7, 0.3]) == s.Paired(3, 0.0, 0.0, 0.0, 0.0, None)


@pytest.mark.parametrize(("ours", "theirs"), [([1.0], []), ([math.nan], [1.0]), ([1.0], [math.inf])])
def test_pairs_that_do_not_match_or_are_not_finite_are_refused(ours, theirs):
    with pytest.raises(DataError):
        s.paired(ours, theirs)


def test_only_seeds_that_both_have_are_paired():
    ours = {0: 1.0, 1: None, 2: 0.0, 3: math.nan, 4: 5.0}
    theirs = {4: 0.0, 3: 1.0, 2: 3.0, 1: 1.0}
    assert s.pairs(ours, theirs) == ([2, 4], [0.0, 5.0], [3.0, 0.0])


def test_the_level_is_kept_over_many_samples():
    rng = np.random.default_rng(0)
    hits = sum(
        it.low <= 0 <= it.high for it in (s.paired(rng.normal(0, 1, 3).tolist(), [0.0] * 3) for _ in range(2000))
    )
    low, high = s.share_interval(hits, 2000, 0.999)
    assert low < 0.95 < high


def test_holm_by_hand():
    assert s.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )  # 0.005 x 4, 0.01 x 3, 0.03 x 2, max(0.06, 0.04)


@given(st.lists(st.one_of(st.none(), probabilities), max_size=10))
def test_holm_lies_between_the_raw_p_and_bonferroni_and_keeps_the_order(ps):
    corrected = s.holm(ps)
    m = sum(p is not None for p in ps)
    for p, c in zip(ps, corrected, strict=True):
        assert (p is None) == (c is None)
        assert p is None or p <= c <= min(1.0, m * p) + 1e-15
    known = sorted((p, c) for p, c in zip(ps, corrected, strict=True) if p is not None)
    assert [c for _, c in known] == sorted(c for _, c in known)


@given(st.lists(probabilities, min_size=1, max_size=8), st.sampled_from([0.01, 0.05, 0.2]))
def test_holm_rejects_what_the_step_down_rule_rejects(ps, alpha):
    rejected = 0
    for rank, p in enumerate(sorted(ps)):
        if p * (len(ps) - rank) >= alpha:  # the rule itself: stop at the first that fails
            break
        rejected += 1
    assert sum(c < alpha for c in s.holm(ps)) == rejected


@given(
    st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.8, 0.95, 0.99])
)
@settings(deadline=None)
def test_the_interval_of_a_share_agrees_with_scipy(case, level):
    hits, trials = case
    exact = stats.binomtest(hits, trials).proportion_ci(level, method="exact")
    assert s.share_interval(hits, trials, level) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"), [(0, 10, 0.0, 1 - 0.025**0.1), (10, 10, 0.025**0.1, 1.0), (0, 0, 0.0, 1.0)]
)
def test_the_ends_of_a_share_have_closed_forms(hits, trials, low, high):
    assert s.share_interval(hits, trials) == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize(("hits", "trials", "level"), [(3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0), (1, 2, 0.0)])
def test_an_impossible_share_is_refused(hits, trials, level):
    with pytest.raises(DataError, match="hits"):
        s.share_interval(hits, trials, level)


@pytest.mark.parametrize(
    ("values", "target", "larger", "place"),
    [
        ([0.1, None, 0.5, 0.4, 0.5], 0.5, True, 2),
        ([3.0, math.nan, 1.0], 2.0, False, 2),
        ([0.1, 0.2], 0.5, True, None),
        ([], 0.5, True, None),
    ],
)
def test_the_first_value_at_the_target_counts(values, target, larger, place):
    assert s.first_reaching(values, target, larger=larger) == place


coordinates = st.one_of(st.none(), st.integers(0, 4).map(float))


@given(st.lists(st.tuples(coordinates, coordinates), max_size=8), st.booleans())
def test_the_front_is_what_no_other_point_dominates(points, larger):
    sign = 1 if larger else -1

    def dominates(a, b):
        if None in a:
            return False
        good, cheap = sign * a[1] >= sign * b[1], a[0] <= b[0]
        return good and cheap and (a[0] < b[0] or sign * a[1] > sign * b[1])

    expected = [None not in p and not any(dominates(q, p) for q in points) for p in points]
    assert s.front(points, larger=larger) == expected


def test_ties_lie_on_the_front_together_and_missing_points_do_not():
    assert s.front([(1.0, 0.5), (1.0, 0.5), (1.0, 0.4), (None, 0.9), (0.5, None)]) == [True, True, False, False, False]


def test_stability_is_the_spread_of_the_last_tenth_and_the_largest_loss():
    curve = [0.0, 0.5, 0.3, 0.6, 0.6, 0.7]
    std, drop = s.stability(curve)
    assert std == pytest.approx(np.std([0.6, 0.6, 0.7], ddof=1))
    assert drop == pytest.approx(0.2)
    assert s.stability([3.0, 1.0, 2.0], larger=False)[1] == 1.0
    long = list(np.linspace(0, 1, 50))
    assert s.stability(long)[0] == pytest.approx(np.std(long[-5:], ddof=1))


@pytest.mark.parametrize(
    ("curve", "expected"),
    [([], (None, None)), ([0.3], (None, None)), ([0.3, 0.2], (None, pytest.approx(0.1))), ([0.1] * 3, (0.0, 0.0))],
)
def test_short_curves_have_no_spread(curve, expected):
    assert s.stability(curve) == expected


def test_the_worst_tenth_is_of_at_least_one():
    assert s.worst_tenth([0.3, 0.1, 0.2]) == 0.1
    assert s.worst_tenth([float(i) for i in range(25)]) == 0.5  # 25 // 10 = 2 of them, as in summary.json
    assert s.worst_tenth([1.0, 5.0, 3.0], larger=False) == 5.0
    assert s.worst_tenth([]) is None


@given(st.lists(st.floats(0, 1), max_size=40))
def test_a_histogram_counts_everything_once(values):
    counts = s.histogram(values)
    assert len(counts) == 20
    assert sum(counts) == len(values)


def test_one_lies_in_the_last_bin_and_beyond_is_refused():
    assert s.histogram([0.0, 1.0, 0.05], 20) == (1, 1, *[0] * 17, 1)
    with pytest.raises(DataError, match=r"to 1\.5"):
        s.histogram([1.5])


@given(st.lists(numbers, min_size=4, max_size=12))
def test_a_slope_agrees_with_scipy(y):
    found = s.slope(y)
    fit = stats.linregress(range(len(y)), y, alternative="greater")
    assume(fit.stderr > 1e-6)
    assert found == pytest.approx((fit.slope, fit.pvalue), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("y", [[1.0, 2.0, 3.0], [1.0] * 6, [0.0, 1.0, 2.0, 3.0]])
def test_a_slope_without_errors_has_no_test(y):
    assert s.slope(y) is None
