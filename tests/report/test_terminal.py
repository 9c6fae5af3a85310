"""Numbers in the terminal's tables."""

from fedstrata.analysis.records import Difference, Spread
from fedstrata.report.terminal import difference, mean


def test_an_error_that_has_run_away_is_a_short_number():
    assert mean(Spread(7.2672e36, 9.0698e36, (1.0, 2.0))) == "7.267e+36 ± 9.070e+36"
    away = Difference(7.2672e36, -1.5263e37, 2.9798e37, 0.3, 0.3, "not shown", 3, "")
    assert difference(away) == "+7.267e+36 [-1.526e+37, 2.980e+37]"
    assert difference(Difference(-0.0001, -0.002, 0.002, 0.9, 0.9, "not shown", 3, "")) == "+0.000 [-0.002, 0.002]"
