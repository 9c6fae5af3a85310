"""Every model of the registry: plain module, torch.export program and ONNX program say what the engine's evaluation
says, on real samples.
"""

import io

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.datasets import load_digits

from fedstrata import models
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import assemble
from fedstrata.engine.rounds import Engine
from fedstrata.inference.module import plain
from fedstrata.inference.programs import exported_bytes, onnx_bytes, program_of
from helpers import lab

SMALL = {  # the same layers in a size that trains in a blink
    "vit_s": "vit_s(layers=1, width=24, heads=2)",
    "char_lstm": "char_lstm(hidden=12, dropout=0.1)",
    "transformer": "transformer(width=8, heads=2, feedforward=8, layers=1)",
    "resnet8": "resnet8(dropout=0.2)",
}
SAME = {"vgg16": "vgg11", "resnet18": "resnet8"}  # more of the same layers
CASES = [(SMALL.get(row.name, row.name), "auto") for row in models.rows() if row.ours and row.name not in SAME]
CASES += [("resnet8(stem=3)", "group"), ("small_cnn", "batch"), ("mobilenet(track=false)", "auto")]


def pictures() -> Federation:
    """24 real digits, four times as large, in three colours."""
    x, y = load_digits(return_X_y=True)
    large = (x[:24].reshape(-1, 1, 8, 8) / 16).astype(np.float32).repeat(4, 2).repeat(4, 3).repeat(3, 1)
    return Federation.of(large, y[:24], partition="iid", clients=2, testing="own(share=0.25)")


def letters() -> Federation:
    """Windows of this file's own text."""
    codes = np.frombuffer(__doc__.encode(), dtype=np.uint8)[: 12 * 9].reshape(9, 12) % 40
    return Federation.of(
        codes.astype(np.int64), np.arange(9) % 4, vocabulary=40, partition="iid", clients=2, testing="own(share=0.3)"
    )


def trained(spec: str, norm: str) -> Engine:
    """An engine after two steps of two clients, so that weights and statistics have moved."""
    data = letters() if spec.startswith(("char_lstm", "transformer")) else pictures()
    engine = Engine(
        assemble(lab.config(model=spec, norm=norm, rounds=1, cohort=2, local_steps=2, local_lr=0.01), data), "loop", 1
    )
    list(engine.rounds())
    return engine


@pytest.mark.parametrize(
    ("spec", "norm"),
    [
        pytest.param(*case, marks=() if case in (("mlp", "auto"), ("small_cnn", "auto")) else pytest.mark.full)
        for case in CASES
    ],
    ids=str,
)
def test_programs_of_every_model_say_what_the_engine_says(spec, norm):
    engine = trained(spec, norm)
    federation, index = engine.parts.federation, torch.arange(7)
    x, wanted = (
        federation.train.take(index),
        engine.evaluator.predict(engine.worker, engine.serving.model(), federation.train, index),
    )
    module = plain(engine.worker, engine.serving.model(), federation.task, batch_statistics=False)
    scale = max(1.0, float(wanted.abs().max()))
    # the engine hands convolutions channels-last images, whose rounding norms of this very batch amplify where its
    # spread is small
    assert torch.allclose(module(x), wanted, atol=(1e-3 if "track=false" in spec else 1e-5) * scale)
    program = program_of(module, x[:3])  # traced on three samples, run on seven and on one
    read = torch.export.load(io.BytesIO(exported_bytes(program))).module()
    session = onnxruntime.InferenceSession(onnx_bytes(program), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for batch in (x, x[:1]):
        alone = module(batch).detach()
        assert torch.allclose(read(batch), alone, atol=1e-5 * scale)
        told = session.run(None, {name: batch.numpy()})[0]
        assert np.allclose(told, alone.numpy(), atol=(1e-3 if "track=false" in spec else 1e-5) * scale)
