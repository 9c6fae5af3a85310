"""What models refuse, a user's own modules, and the words of the refusals."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedstrata import models
from fedstrata.common.errors import ConfigError, DataError
from fedstrata.core.network import Dropout
from fedstrata.data import Federation
from fedstrata.data.types import Task
from fedstrata.models import registry
from fedstrata.models.blocks import ChannelDropout
from helpers.examples import in_folder


def task_of(shape, classes, vocabulary=0, kind="classification"):
    return Task(kind, shape, classes, vocabulary=vocabulary)


CIFAR, DIGITS, TABLE, CHARS = (
    task_of((3, 32, 32), 10),
    task_of((1, 8, 8), 10),
    task_of((64,), 10),
    task_of((80,), 80, 80),
)

REFUSED = [
    ("cnnn", CIFAR, None, ConfigError, "Did you mean 'cnn'"),
    ("resnet18(stem=5)", CIFAR, None, ConfigError, "stem is 5"),
    ("resnet18(steem=3)", CIFAR, None, ConfigError, "Did you mean 'stem'"),
    ("resnet18(norm=group)", CIFAR, None, ConfigError, "norm=group beside model=resnet18"),
    ("resnet18", CIFAR, "layer", ConfigError, "norm is 'layer'"),
    ("resnet18(groups=3)", CIFAR, "group", ConfigError, "64 channels do not split into 3 equal groups"),
    ("cnn(groups=0)", CIFAR, "group", ConfigError, "at least 1 group"),
    ("logistic", CIFAR, "batch", ConfigError, "has no batch norm"),
    ("transformer", CHARS, "group", ConfigError, "has no group norm"),
    ("mlp(hidden=0)", TABLE, None, ConfigError, "at least 1 unit"),
    ("mlp(hidden=[])", TABLE, None, ConfigError, "logistic"),
    ("mlp(dropout=1)", TABLE, None, ConfigError, "[0, 1)"),
    ("vgg16(conv_dropout=-0.1)", CIFAR, None, ConfigError, "conv_dropout=-0.1"),
    ("vgg16(pool=-1)", CIFAR, None, ConfigError, "pool=-1"),
    ("cnn(padding=3)", CIFAR, None, ConfigError, "padding=3"),
    ("transformer(width=201)", CHARS, None, ConfigError, "width is a multiple of heads"),
    ("transformer(width=5, heads=1)", CHARS, None, ConfigError, "width=6"),
    ("transformer(layers=0)", CHARS, None, ConfigError, "at least 1"),
    ("vit_s(heads=7)", CIFAR, None, ConfigError, "multiple of heads"),
    ("vit_s(patch=0)", CIFAR, None, ConfigError, "patch=0"),
    ("vit_s(patch=5)", CIFAR, None, DataError, "1, 2, 4, 8, 16, 32"),
    ("char_lstm(hidden=0)", CHARS, None, ConfigError, "hidden=0"),
    ("cnn", DIGITS, None, DataError, "8 x 8"),
    ("cnn", DIGITS, None, DataError, "padding=2"),
    ("lenet(padding=2)", task_of((1, 3, 3), 2), None, DataError, "4 x 4"),
    ("cnn20", task_of((3, 7, 32), 10), None, DataError, "7 x 32"),
    ("vgg11", task_of((1, 28, 28), 10), None, DataError, "32 x 32"),
    ("resnet9", task_of((1, 7, 7), 10), None, DataError, "resnet8"),
    ("cnn", TABLE, None, DataError, "mlp or logistic"),
    ("resnet8", task_of((28, 28), 10), None, DataError, "(1, 28, 28)"),
    ("cnn", CHARS, None, DataError, "char_lstm"),
    ("mlp", CHARS, None, DataError, "char_lstm"),
    ("vit_s", CHARS, None, DataError, "tokens"),
    ("char_lstm", CIFAR, None, DataError, "(3, 32, 32)"),
    ("transformer", TABLE, None, DataError, "reads tokens"),
    ("transformer", task_of((8, 80), 4, 50), None, DataError, "(8, 80)"),
    ("cnn", task_of((3, 32, 32), 0), None, DataError, "classes=0"),
    ("transformer", task_of((8,), -1, 50), None, DataError, "classes=-1"),
    ("mlp", task_of((0,), 2), None, DataError, "holds no number"),
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("spec", "task", "norm", "error", "words"), REFUSED, ids=[f"{r[0]}-{r[4]}" for r in REFUSED])
def test_what_cannot_be_meant_is_refused_with_the_numbers(spec, task, norm, error, words):
    with pytest.raises(error) as caught:
        models.build(spec, task, norm, torch.Generator())
    assert words in str(caught.value)


def own(classes: int = 10, channels: int = 3, **more: nn.Module) -> nn.Sequential:
    parts = {
        "conv": nn.Conv2d(channels, 4, 3),
        "relu": nn.ReLU(),
        "flat": nn.Flatten(),
        **more,
        "out": nn.Linear(4 * 36 if channels == 1 else 4 * 900, classes),
    }
    return nn.Sequential(OrderedDict(parts))


class Functional(nn.Module):
    def __init__(self, tail: str) -> None:
        super().__init__()
        self.tail = tail
        self.inner = nn.Linear(64, 8)
        self.classifier = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.inner(x))
        if self.tail == "dropout":
            h = functional.dropout(h, 0.5, self.training)
        z = self.classifier(h)
        if self.tail == "softmax":
            return z.softmax(-1)
        if self.tail == "twice":
            return 2 * z
        if self.tail == "nan":
            return z / 0 - z / 0
        if self.tail == "pair":
            return z, h  # type: ignore[return-value]
        return z


def test_the_head_of_a_users_module_is_found():
    assert models.check(own(), CIFAR) == "out"
    assert models.check(Functional(""), TABLE) == "classifier"


def test_a_model_that_does_not_end_in_a_linear_layer_has_no_head():
    assert models.check(Functional("twice"), TABLE) is None


def test_a_declared_head_is_verified():
    module = Functional("")
    module.head_name = "inner"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="head_name is 'inner'"):
        models.check(module, TABLE)


BAD = [
    (own(), task_of((1, 32, 32), 10), DataError, "1 channel(s)", "takes 3"),
    (own(10), task_of((3, 32, 32), 100), DataError, "100 classes", "layer out"),
    (own(), task_of((3, 16, 16), 10), DataError, "(3, 16, 16)", "mat1 and mat2"),
    (
        nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(320, 10)),
        task_of((80,), 10, 80),
        DataError,
        "vocabulary of 80",
        "holds 50",
    ),
    (nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(320, 10)), TABLE, DataError, "reads tokens", "(64,)"),
    (nn.Sequential(nn.Conv2d(3, 10, 1)), CIFAR, DataError, "(2, 10, 32, 32)", "(2, 10)"),
    (Functional("softmax"), TABLE, ConfigError, "probabilities", "softmax"),
    (Functional("nan"), TABLE, ConfigError, "not finite", "evaluation"),
    (Functional("pair"), TABLE, ConfigError, "tuple", "logits"),
    (Functional("dropout"), TABLE, ConfigError, "random generator", "fedstrata.core.network.Dropout"),
    (own(drop=nn.Dropout(0.5)), CIFAR, ConfigError, "layers drop", "swap_dropout"),
    (nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), CIFAR, ConfigError, "lazy", "one batch"),
    (nn.Sequential(nn.Linear(64, 10, device="meta")), TABLE, ConfigError, "meta device", "initialise"),
]


@pytest.mark.parametrize(("module", "task", "error", "what", "remedy"), BAD, ids=[b[3] for b in BAD])
def test_a_users_module_that_does_not_fit_is_refused(module, task, error, what, remedy):
    before = torch.get_rng_state()
    with pytest.raises(error) as caught:
        models.check(module, task)
    assert what in str(caught.value)
    assert remedy in str(caught.value)
    assert torch.equal(before, torch.get_rng_state())


def test_check_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), Dropout(0.5), nn.Linear(8, 10))
    before = {n: t.clone() for n, t in module.state_dict().items()}
    assert models.check(module, TABLE) == "4"
    assert module.training
    assert module[3].draw is None
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())


def test_swapped_dropout_is_ours_on_a_copy():
    module = own(drop=nn.Dropout(0.25), channels_drop=nn.Dropout2d(0.5))
    swapped = models.swap_dropout(module)
    assert isinstance(swapped.drop, Dropout)
    assert swapped.drop.p == 0.25
    assert isinstance(swapped.channels_drop, ChannelDropout)
    assert isinstance(module.drop, nn.Dropout)
    assert isinstance(models.swap_dropout(nn.Dropout(0.1)), Dropout)
    assert models.check(models.swap_dropout(own(drop=nn.Dropout(0.25))), CIFAR) == "out"


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.1), nn.Dropout(1.0)])
def test_dropout_without_a_counterpart_is_refused(layer):
    with pytest.raises(ConfigError):
        models.swap_dropout(nn.Sequential(nn.Linear(2, 2), layer))


@pytest.fixture
def tiny():
    def factory(task: Task, width: int = 5, norm: Literal["batch", "none"] = "none") -> nn.Module:
        """A net of mine."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.BatchNorm1d(width) if norm == "batch" else nn.Identity(),
            nn.Linear(width, task.classes),
        )

    factory.__annotations__["task"] = Task
    models.register("tiny", factory)
    yield factory
    registry.MODELS.unregister("tiny")


def test_a_registered_model_is_built_from_the_given_generator(tiny):
    before = torch.get_rng_state()
    one, two, three = (models.build("tiny(width=7)", TABLE, None, torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert one.head_name == "3"
    assert torch.equal(one[1].weight, two[1].weight)
    assert not torch.equal(one[1].weight, three[1].weight)
    assert models.count("tiny(width=7)", TABLE, "batch") == 65 * 7 + 14 + 80
    assert models.find("tiny").summary == "A net of mine."


def test_settings_of_a_registered_model_are_checked(tiny):
    with pytest.raises(ConfigError, match="Did you mean 'width'"):
        models.build("tiny(widht=7)", TABLE, None, torch.Generator())


def test_a_registered_model_that_does_not_fit_is_refused_when_built(tiny):
    with pytest.raises(DataError, match="cannot read"):
        models.build("tiny", task_of((65,), 10), None, torch.Generator())


def no_task(width: int = 3) -> nn.Module:
    return nn.Linear(width, width)


@pytest.mark.parametrize(
    ("name", "factory", "words"),
    [
        ("cnn", lambda task: nn.Identity(), "registered already"),
        ("my-net", lambda task: nn.Identity(), "Python name"),
        ("mine", no_task, "called task"),
    ],
)
def test_what_cannot_be_registered(name, factory, words):
    with pytest.raises(ConfigError, match=words):
        models.register(name, factory)


def images(channels=1, classes=10):
    rng = np.random.default_rng(0)
    y = np.arange(40) % classes
    return Federation.of(
        rng.normal(size=(40, channels, 8, 8)).astype(np.float32),
        y,
        clients=2,
        labels=tuple(str(i) for i in range(classes)),
    )


def conv(channels=1, outputs=10):
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, outputs)
    )


@pytest.mark.parametrize(
    ("data", "module", "said"),
    [
        (images(), conv(channels=3), r"1 channel.*takes 3"),
        (images(classes=20), conv(), r"20 classes"),
        (images(), conv(outputs=100), r"100.*10"),
    ],
    ids=["1 channel, 3 wanted", "20 classes, 10 outputs", "10 classes, 100 outputs"],
)
def test_t35_data_and_model_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, data, module, said):
    with pytest.raises((ConfigError, DataError), match=said):
        in_folder(tmp_path, (data, module), cohort=2)
    assert list(tmp_path.iterdir()) == []
