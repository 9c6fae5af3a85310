"""Rows of the fault catalogue that no other file shows: states of methods, settings, hostile strings.

And that the table of all rows is true.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from faults.test_recipes import Raises, every_example, finite, in_folder, lines
from fedstrata.client.update import ClientUpdate
from fedstrata.common.errors import ConfigError, DataError
from fedstrata.config.config import KEYS, Config
from fedstrata.core.piece import Piece
from fedstrata.data import DataSpec, Federation, load
from helpers import lab

TESTS = Path(__file__).parents[1]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", (TESTS / "README.md").read_text())))


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_the_table_of_rows_names_exists(file):
    written = {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert {name for of, name in NAMED if of == file} <= written


@pytest.mark.parametrize("bn", ["share", "local", "server", "trained", "batch"])
def test_t15_partial_training_runs_under_every_policy_and_the_summary_names_it(tmp_path, bn):
    found = in_folder(tmp_path, lab.TOYS["batch"](), method="fedrep", bn=bn)
    assert found.summary["bn"] == bn
    assert found.summary["rounds_without_update"] == 0
    assert finite(found.params)


# ---- rows 51, 63, 71, 72
# --------------------------------------------------------------------------------------------------------------------


def test_row_51_a_resumed_run_reads_the_batches_of_the_uninterrupted_one(monkeypatch):
    seen, read = [], ClientUpdate.read

    def spy(self, purpose, epoch, positions):
        if not self.probe:
            seen.append((self.work.round, self.work.client, purpose, epoch, self.index[positions].tolist()))
        return read(self, purpose, epoch, positions)

    monkeypatch.setattr(ClientUpdate, "read", spy)
    lab.play(rounds=4)
    whole = [entry for entry in seen if entry[0] >= 2]
    first = lab.engine(lab.parts(rounds=4))
    first.round()
    first.round()
    second = lab.engine(lab.parts(rounds=4))
    second.server = lab.copied(first.server)
    first.close()
    seen.clear()
    lab.finish(second)
    assert seen == whole
    for client in {c for _, c, *_ in whole if lab.SIZES[c] >= 8}:
        orders = {}
        for t, _, _, epoch, batch in (entry for entry in whole if entry[1] == client):
            orders.setdefault((t, epoch), []).extend(batch)
        assert len({tuple(order) for order in orders.values()}) == len(orders) >= 2, "no order stands twice"


@pytest.mark.parametrize("key", KEYS)
def test_row_63_a_value_of_the_wrong_type_names_its_key(key):
    for value in ([], {"a": 1}, object()):
        with pytest.raises(ConfigError) as caught:
            Config(**{key: value})
        assert key in str(caught.value)
        assert "\n" not in str(caught.value)


@every_example
@pytest.mark.parametrize("toy", ["layer", "batch"])
def test_row_71_uploads_hold_exactly_what_the_plan_sends_up(example, toy):
    made = lab.engine(lab.parts(example, toy))
    lab.finish(made)
    layout = made.parts.setup.layout
    for works, replies in zip(made.executor.works, made.executor.replies, strict=True):
        for reply in replies:
            up = works[reply.place].plan.up
            assert set(reply.delta) == up & layout.parameters
            assert set(reply.statistics) == up - layout.parameters


@pytest.mark.parametrize(
    "optimizer",
    [{"local_weight_decay": 0.1}, {"local_optimizer": "adamw", "local_weight_decay": 0.1, "local_lr": 0.01}],
)
def test_row_71_weight_decay_does_not_move_a_frozen_head(optimizer):
    @dataclass(frozen=True)
    class Looks(Piece):
        def upload(self, delta, own, v):
            head = v.layout.select("role:head")
            assert lab.bits(v.end.pick(head)) == lab.bits(v.anchor.pick(head)), "not in local training either"
            return delta, {}, own

    made = lab.engine(lab.parts(lab.parse("fedbabu(epochs=0)") + Looks(), **optimizer))
    head, start = made.parts.setup.layout.select("role:head"), made.parts.setup.params
    for _ in range(3):
        assert made.round()["refused"] == []
        assert lab.bits(made.server.params.pick(head)) == lab.bits(start.pick(head))
        for client in range(6):
            assert lab.bits(lab.own_model(made, client).pick(head)) == lab.bits(start.pick(head))
    made.close()
    assert lab.bits(made.server.params) != lab.bits(start)


@pytest.mark.parametrize("example", ["moon(mu=1)", "moon(references=eval)"])
def test_row_71_features_that_are_all_zero_have_no_direction_and_do_no_harm(example):
    module = lab.small()
    with torch.no_grad():
        module.second.bias.fill_(-1e3)
    found = lab.play(example, (lab.federation(), module), cohort=6)
    assert finite(found.params)
    assert all(row["moved"] and row["refused"] == [] for row in found.rows)


class Tied(torch.nn.Module):
    """Two layers that share a weight, a norm, and a head."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.norm = torch.nn.LayerNorm(6)
        self.exits = {"first": 6, "norm": 6}

    def forward(self, x, exits=None):
        x = torch.relu(self.first(x))
        if exits == 1:
            return x
        x = torch.relu(self.norm(self.second(x)))
        return self.head(x) if exits is None else x


@every_example
def test_row_71_tied_weights_are_trained_sent_and_kept_once_by_every_method(example):
    toy = lab.federation(), lab.filled(Tied())
    made = lab.engine(lab.parts(example, toy))
    found = lab.finish(made)
    assert [n for n in found.params if n.startswith("second")] == ["second.bias"]
    assert all("second.weight" not in reply.delta for replies in made.executor.replies for reply in replies)
    assert finite(found.params)
    made.kit.bound.load(found.params)
    assert made.kit.bound.body.second.weight is made.kit.bound.body.first.weight


def hostile():
    """Two hundred strings that are no names."""
    parts = [
        "..",
        "/",
        "\\",
        "\0",
        "\n",
        "\r",
        "\x1b[31m",
        "{0}",
        "%s",
        "%n",
        "$(id)",
        "`id`",
        "~",
        " ",
        "*",
        "?",
        ":",
        "|",
        "<b>",
        "'",
        '"',
        ";",
    ]
    parts += ["\u202e", "\u2028", "\ud800", "\x7f", "é", "权"]
    found = [
        f(p)
        for p in parts
        for f in (str, lambda p: f"a{p}", lambda p: f"{p}a", lambda p: f"a{p}b", lambda p: p * 3, lambda p: f"../{p}")
    ]
    found += [
        "",
        ".",
        "...",
        "-rf",
        "_x",
        "/etc/passwd",
        "C:\\x",
        "a" * 129,
        "a" * 10_000,
        "a/../../b",
        "a//b",
        "auto ",
        "con:",
        "a\tb",
        "\ufeffa",
    ]
    found += [f"{'../' * n}x" for n in range(1, 30)]
    return [name for name in found if name not in ("a..", "a..b")]  # which are odd, and plain folder names


def test_row_72_hostile_run_names_are_refused_in_one_short_line(tmp_path):
    assert len(hostile()) >= 200
    for name in hostile():
        with pytest.raises(ConfigError, match="folder name") as caught:
            Config(name=name, out=str(tmp_path))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300
    assert list(tmp_path.iterdir()) == []


def test_row_72_hostile_client_names_are_data_and_reach_no_path(tmp_path):
    names = [name for name in dict.fromkeys(hostile()) if name]
    x, y, _ = lab.arrays((len(names),))
    data = Federation.of(x.numpy(), y.numpy(), client=np.array(names, dtype=object), test=(x.numpy(), y.numpy()))
    assert data.clients == len(names)
    assert all(line.isprintable() for line in data.describe().split("\n"))
    found = in_folder(tmp_path / "only", (data, lab.small()))
    written = {p.name for p in found.folder.iterdir()}
    assert written == {
        "config.toml",
        "manifest.json",
        "rounds.jsonl",
        "summary.json",
        "model.safetensors",
        "checkpoints",
        ".lock",
    }
    assert [p.name for p in tmp_path.iterdir()] == ["only"]


@pytest.mark.parametrize("executor", ["loop", "processes"])
def test_row_72_what_a_client_says_cannot_break_a_line_of_results(tmp_path, monkeypatch, executor):
    text = 'x"}\n{"round": 9}\x1b[2J{0}%s\u2028\ud800' + "a" * 10_000
    monkeypatch.setattr(
        "fedstrata.engine.assembly.parse_method", lambda _: lab.parse("fedavg") + Raises(RuntimeError(text))
    )
    found = in_folder(tmp_path, lab.TOYS["layer"](), cohort=6, executor=executor)
    written = lines(found.folder)
    assert [row["round"] for row in written] == [0, 1, 2]
    for row in written:
        ((client, code, message),) = row["refused"]
        assert (client, code) == (0, "raised")
        assert message.startswith('RuntimeError: x"}')
        assert len(message) <= 500
    assert found.summary["refused"] == {"raised": 3}


# ---- rows 59, 61 on the way to a run
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.01, 0.1])
def test_row_59_a_skewed_split_with_empty_clients_trains_and_names_them(alpha):
    data = load(DataSpec(data="digits", partition=f"dirichlet(alpha={alpha}, min=0)", clients=40))
    empty = {i for i in range(40) if data.partition.size(i) == 0}
    assert empty
    module = lab.filled(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.ReLU(), torch.nn.Linear(4, 10))
    )
    found = lab.play(toy=(data, module), cohort=40, rounds=1, local_steps=1)
    assert {(client, code) for client, code, _ in found.rows[0]["refused"]} == {(i, "empty") for i in empty}
    assert found.rows[0]["moved"]


def test_row_56_a_label_that_the_model_has_no_output_for_never_reaches_the_loss():
    data = lab.federation()
    with pytest.raises(DataError, match="label 7"):
        Federation.of(
            data.train.x.numpy(), np.where(np.arange(54) == 9, 7, data.train.y.numpy()), labels=("a", "b", "c")
        )
    assert dataclasses.replace(data).task.classes == lab.CLASSES
