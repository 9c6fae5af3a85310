"""Peak memory: the account of what is alive, the prediction by hand, what is measured against what autograd keeps."""

import json

import pytest
import torch

from fedstrata.client.peak_memory import Alive
from fedstrata.common import random_streams
from fedstrata.config.config import Config
from fedstrata.engine.assembly import assemble
from fedstrata.models import build
from fedstrata.studies.memory import KINDS, WHOLE, Memory, batch_of, measured, peak_memory
from helpers import lab
from helpers.networks import pictures
from helpers.trained_runs import toy

ADAM = {"local_optimizer": "adam", "local_lr": 0.01}


# ---- what is alive


def test_the_peak_is_of_what_is_alive_together():
    with Alive([]) as alive:
        a = torch.zeros(1000)  # 4000 bytes
        b = a + 1  # 8000
        view = b[10:].view(-1)  # the same storage
        b.mul_(2)  # in place
        del a  # 4000
        c = torch.zeros(250, dtype=torch.float64)  # 6000
        del b  # its view still holds it
        assert (alive.now, alive.peak) == (6000, 8000)
        d = c.repeat(5)  # 16,000
        del view, c, d
    assert (alive.now, alive.peak) == (0, 16_000)


def test_what_was_there_before_does_not_count():
    a = torch.zeros(1000)
    with Alive([a]) as alive:
        b = a.view(10, 100).add_(1)
        assert alive.peak == 0
        b = b + 1
    assert alive.peak == b.numel() * 4


def test_gradients_count_while_they_are_held():
    w = torch.zeros(500, requires_grad=True)
    with Alive([w]) as alive:
        (w * 2).sum().backward()
        assert alive.now == 2000
        assert 2000 <= alive.peak < 2100, "the product is gone before the gradient is made"
        w.grad = None
        assert alive.now == 0


# ---- the prediction


@pytest.mark.parametrize(("optimizer", "slots"), [({}, 0), ({"local_momentum": 0.9}, 1), (ADAM, 2)])
def test_the_prediction_is_the_sum_of_sizes(optimizer, slots):
    """6 -> 8 with a norm -> 5 -> 3 in batches of 4: inputs of the layers are 96, 128, 128 and 80 bytes."""
    found = peak_memory(lab.parts("fedavg", "layer", cohort=6, **optimizer))["predicted"]
    sizes = {"first": 48 + 8 + 16, "second": 40 + 5, "head": 15 + 3, WHOLE: 135}
    kept = {"first": 96 + 128 + 128 + 80, "second": 128 + 80, "head": 80, WHOLE: 96 + 128 + 128 + 80}
    front = {"first": 0, "second": 128 + 128, "head": 128 + 128, WHOLE: 0}
    adam = {name: 4 * n * (slots == 2) for name, n in sizes.items()}
    wanted = {
        name: 4 * 135 + 4 * n * (1 + slots) + max(kept[name], front[name], adam[name]) for name, n in sizes.items()
    }
    assert found == wanted


def test_what_is_counted_is_what_budgets_go_by():
    parts = lab.parts("fedavg", "layer", cohort=6)
    groups = {n: frozenset(g.names) for n, g in parts.setup.layout.groups.items()} | {
        WHOLE: parts.setup.layout.parameters
    }
    assert peak_memory(parts)["counted"] == {n: parts.setup.load(names).memory for n, names in groups.items()}


# ---- what is measured


@pytest.fixture(scope="module")
def resnet():
    torch.set_num_threads(1)
    federation = pictures(16, (9, 9))
    config = Config(
        method="fedpart", cohort=2, executor="loop", model="resnet8", **{"local.batch": 16, "local.optimizer": "adam"}
    )
    return assemble(
        config, federation, build("resnet8", federation.task, None, random_streams.torch_stream(0, "model"))
    )


@pytest.fixture(scope="module")
def found(resnet):
    return peak_memory(resnet)


def test_a_step_holds_at_least_parameters_gradients_state_and_what_autograd_keeps(resnet, found):
    kit, batch = resnet.make_worker(), batch_of(resnet)
    layout = resnet.setup.layout
    for name, group in layout.groups.items():
        kit.bound.mode(training=True)
        kit.bound.train_only(frozenset(group.names))
        kept = {}
        kit.features.clear()

        def keep(t, kept=kept):
            kept[t.untyped_storage().data_ptr()] = t
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            loss = kit.plain_loss(kit.bound.model, batch)
        own = {kit.bound.flat.untyped_storage().data_ptr(), batch.x.untyped_storage().data_ptr()}
        floor = sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in own)
        del loss
        assert found["measured"][name] >= 4 * layout.spec.total + 8 * group.numel + floor, (
            "state of Adam, and what waits for the backward pass"
        )


def test_training_a_part_takes_less_than_training_the_whole(found):
    whole = found["measured"][WHOLE]
    parts = [v for n, v in found["measured"].items() if n != WHOLE]
    assert len(parts) == 10
    assert max(parts) < 0.8 * whole
    assert found["batch"] == 16


def test_the_prediction_is_within_a_third_of_what_is_measured(found):
    for name, value in found["measured"].items():
        assert found["predicted"][name] == pytest.approx(value, rel=1 / 3), name


@pytest.mark.parametrize(("batch", "optimizer"), [(16, "adam"), (128, "sgd")])
def test_what_budgets_go_by_is_near_what_is_measured(batch, optimizer):
    """A device that can hold what is counted can train the group.

    Also a deep one, in front of which only values pass, at many times the samples.
    """
    federation = pictures(16, (batch // 2, batch // 2))
    config = Config(cohort=2, executor="loop", model="resnet8", **{"local.batch": batch, "local.optimizer": optimizer})
    told = peak_memory(
        assemble(config, federation, build("resnet8", federation.task, None, random_streams.torch_stream(0, "model")))
    )
    assert told["batch"] == batch
    for name, value in told["measured"].items():
        assert 0.95 * value <= told["counted"][name] <= 1.3 * value, name


def test_measuring_leaves_the_model_as_it_was_and_gives_the_same_again(resnet, found):
    kit = resnet.make_worker()
    before = kit.bound.flat.detach().clone(), kit.bound.statistics.flat.clone()
    names = frozenset(resnet.setup.layout.groups["head"].names)
    assert measured(kit, batch_of(resnet), names) == measured(kit, batch_of(resnet), names) == found["measured"]["head"]
    assert torch.equal(kit.bound.flat, before[0])
    assert torch.equal(kit.bound.statistics.flat, before[1])
    assert all(part.requires_grad for part in kit.bound.parts.values())


def test_a_batch_is_of_as_many_clients_as_it_takes_and_less_where_there_is_no_more():
    assert len(batch_of(lab.parts("fedavg", cohort=6, local_batch=20)).y) == 20
    assert len(batch_of(lab.parts("fedavg", cohort=6, local_batch=100)).y) == 54


def test_the_study_shows_bars_and_ratios():
    told = Memory().study({"run": toy(rounds=1, **ADAM)})
    bars, ratios = told.panels
    assert tuple(bars.series) == KINDS
    assert list(bars.x) == ["first", "second", "head", WHOLE]
    assert bars.series["measured"] == [told.numbers["run"]["measured"][g] / 1e6 for g in bars.x]
    assert ratios.series["measured over whole model"][-1] == 1.0
    json.dumps(told.numbers, allow_nan=False)
