"""Step sizes: what is measured, the fair comparison, spikes, the control with plain SGD, and what is refused."""

import json
import math

import pytest
import torch

from fedstrata.common.errors import ConfigError
from fedstrata.studies import find
from fedstrata.studies.local_step_lengths import StepLengths, measure_steps, restricted
from fedstrata.studies.outputs import all_pictures
from fedstrata.studies.retraining import plain_sgd
from fedstrata.studies.steps import Steps, compare_steps
from helpers import lab
from helpers.trained_runs import toy

ADAM = {"local_optimizer": "adam", "local_lr": 0.01}
PART = "fedpart(warmup=1, repeat=1)"


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)
    return {"full": toy(**ADAM), "part": toy(PART, **ADAM)}


@pytest.fixture(scope="module")
def controlled(pair):
    return Steps(clients=(), optimizer="sgd", lr=0.1).study(pair)


# ---- what is measured


def test_with_plain_sgd_a_step_is_the_rate_times_the_gradient_that_was_given():
    found = measure_steps(lab.parts("fedavg", cohort=6, rounds=2, local_lr=0.05), 0)
    for place in range(2):
        assert torch.allclose(found.lengths(place), 0.05 * found.lengths(place, what="gradients"), rtol=1e-4)


def test_gradients_are_those_before_clipping_and_only_of_what_is_trained():
    loose, tight = (measure_steps(lab.parts(PART, cohort=6, rounds=2, local_clip=c), 0) for c in (None, 0.01))
    assert torch.equal(loose.gradients[0][0, 0], tight.gradients[0][0, 0])
    assert float(tight.lengths(0)[0]) == pytest.approx(0.1 * 0.01, rel=1e-3), "the step itself is clipped"
    assert (loose.gradients[1][0] > 0).tolist() == [[True, False, False]] * 10


def test_the_first_step_of_a_fresh_adam_moves_each_number_by_about_the_rate():
    found = measure_steps(lab.parts("fedavg", cohort=6, **ADAM), 0)
    most = 0.01 * math.sqrt(lab.parts().setup.layout.spec.total)
    for place in range(3):
        gradient = float(found.lengths(place, what="gradients")[0])
        assert 0.8 * most < float(found.lengths(place)[0]) <= 1.00001 * most, (
            "all but those without a gradient, behind a rectifier that is shut"
        )
        assert gradient > 5 * most


def test_lengths_are_averaged_over_clients_each_for_as_many_steps_as_it_takes():
    parts = lab.parts("fedavg", cohort=6, rounds=1)
    alone = [measure_steps(parts, i).lengths(0) for i in (0, 1)]
    both = measure_steps(parts, (0, 1)).lengths(0)
    few = len(alone[1])
    assert len(both) == len(alone[0]) > few
    assert torch.allclose(both[:few], (alone[0][:few] + alone[1]) / 2, rtol=1e-12)
    assert torch.equal(both[few:], alone[0][few:])


def test_private_training_of_a_piece_is_no_local_step():
    found = measure_steps(lab.parts("ditto(mu=0.1)", cohort=6, rounds=1), 0)
    assert len(found.lengths(0)) == len(measure_steps(lab.parts("fedavg", cohort=6, rounds=1), 0).lengths(0))


def test_steps_of_a_piece_s_own_have_a_length_and_no_gradient_of_an_optimiser():
    found = measure_steps(lab.parts("pfedme", cohort=6, rounds=1), 0)
    assert (found.lengths(0) > 0).all()
    assert found.lengths(0, what="gradients").isnan().all()


# ---- the fair comparison


def test_the_fair_comparison_is_over_the_groups_that_the_partial_run_trained(pair):
    told = Steps().study(pair).numbers
    full, part = (measure_steps(pair[name].engine.parts, 0) for name in ("full", "part"))
    wanted = [float(a.mean() / b.mean()) for a, b in restricted(full, part)]
    assert told["part over full"]["step ratios"] == pytest.approx(wanted)
    assert wanted[0] == 1.0, "the warm-up is the same training"
    assert [len(groups) for groups in told["part"]["trained"]] == [3, 1, 1, 1, 3]
    whole = [float(full.lengths(i).mean()) for i in range(5)]
    over = [float(b.mean()) for _, b in restricted(full, part)]
    assert all(o < w for o, w in zip(over[1:4], whole[1:4], strict=True))


def test_the_order_of_runs_does_not_matter(pair):
    turned = Steps().study(dict(reversed(pair.items())))
    assert turned.numbers["part over full"] == Steps().study(pair).numbers["part over full"]


def test_a_spike_is_the_mean_after_over_the_mean_before_in_every_window_with_the_median():
    lengths = [[4.0, 2.0, 1.0], [6.0, 2.0, 2.0], [1.0, 1.0, 1.0]]
    squares = tuple(torch.tensor(one, dtype=torch.float64).square().reshape(1, 3, 1) for one in lengths)
    told = compare_steps(
        {"run": StepLengths(("a",), (0, 1, 2), squares, squares, (frozenset("a"),) * 3)}, 2, ""
    ).numbers["run"]
    assert told["whole model"] == pytest.approx([4.0 / 1.5, 1.0 / 2.0])
    assert told["median"]["same groups"] == pytest.approx((4.0 / 1.5 + 0.5) / 2)


def test_a_return_to_the_whole_model_is_no_spike():
    """Every number moves by 1 in every step: the whole model is longer than the group before it, and nothing has
    jumped.
    """
    ones, alone = (
        torch.ones(1, 2, 4, dtype=torch.float64),
        torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).expand(1, 2, 4),
    )
    groups = ("a", "b", "c", "d")
    some = StepLengths(
        groups,
        (0, 1, 2, 3),
        (alone, ones, ones, alone),
        (alone, ones, ones, alone),
        (frozenset("a"), *[frozenset("abcd")] * 2, frozenset("a")),
    )
    told = compare_steps({"run": some}, 2, "").numbers["run"]
    assert told["whole model"] == [2.0, 1.0, 0.5], "other numbers of coordinates"
    assert told["same groups"] == told["gradient"] == [None, 1.0, 1.0]
    assert told["median"]["same groups"] == 1.0


def test_a_group_that_stood_still_before_an_average_has_no_spike(pair):
    told = Steps().study(pair)
    assert [v is None for v in told.numbers["part"]["same groups"]] == [False, True, True, True]
    assert [v is None for v in told.numbers["part"]["gradient"]] == [False, True, True, True]
    assert all(
        v is not None for v in told.numbers["full"]["same groups"] + told.numbers["part over full"]["spikes of full"]
    )
    assert any("part trains different groups" in note for note in told.notes)


# ---- the control


def test_the_control_is_the_run_with_plain_sgd_at_the_rate_that_is_given():
    parts = lab.parts(
        "fedavg",
        cohort=6,
        local_optimizer="adam",
        local_lr=0.01,
        local_weight_decay=0.1,
        local_clip=0.5,
        schedule="step(rounds=[1])",
    )
    other = lab.parts("fedavg", cohort=6, local_lr=0.2, schedule="step(rounds=[1])")
    found, wanted = measure_steps(plain_sgd(parts, 0.2), 0), measure_steps(other, 0)
    assert all(torch.equal(a, b) for a, b in zip(found.squares, wanted.squares, strict=True))
    assert not torch.equal(found.squares[0], measure_steps(parts, 0).squares[0])


def test_the_control_stands_beside_the_run_and_its_spike_is_that_of_its_gradients(controlled):
    for label in ("full", "part"):
        own, control = controlled.numbers[label], controlled.numbers[f"{label} (plain SGD)"]
        assert own["whole model"] != control["whole model"]
        known = [(a, b) for a, b in zip(control["same groups"], control["gradient"], strict=True) if a is not None]
        assert known
        assert all(a == pytest.approx(b, rel=1e-3) for a, b in known), "a plain step is a multiple of the gradient"
    assert (
        controlled.numbers["full"]["median"]["same groups"]
        > controlled.numbers["full (plain SGD)"]["median"]["same groups"]
    )


def test_a_run_with_sgd_needs_no_rate_of_the_control():
    told = Steps(optimizer="sgd").study({"run": toy(rounds=2)}).numbers
    assert told["run"]["same groups"] == told["run (plain SGD)"]["same groups"]


# ---- what is shown


def test_every_local_step_and_every_average_is_shown(controlled, pair):
    panel = next(p for p in controlled.panels if p.title == "Local step size")
    steps = sum(len(measure_steps(pair["full"].engine.parts, range(6)).lengths(i)) for i in range(5))
    assert set(panel.series) == {"full", "part", "full, groups of part"}
    assert all(len(values) == len(panel.x) == steps for values in panel.series.values())
    assert "Averages follow local steps 10, 20, 30, 40." in panel.text
    pictures = {p.name for p in all_pictures(controlled)}
    assert {"local-step-size", "local-gradient-size", "spike-ratio", "local-step-size-plain-sgd"} <= pictures


def test_the_same_runs_give_the_same_outcome(pair):
    first, second = (json.dumps(Steps().study(pair).numbers, allow_nan=False) for _ in range(2))
    assert first == second


# ---- what is refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps(window=0)", "steps.window is 0"),
        ("steps(lr=0.1)", "set optimizer=sgd too"),
        ("steps(optimizer=sgd, lr=0)", "steps.lr is 0.0"),
        ("steps(optimizer=adam)", "it is one of own, sgd"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        find(text)


@pytest.mark.parametrize(
    ("study", "runs", "said"),
    [
        (Steps(clients=(9,)), [{}], "there is no client 9; clients are 0 to 5"),
        (Steps(optimizer="sgd"), [ADAM], "ran with adam, whose rate does not apply to SGD"),
        (Steps(), [{}, {"rounds": 2}], "differ in model, rounds, cohorts or local steps"),
        (Steps(), [{"text": PART}, {"text": PART}], "neither a nor b trains every layer group in every round"),
        (Steps(optimizer="sgd"), [{"text": "pfedme"}], "pfedme defines the local step"),
    ],
)
def test_runs_that_do_not_fit_are_refused(study, runs, said):
    opened = {label: toy(**({"rounds": 3} | settings)) for label, settings in zip("ab", runs, strict=False)}
    with pytest.raises(ConfigError, match=said):
        study.study(opened)


def test_three_runs_are_too_many():
    with pytest.raises(ConfigError, match="takes 1 to 2 runs, and 3 were given"):
        Steps().check(["a", "b", "c"])
