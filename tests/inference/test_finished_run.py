"""Whose model: clients by number and name, those that never came, and runs that cannot be used."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from fedstrata.common.errors import ConfigError, StateError
from fedstrata.data.federation import Federation
from fedstrata.inference import load, open_run
from fedstrata.runs.run import Stopped, run
from helpers import lab
from helpers.finished_runs import quick, toy_run


def named(names):
    """A federation whose clients have names."""
    x, y, client = lab.arrays()
    return Federation.of(x.numpy(), y.numpy(), client=np.array(names)[client.numpy()], testing="own")


def test_a_client_is_found_by_number_and_by_name(tmp_path):
    folder, _, given = toy_run(
        tmp_path, "fedper", (named(["ada", "bob", "cid", "dan", "eve", "fay"]), lab.small()), cohort=6
    )
    found = open_run(folder, **given)
    assert [found.client_number(who) for who in (None, 2, "2", "#2", "cid")] == [None, 2, 2, 2, 2]
    x = found.federation.train.x
    assert torch.equal(load(folder, "cid", **given)(x), load(folder, 2, **given)(x))
    assert not torch.equal(load(folder, "cid", **given)(x), load(folder, 1, **given)(x))
    with pytest.raises(ConfigError, match=r"there is no client 'cit'; clients are 0 to 5. Did you mean 'cid'"):
        found.client_number("cit")
    for wrong in (6, -1, "6", "-1", "#", "", "9" * 40):
        with pytest.raises(ConfigError, match="there is no client"):
            found.client_number(wrong)


def test_a_text_that_is_one_clients_name_and_anothers_number_is_refused_with_both(tmp_path):
    folder, _, given = toy_run(tmp_path, "fedper", (named(["10", "11", "12", "13", "2", "5"]), lab.small()), cohort=6)
    found = open_run(folder, **given)
    with pytest.raises(ConfigError, match=r"'2' is the name of client #\d and the number of '12'; write #\d or #2"):
        found.client_number("2")
    assert found.client_number("#2") == 2
    assert found.client_number(2) == 2
    assert found.client_number("10") == 0


def test_clients_that_never_came_or_were_held_out_are_said_to_be_so(tmp_path):
    folder = quick(tmp_path, method="fedper", heldout=0.2, cohort=2, clients=10)
    found = open_run(folder)
    came = {client for row in found.result.rounds for client in row["cohort"]}
    out = found.federation.heldout[0]
    idle = next(i for i in range(10) if i not in came and i not in found.federation.heldout)
    assert found.notes_for(min(came)) == ()
    assert "never took part" in found.notes_for(idle)[0]
    assert "held out of training" in found.notes_for(out)[0]
    x = found.federation.test.take(torch.arange(9))
    start = found.engine.parts.setup.model  # nobody has given a head to those two: it is the one that all began with
    for client in (idle, out):
        assert torch.equal(found.params(client)["head.weight"], start["head.weight"])
        assert found.module(client)(x).shape == (9, 10)
    assert not torch.equal(found.params(min(came))["head.weight"], start["head.weight"])


def test_personal_scores_of_the_run_are_those_of_its_exported_models(tmp_path):
    folder = quick(tmp_path, method="ditto(mu=0.5)", test="client", clients=8)
    found = open_run(folder)
    for client in range(8):
        samples, index = found.federation.testing(client)
        right = load(folder, client)(samples.take(index)).argmax(1) == samples.y[index]
        assert float(right.double().mean()) == pytest.approx(found.result.clients[client]["personal"], abs=1e-12)


# ---- runs that cannot be used


def test_a_run_that_is_not_finished_is_refused_with_the_way_on(tmp_path):
    data, module = lab.TOYS["layer"]()
    with pytest.raises(Stopped):
        run(lab.config(out=str(tmp_path), name="run"), federation=data, module=module, stop=lambda: True)
    with pytest.raises(StateError, match=r"the run is not finished; go on with it first: fedstrata resume .*run"):
        load(tmp_path / "run", federation=data, module=module)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(StateError, match=r"is no run folder: it has no manifest.json"):
        load(tmp_path)


def test_damage_is_refused_by_the_name_of_the_file(tmp_path):
    folder, _, given = toy_run(tmp_path, "scaffold", "layer")
    state = folder / "checkpoints" / "state-1.safetensors"
    whole = state.read_bytes()
    state.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(StateError, match=r"state-1.safetensors is damaged"):
        load(folder, **given)
    state.write_bytes(whole)
    rows = folder / "checkpoints" / "rows-1.safetensors"
    rows.write_bytes(rows.read_bytes()[:-4])
    with pytest.raises(StateError, match=r"rows-1.safetensors"):
        load(folder, **given)


def test_a_summary_of_another_model_is_refused(tmp_path):
    folder, _, given = toy_run(tmp_path, "fedavg", "layer")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"model_sha256": "0" * 64}))
    with pytest.raises(StateError, match=r"summary.json describes another model"):
        load(folder, **given)


def test_what_was_given_from_python_must_be_given_again_and_be_the_same(tmp_path):
    folder, _, given = toy_run(tmp_path, "fedavg", "layer")
    with pytest.raises(StateError, match="federation from Python; give it again"):
        load(folder)
    with pytest.raises(StateError, match="the model is not what the run began with"):
        load(folder, federation=given["federation"], module=torch.nn.Sequential(torch.nn.Linear(6, 3)))
    other = dataclasses.replace(given["federation"], fingerprint="0" * 64)
    with pytest.raises(StateError, match="the data or partition is not what the run began with"):
        load(folder, federation=other, module=given["module"])


def test_a_personal_model_that_diverged_is_refused(tmp_path):
    folder, _, given = toy_run(tmp_path, "finetune(steps=80, lr=1e20)", "layer")
    found = open_run(folder, **given)
    assert found.module()(given["federation"].test.x).isfinite().all()
    with pytest.raises(StateError, match="is not finite: its private training diverged"):
        found.module(0)


def test_the_number_of_threads_is_left_as_it_was(tmp_path):
    folder, _, given = toy_run(tmp_path, "fedavg", "layer")
    torch.set_num_threads(2)
    try:
        load(folder, **given)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
