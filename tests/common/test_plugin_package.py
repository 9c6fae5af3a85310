"""Packages add a method with state on both sides, a codec, an executor and a kind of task without a line in ours."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedstrata
from fedstrata import ConfigError, Federation
from fedstrata.backends.selection import EXECUTORS
from fedstrata.common import plugins
from fedstrata.methods import find
from fedstrata.testing import laws
from fedstrata.wire import CODECS, find_codec
from helpers import lab

HELPERS = Path(__file__).parents[1] / "helpers"
METHOD = "sampledupdates(share=0.25, beta=0.5, width=2)"


@pytest.fixture
def installed(monkeypatch):
    """Both packages are installed: their folders are on the path."""
    for package in ("plugin_package", "preference_package"):
        monkeypatch.syspath_prepend(HELPERS / package)
    monkeypatch.setattr(plugins, "_found", {})
    monkeypatch.setattr(plugins, "_loaded", {})
    yield
    lab.played.cache_clear()
    for name in ("fedsampled", "fedpreference"):
        sys.modules.pop(name, None)


def test_the_method_obeys_every_law(installed):
    broken = []
    for law in laws(find("sampledupdates")):
        try:
            law()
        except AssertionError as error:
            broken.append(f"{law}: {error}")
    assert broken == []


def test_the_method_keeps_state_on_the_server_and_on_clients(installed):
    found = lab.play(METHOD)
    assert bool(found.states["sampledupdates"].params("velocity").flat.any())
    kept = [flat["sampledupdates/unsent"] for flat in found.clients if flat is not None]
    assert kept
    assert all(bool(tensor.any()) for tensor in kept)


def test_the_setting_of_the_codec_decides_the_bytes(installed):
    wide, narrow, plain = (
        lab.play(text).rows[0]["bytes_up"] for text in (METHOD.replace("width=2", "width=4"), METHOD, "fedavg")
    )
    assert narrow < wide < plain
    assert wide % 8 == narrow % 6 == 0, "4 bytes of a value beside 4 or 2 of a position"
    sent = wide // 8
    assert (narrow, abs(sent - plain // 4 // 4) < plain // 16) == (6 * sent, True), "about a quarter of the entries"


def test_the_codec_loses_nothing_and_refuses_what_does_not_fit(installed):
    codec = find_codec("positions(width=2)")
    tensors = {"b": torch.tensor([[0.0, -0.0], [1.5, 0.0]]), "a": torch.tensor([0.0, -2.0])}
    opened = codec.unpack(codec.pack(tensors), {n: (tuple(t.shape), t.dtype) for n, t in tensors.items()})
    assert {n: lab.bits(t) for n, t in opened.items()} == {n: lab.bits(t) for n, t in tensors.items()}
    with pytest.raises(fedstrata.WireError, match="use width=4"):
        codec.pack({"a": torch.zeros(40_000)})


@pytest.mark.parametrize("block", [1, 2])
def test_the_executor_changes_no_bit(block, installed):
    theirs = lab.play("scaffold", executor=f"backwards(block={block})")
    assert lab.differences(lab.played("scaffold"), theirs) == []


def test_a_run_takes_method_codec_executor_and_task_from_packages(installed, tmp_path):
    rng = np.random.default_rng(0)
    utility = rng.normal(size=4)
    items = rng.normal(size=(260, 2, 4))
    order = np.argsort(-(items @ utility), axis=1)[:, :, None]
    x, weights = np.take_along_axis(items, order, axis=1).astype(np.float32), np.ones(260)
    federation = Federation.of(
        x[:200],
        weights[:200],
        client=np.arange(200) % 5,
        test=(x[200:], weights[200:]),
        task="preference",
        testing="server",
    )
    settings = {"rounds": 8, "local.lr": 0.5, "local.epochs": 2, "out": str(tmp_path)}
    settings |= {"federation": federation, "model": "utility"}
    chain = f"{METHOD} + fedprox(mu=0.01)"
    result = fedstrata.run(chain, executor="backwards(block=2)", name="theirs", **settings)
    again = fedstrata.run(chain, executor="loop", name="ours", **settings)
    assert result.rounds[-1]["metrics"]["accuracy"] > 0.8
    assert result.summary["model_sha256"] == again.summary["model_sha256"]


def test_names_of_packages_are_listed_and_their_settings_are_checked(installed):
    assert "backwards" in EXECUTORS
    assert EXECUTORS.origin("backwards") == CODECS.origin("positions") == "fed-sampled 1.0"
    with pytest.raises(ConfigError, match="width"):
        find_codec("positions(widht=2)")
    with pytest.raises(ConfigError, match="Did you mean 'backwards'"):
        lab.parts(executor="backward")
    with pytest.raises(ConfigError, match="block"):
        lab.parts(executor="backwards(blok=2)")
