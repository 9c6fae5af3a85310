"""The ledger: FLOPs against hand formulas, of what ran and only of that; bytes by formula."""

from dataclasses import replace

import pytest

from core.test_vocabulary import PowerOfChoice
from fedstrata.engine.ledger import Cost, Ledger
from helpers import lab

# multiply-adds count two; element-wise work (norms, ReLU, losses) counts nothing
F, H, G, K = lab.FEATURES, 8, 5, lab.CLASSES
FORWARD = 2 * (F * H + H * G + G * K)
WEIGHTS = FORWARD  # gradient of every weight: as many products as the forward pass
INPUTS = 2 * (H * G + G * K)  # gradient of every layer's input but the first's
STEP = FORWARD + WEIGHTS + INPUTS
HEAD = 2 * G * K
CONV = 2 * 36 * 4 * 9 * 1  # 36 pixels, 4 channels out, kernel of 9, 1 channel in
FLAT = 2 * 36 * 3  # the head behind a 3 x 3 x 4 map


def costs(method="fedavg", toy="layer", **settings):
    """(FLOPs, samples x epochs, cohort) of one round."""
    run = lab.engine(lab.parts(method, toy, **settings))
    row = run.round()
    run.close()
    return row["flops"], 2 * sum(lab.SIZES[i] for i in row["cohort"]), row


def test_linear_layers_cost_their_hand_formula():
    flops, samples, _ = costs()
    assert flops == samples * STEP


def test_a_convolution_costs_its_hand_formula():
    flops, samples, _ = costs(toy="images")
    assert flops == samples * (2 * CONV + 3 * FLAT), (
        "no gradient of the image itself; the head's backward is twice its forward"
    )


def test_backward_is_of_what_was_trained_only():
    flops, samples, _ = costs("fedbabu(epochs=0)")
    assert flops == samples * (STEP - HEAD), "no gradient of the frozen head's weights"


def test_phases_cost_what_each_of_them_trains():
    flops, samples, _ = costs("fedrep(head_epochs=1)")
    assert flops == samples * (STEP - HEAD) + samples / 2 * (FORWARD + HEAD), (
        "the head phase: a forward pass, and the head's weights"
    )


def test_extra_forward_passes_of_moon_are_counted():
    flops, samples, _ = costs("moon(mu=1)")
    features = 2 * (F * H + H * G)
    assert flops == samples * (STEP + 2 * features), "features of the trained model cost no second pass"


def test_two_gradients_a_step_are_counted():
    """B1 and B2 are two and two samples of a batch of four: each sample is seen once, and the odd ones of a tail batch
    not at all.
    """
    flops, _, row = costs("perfedavg", toy=(lab.federation((8, 8, 8)), lab.small()), cohort=3)
    assert row["cohort"]
    assert flops == 2 * 24 * STEP


def test_private_fits_in_training_are_counted_and_those_of_evaluation_are_not():
    plain, _, _ = costs()
    assert costs("ditto(mu=0.5)")[0] == 2 * plain
    assert costs("finetune(steps=3)")[0] == plain


def test_inner_steps_are_counted():
    flops, samples, _ = costs("pfedme(lam=5, inner=3)")
    assert flops == 3 * samples * STEP


def test_payload_bytes_follow_from_the_plan():
    total, head = 6 * 8 + 8 + 16 + 8 * 5 + 5 + 5 * 3 + 3, 5 * 3 + 3
    for method, down, up in (
        ("fedavg", total, total),
        ("scaffold", 2 * total, 2 * total),
        ("fedper", total - head, total - head),
        ("lgfedavg", head, head),
        ("fedbabu(epochs=0)", total - head, total - head),
        ("local", 0, 0),
        ("ditto(mu=0.5)", total, total),
    ):
        row = costs(method)[2]
        assert (row["bytes_down"], row["bytes_up"]) == (3 * 4 * down, 3 * 4 * up), method
        assert row["framing_down"] > 0


@pytest.mark.parametrize(("bn", "sent"), [("share", 16), ("local", 0), ("server", 0), ("batch", 0)])
def test_statistics_are_counted_by_policy(bn, sent):
    row = costs(toy="batch", bn=bn)[2]
    assert row["bytes_up"] == 3 * 4 * (135 + sent)


def test_a_refused_client_costs_what_it_was_sent_and_what_it_sent():
    run = lab.engine(lab.parts(), change=lambda replies: [replace(r, samples=99) for r in replies])
    row = run.round()
    run.close()
    assert len(row["refused"]) == 3
    assert row["bytes_up"] == row["bytes_down"] == 3 * 4 * 135


def test_a_query_is_counted_for_every_client_that_is_queried():
    run = lab.engine(lab.parts(PowerOfChoice()))
    row = run.round()
    run.close()
    assert row["bytes_down"] == 4 * 135 * (3 + 6)


def test_totals_are_the_sum_of_rounds():
    run = lab.engine(lab.parts("scaffold"))
    rows = list(run.rounds())
    run.close()
    total = run.ledger.total
    assert total.flops == sum(r["flops"] for r in rows)
    assert total.up.total == sum(r["bytes_up"] + r["framing_up"] for r in rows)
    assert total.down.total == sum(r["bytes_down"] + r["framing_down"] for r in rows)


def test_the_probe_leaves_the_run_as_it_was():
    """The ledger has a separate worker: a run with it equals the run without it."""
    counted_run, free = lab.engine(lab.parts("moon(mu=1)")), lab.engine(lab.parts("moon(mu=1)"))
    free.ledger.round = lambda tasks, replies: None
    free.ledger.of_reply = lambda task, reply: Cost()
    assert lab.differences(lab.finish(counted_run), lab.finish(free)) == []
    assert isinstance(counted_run.ledger, Ledger)
