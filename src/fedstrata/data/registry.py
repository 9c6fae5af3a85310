"""The data sets and partition laws by name. Users may register their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedstrata.calls import Call, bind
from fedstrata.data import folders, hub, images, laws, series, skew, synthetic, tables, text, toys
from fedstrata.data.laws import Law
from fedstrata.data.place import Reader
from fedstrata.errors import ConfigError, nearest


@dataclass(frozen=True)
class Row:
    """One line of ``fedstrata list``.

    Attributes:
        name: how users call it.
        factory: a frozen dataclass of settings; ``read(place)`` for data, ``deal(pool, clients, seed)`` for a law.
        about: one line.
        source: where it comes from.
        offline: True where it needs neither files of the user's nor a network.
    """

    name: str
    factory: Callable[..., Any]
    about: str
    source: str
    offline: bool = True


_DATASETS: dict[str, Row] = {}
_LAWS: dict[str, Row] = {}


def register_dataset(name: str, factory: Callable[..., Reader], *, about: str, source: str, offline: bool = False) -> None:
    """Make a data set known by name.

    Raises:
        ConfigError: the name is taken.
    """
    _add(_DATASETS, "data set", Row(name, factory, about, source, offline))


def register_law(name: str, factory: Callable[..., Law], *, about: str, source: str) -> None:
    """Make a partition law known by name.

    Raises:
        ConfigError: the name is taken.
    """
    _add(_LAWS, "partition", Row(name, factory, about, source))


def _add(table: dict[str, Row], what: str, row: Row) -> None:
    if row.name in table:
        raise ConfigError(f"a {what} named {row.name!r} is registered already; choose another name.")
    table[row.name] = row


def datasets() -> tuple[Row, ...]:
    """All data sets, in the order registered."""
    return tuple(_DATASETS.values())


def partitions() -> tuple[Row, ...]:
    """All partition laws, in the order registered."""
    return tuple(_LAWS.values())


def find_dataset(name: str) -> Row:
    """The data set of that name.

    Raises:
        ConfigError: unknown; the message has the nearest names.
    """
    if name not in _DATASETS:
        raise ConfigError(f"data has no {name!r}.{nearest(name, _DATASETS)} It has {', '.join(_DATASETS)}.")
    return _DATASETS[name]


def find_law(call: Call) -> Law:
    """The law that ``call`` means, with its settings.

    Raises:
        ConfigError: unknown, or settings that it does not have.
    """
    if call.name not in _LAWS and call.name.endswith("Partitioner"):
        return hub.FlowerLaw(call)
    if call.name not in _LAWS:
        raise ConfigError(f"partition has no {call.name!r}.{nearest(call.name, _LAWS)} It has {', '.join(_LAWS)}.")
    law: Law = bind(call, _LAWS[call.name].factory, what="partition")
    return law


for _name, _factory, _about, _source, _offline in (
    ("digits", toys.Digits, "8x8 grey digits, 10 classes; the default", "scikit-learn, from UCI", True),
    ("mnist", images.Mnist, "28x28 grey digits, 10 classes; with writers where the files have them", "LeCun, Cortes, Burges", False),
    ("fashion_mnist", images.FashionMnist, "28x28 grey clothes, 10 classes", "Xiao, Rasul, Vollgraf 2017", False),
    ("cifar10", images.Cifar10, "32x32 colour photographs, 10 classes", "Krizhevsky 2009", False),
    ("cifar100", images.Cifar100, "32x32 colour photographs, 100 classes or 20 coarse ones", "Krizhevsky 2009", False),
    ("tiny_imagenet", images.TinyImagenet, "64x64 colour photographs, 200 classes or any subset", "Stanford CS231n", False),
    ("pacs", images.Pacs, "64x64 pictures, 7 classes in 4 domains", "Li et al. 2017", False),
    ("synthetic_iid", synthetic.SyntheticIid, "the same with one model and one input law for all clients", "Li et al. 2020 (FedProx)", True),
    ("synthetic", synthetic.Synthetic, "60 features, 10 classes, models and inputs that differ by client", "Li et al. 2020 (FedProx)", True),
    ("folder", folders.Folder, "pictures in folders: class/file, client/class/file, domain/class/file", "your own", False),
    ("table", tables.Table, "CSV or parquet with a label column, and a client column where there is one", "your own", False),
    ("breast_cancer", toys.BreastCancer, "30 measurements, 2 classes", "scikit-learn, from UCI", True),
    ("wine", toys.Wine, "13 measurements, 3 classes", "scikit-learn, from UCI", True),
    ("diabetes", toys.Diabetes, "10 measurements, regression", "scikit-learn, Efron et al. 2004", True),
    ("series", series.Series, "long CSV or parquet of time series: forecast from windows", "your own", False),
    ("eeg", series.Eeg, "4 channels of brain waves, 800 values each: forecast from windows", "matplotlib's sample data", True),
    ("ag_news", text.AgNews, "news in 4 classes, as words", "Zhang et al. 2015", False),
    ("shakespeare", text.Shakespeare, "the next character; a client is a role", "LEAF, Caldas et al. 2018", False),
    ("hub", hub.Hub, "a data set of the Hugging Face hub or a folder saved by datasets (extra: hub)", "huggingface.co", False),
):
    register_dataset(_name, _factory, about=_about, source=_source, offline=_offline)

for _law, _rule, _what, _from in (
    ("iid", laws.Iid, "equal sizes, uniform draws", "FedFN harness"),
    ("pooled", laws.Pooled, "one client with everything: the centralised control", "-"),
    ("dirichlet", laws.Dirichlet, "label skew, unequal sizes, a minimum", "FedFN harness, LDA(alpha)"),
    ("dirichlet_equal", skew.DirichletEqual, "label skew, equal sizes, class priors for each client", "FedDyn, FedSMU"),
    ("shards", skew.Shards, "s shards of one class each for every client", "FedFN harness, Sharding(s)"),
    ("classes", skew.Classes, "exactly k classes a client (pathological)", "-"),
    ("quantity", skew.Quantity, "unequal sizes, equal label mix", "-"),
    ("natural", skew.Natural, "the data's own writers, roles, domains or client column", "LEAF"),
    ("overlap", laws.Overlap, "independent draws of equal size; clients overlap and are derived when asked for", "FedPart"),
):
    register_law(_law, _rule, about=_what, source=_from)
