"""FedPhoenix's published experiments: every config is checked by the command, and one client takes a step, on stand-in
data.
"""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstrata.cli import main
from fedstrata.client.update import ClientUpdate
from fedstrata.config.config import Config
from fedstrata.engine.assembly import assemble
from fedstrata.engine.server import Server, plan_round
from fedstrata.methods.fedphoenix import FedPhoenix
from fedstrata.methods.parts.resets import matrices
from helpers.tiers import tiered

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("fedphoenix_*.toml"))
CONVS = {
    "fedphoenix_cifar10_vgg16": 13,
    "fedphoenix_fc": 13,
    "fedphoenix_cifar10_mobilenet": 27,
}  # the others are ResNet-18, with 20
SAMPLES = 6000


def picture(rng, side):
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=np.uint8)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Made-up pictures in the forms of CIFAR-10, CIFAR-100, a pack of Tiny-ImageNet, and Office-31's folders."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)

    def binary(path, count, *labels):
        path.parent.mkdir(exist_ok=True)
        columns = [(np.arange(count) % n).astype(np.uint8)[:, None] for n in labels]
        path.write_bytes(np.concatenate([*columns, rng.integers(0, 256, (count, 3072), np.uint8)], 1).tobytes())

    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        binary(
            folder / f"cifar-10-batches-bin/{name}.bin", 15_000 // 5, 10
        )  # as many as Dirichlet(0.1) needs to give each of 100 clients ten
    for name, count in (("train", SAMPLES), ("test", 100)):
        binary(folder / f"cifar-100-binary/{name}.bin", count, 20, 100)
    for name, count in (("train", SAMPLES), ("test", 50)):
        jpegs = [picture(rng, 64) for _ in range(5)]
        stack = [jpegs[i % 5] for i in range(count)]
        (folder / "tiny_imagenet").mkdir(exist_ok=True)
        np.savez(
            folder / f"tiny_imagenet/{name}.npz",
            size=np.array([64, 64, 3]),
            labels=np.arange(count) % 10,
            classes=np.array([f"c{k}" for k in range(10)]),
            wnids=np.array([f"n{k}" for k in range(10)]),
            jpeg=np.frombuffer(b"".join(stack), dtype=np.uint8),
            offsets=np.concatenate([[0], np.cumsum([len(j) for j in stack])]),
        )
    for domain in ("amazon", "dslr", "webcam"):
        for label in range(31):
            place = folder / f"office31/{domain}/images/class{label:02}"
            place.mkdir(parents=True)
            for k in range(3):
                (place / f"{k}.jpg").write_bytes(picture(rng, 64))
    return folder


@pytest.mark.parametrize(
    "path",
    tiered(CONFIGS, [path for path in CONFIGS if path.stem == "fedphoenix_cifar10_mobilenet"]),
    ids=lambda path: path.stem,
)
def test_a_published_experiment_is_checked_and_takes_a_step_of_one_client(path, root, capfd):
    with pytest.raises(SystemExit) as left:
        main(["check", str(path), f"data.root={root}"])
    said = capfd.readouterr()
    assert left.value.code in (0, None), said.err
    assert "resets nothing" not in said.out
    config = Config.read(path, [f"data.root={root}"])
    assert (config.rounds, config.local.epochs, config.local.batch, config.local.lr, config.local.momentum) == (
        1200,
        5,
        50,
        0.01,
        0.5,
    )
    assert (config.clients, config.cohort) == ((3, 3) if "office" in path.stem else (100, 10))
    parts = assemble(config.replace(cohort=1))  # the copies of ten clients of a VGG-16 would take 5 GB
    assert len(matrices(parts.setup.layout, "conv")) == CONVS.get(path.stem, 20)
    for piece in parts.method.pieces:
        assert isinstance(piece, FedPhoenix)
        assert (piece.theta, piece.stop) == (2 / 64, 1000)
    start = Server.start(parts.method, parts.setup)
    turn = plan_round(start, parts.rules, parts.lr(0), lambda *_: None, lambda _: None)
    session = ClientUpdate(replace(parts.make_worker(), costs={}), turn.tasks[0], probe=True)
    outcome = session.train(session.begin())
    reply = session.reply(outcome)
    assert 1 < reply.loss < 10, "chance is 2.3 on 10 classes, 3.4 on 31"
    assert reply.delta.flat.any()


def test_there_is_a_config_for_each_published_experiment():
    cells = ("cifar10", "cifar100", "cifar10_mobilenet", "cifar10_vgg16", "tiny")
    studies = ("client", "dropout", "extreme", "fc", "laws", "office31", "partial")
    assert {path.stem.removeprefix("fedphoenix_") for path in CONFIGS} == {*cells, *studies}


def test_the_accuracy_of_domains_is_the_mean_over_domains_of_each_ones_own_test_pictures(root, tmp_path):
    """The config of domains on folders in Office-31's form, with a small model for one step."""
    path = CONFIGS[0].parent / "domains_pacs.toml"
    assert (Config.read(path).clients, Config.read(path).cohort) == (4, 4)
    folders = "data=folder(path='office31', layout='domain/images/class/file', size=32)"
    small = ["clients=3", "cohort=3", "rounds=1", "local.steps=1", "model=small_cnn", "executor=loop", "eval.every=1"]
    with pytest.raises(SystemExit) as left:
        main(["run", str(path), folders, f"data.root={root}", f"out={tmp_path}", "name=domains", *small])
    assert left.value.code in (0, None)
    with (tmp_path / "domains" / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["amazon", "dslr", "webcam"]
    assert {(row["training"], row["test"], row["rounds"]) for row in rows} == {("62", "31", "1")}
    personal = json.loads((tmp_path / "domains" / "summary.json").read_text())["accuracy"]["personal"]
    assert personal == pytest.approx(sum(float(row["score_personal"]) for row in rows) / 3, abs=1e-12)
