"""Clients held out of training: before and after a few private steps, for every method."""

import pytest
import torch

from fedstrata.client.update import ClientUpdate
from fedstrata.common.errors import ConfigError, LayoutError
from fedstrata.config.config import Config
from fedstrata.data.federation import Federation
from fedstrata.engine.rounds import Engine
from fedstrata.methods import rows
from helpers import lab

SETTINGS = {"new_clients.steps": 4, "new_clients.lr": 0.05, "rounds": 2}


def federation():
    x, y, client = lab.arrays((24, 16, 12, 20, 16, 12))
    return Federation.of(x, y, client=client, testing="own(share=0.4)", heldout=0.34)


def engine(method="fedavg", **settings):
    return Engine(lab.parts(method, (federation(), lab.small()), **SETTINGS | settings), "loop", 1)


def go(method="fedavg", **settings):
    trained = engine(method, **settings)
    return trained, list(trained.rounds())


@pytest.mark.parametrize("method", ["fedavg", *(row.examples[0] for row in rows())])
def test_every_method_scores_unseen_clients_before_and_in_the_last_round_after_private_steps(method):
    trained, found = go(method, **{"eval.every": 1})
    assert [row["heldout"] is not None for row in found] == [True, True]
    assert [row["heldout_adapted"] is not None for row in found] == [False, True]
    out = trained.parts.federation.heldout
    assert len(out) == 2
    assert all(i not in out for row in found for i in row["cohort"])
    for i, scores in trained.by_client.items():
        assert ("adapted" in scores) == (i in out)


def test_the_private_steps_are_plain_sgd_on_the_clients_samples():
    trained, found = go()
    data, params = trained.parts.federation, trained.server.model
    hits = []
    for i in data.heldout:
        session_batches = list(lab_batches(trained, i, 4))
        model = lab.small()
        names = [n for n, _ in model.named_parameters()]
        model.load_state_dict({n: params[n].clone() for n in names})
        for batch in session_batches:
            loss = torch.nn.functional.cross_entropy(model(batch.x), batch.y)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients, strict=True):
                    p.sub_(0.05 * g)
        samples, index = data.testing(i)
        hits.append(float((model(samples.take(index)).argmax(1) == samples.y[index]).double().mean()))
    assert found[-1]["heldout_adapted"] == pytest.approx(sum(hits) / len(hits), abs=1e-9)


def lab_batches(trained, client, steps):
    session = ClientUpdate(trained.worker, trained.serving.task_of(client, trained.server.model))
    yield from session.tools.batches("unseen", steps=steps)


def test_the_model_and_client_states_do_not_change_through_private_steps():
    with_steps, _ = go("ditto(mu=0.5)")
    more, _ = go("ditto(mu=0.5)", **{"new_clients.steps": 9})
    assert torch.equal(with_steps.server.model.flat, more.server.model.flat)
    assert all(
        torch.equal(with_steps.states.get(i)[k], more.states.get(i)[k])
        for i in range(6)
        if with_steps.states.get(i)
        for k in with_steps.states.get(i)
    )


def test_only_the_selected_layers_move():
    whole, _ = go(**{"new_clients.lr": 5.0})
    head, found = go(**{"new_clients.lr": 5.0, "new_clients.groups": "role:head"})
    assert torch.equal(whole.server.model.flat, head.server.model.flat)
    worker, client = head.worker, head.parts.federation.heldout[0]
    session = ClientUpdate(worker, head.serving.task_of(client, head.server.model))
    moved = session.tools.fit(
        session.context.received, "unseen", steps=4, lr=5.0, train=worker.setup.layout.select("role:head")
    )
    changed = {n for n in moved if not torch.equal(moved[n], head.server.model[n])}
    assert changed == {"head.weight", "head.bias"}
    assert found[-1]["heldout_adapted"] is not None


def test_settings_for_unseen_clients_without_any_and_selectors_of_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"no client is held out.*heldout=0\.2"):
        lab.parts(**{"new_clients.steps": 3})
    with pytest.raises(LayoutError, match="nowhere"):
        engine(**{"new_clients.groups": "name:nowhere"})
    with pytest.raises(ConfigError, match=r"new_clients\.steps"):
        Config(**{"new_clients.steps": 0})
