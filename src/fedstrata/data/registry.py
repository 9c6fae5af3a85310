"""The data sets and partition laws by name. Users may register their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedstrata.common import plugins
from fedstrata.common.call_syntax import Call, bind
from fedstrata.common.errors import ConfigError, nearest
from fedstrata.data.location import Reader
from fedstrata.data.partition import label_skew, laws
from fedstrata.data.partition.laws import Law
from fedstrata.data.sources import bundled, folders, hub, images, series, synthetic, tables, text


@dataclass(frozen=True)
class Row:
    """One line of ``fedstrata list``.

    Attributes:
        name: how users call it.
        factory: a frozen dataclass of settings; ``read(place)`` for data, ``deal(pool, clients, seed)`` for a law.
        about: one line.
        source: where it comes from.
        offline: True where it needs neither files of the user's nor a network.
        cite: keys of ``fedstrata.citations``, or BibTeX entries of your own.
        uncited: why there is nothing to cite.
    """

    name: str
    factory: Callable[..., Any]
    about: str
    source: str
    offline: bool = True
    cite: tuple[str, ...] = ()
    uncited: str = ""


_DATASETS: dict[str, Row] = {}
_LAWS: dict[str, Row] = {}


def register_dataset(
    name: str, factory: Callable[..., Reader], *, about: str, source: str, offline: bool = False
) -> None:
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
    """The data set of that name, ours or of an installed package, which is imported then.

    Raises:
        ConfigError: unknown; the message has the nearest names. A plug-in that cannot be used.
    """
    return _find("datasets", name, _DATASETS, "a dataclass of settings with read(place), or a fedstrata.data.Row")


def find_partition(name: str) -> Row:
    """The partition law of that name, as :func:`find_dataset`."""
    return _find(
        "partitions", name, _LAWS, "a dataclass of settings with deal(pool, clients, seed), or a fedstrata.data.Row"
    )


def _find(kind: plugins.Kind, name: str, table: Mapping[str, Row], form: str) -> Row:
    plugged = plugins.load(kind, name, table)
    if plugged is not None:
        return _row(*plugged, form)
    if name not in table:
        names = [*table, *plugins.installed(kind)]
        raise ConfigError(f"{plugins.KINDS[kind]} has no {name!r}.{nearest(name, names)} It has {', '.join(names)}.")
    return table[name]


def _row(plugin: plugins.Plugin, offered: object, form: str) -> Row:
    """A plug-in's row, of a factory or of a row of its own."""
    row = (
        offered
        if isinstance(offered, Row)
        else Row(plugin.name, offered, plugin.about, plugin.origin, offline=False)
        if callable(offered)
        else None
    )
    if row is None or not callable(getattr(row.factory, "read" if plugin.kind == "datasets" else "deal", None)):
        plugins.wanted(plugin, offered, form)
    if row.name != plugin.name:
        plugins.refuse(plugin, f"its row is called {row.name!r}, so the entry point must be called that, too.")
    return row


def find_law(call: Call) -> Law:
    """The law that ``call`` means, with its settings.

    Raises:
        ConfigError: unknown, or settings that it does not have.
    """
    if call.name not in _LAWS and call.name.endswith("Partitioner"):
        return hub.FlowerLaw(call)
    law: Law = bind(call, find_partition(call.name).factory, what="partition")
    return law


def _cited(cite: tuple[str, ...] | str) -> tuple[tuple[str, ...], str]:
    """Keys of the bibliography; text is the reason for having none."""
    return ((), cite) if isinstance(cite, str) else (cite, "")


for _name, _factory, _about, _source, _offline, _cite in (
    (
        "digits",
        bundled.Digits,
        "8x8 grey digits, 10 classes; the default",
        "scikit-learn, from UCI",
        True,
        ("alpaydin1998optical", "pedregosa2011scikit"),
    ),
    (
        "mnist",
        images.Mnist,
        "28x28 grey digits, 10 classes; with writers where the files have them",
        "LeCun, Cortes, Burges",
        False,
        ("lecun1998gradient",),
    ),
    (
        "fashion_mnist",
        images.FashionMnist,
        "28x28 grey clothes, 10 classes",
        "Xiao, Rasul, Vollgraf 2017",
        False,
        ("xiao2017fashion",),
    ),
    (
        "cifar10",
        images.Cifar10,
        "32x32 colour photographs, 10 classes",
        "Krizhevsky 2009",
        False,
        ("krizhevsky2009learning",),
    ),
    (
        "cifar100",
        images.Cifar100,
        "32x32 colour photographs, 100 classes or 20 coarse ones",
        "Krizhevsky 2009",
        False,
        ("krizhevsky2009learning",),
    ),
    (
        "tiny_imagenet",
        folders.TinyImagenet,
        "64x64 colour photographs, 200 classes or any subset",
        "Stanford CS231n",
        False,
        ("le2015tiny",),
    ),
    ("pacs", images.Pacs, "64x64 pictures, 7 classes in 4 domains", "Li et al. 2017", False, ("li2017deeper",)),
    (
        "synthetic_iid",
        synthetic.SyntheticIid,
        "the same with one model and one input law for all clients",
        "Li et al. 2020 (FedProx)",
        True,
        ("li2020federated",),
    ),
    (
        "synthetic",
        synthetic.Synthetic,
        "60 features, 10 classes, models and inputs that differ by client",
        "Li et al. 2020 (FedProx)",
        True,
        ("li2020federated",),
    ),
    (
        "folder",
        folders.Folder,
        "pictures in folders: class/file, below clients or domains where there are such",
        "your own",
        False,
        "your own pictures",
    ),
    (
        "table",
        tables.Table,
        "CSV or parquet with a label column, and a client column where there is one",
        "your own",
        False,
        "your own table",
    ),
    (
        "breast_cancer",
        bundled.BreastCancer,
        "30 measurements, 2 classes",
        "scikit-learn, from UCI",
        True,
        ("street1993nuclear", "pedregosa2011scikit"),
    ),
    (
        "wine",
        bundled.Wine,
        "13 measurements, 3 classes",
        "scikit-learn, from UCI",
        True,
        ("aeberhard1992wine", "pedregosa2011scikit"),
    ),
    (
        "diabetes",
        bundled.Diabetes,
        "10 measurements, regression",
        "scikit-learn, Efron et al. 2004",
        True,
        ("efron2004least", "pedregosa2011scikit"),
    ),
    (
        "series",
        series.Series,
        "long CSV or parquet of time series: forecast from windows",
        "your own",
        False,
        "your own series",
    ),
    (
        "eeg",
        series.Eeg,
        "4 channels of brain waves, 800 values each: forecast from windows",
        "matplotlib's sample data",
        True,
        "sample data without a publication",
    ),
    ("ag_news", text.AgNews, "news in 4 classes, as words", "Zhang et al. 2015", False, ("zhang2015character",)),
    (
        "shakespeare",
        text.Shakespeare,
        "the next character; a client is a role",
        "LEAF, Caldas et al. 2018",
        False,
        ("caldas2018leaf",),
    ),
    (
        "hub",
        hub.Hub,
        "a data set of the Hugging Face hub or a folder saved by datasets (extra: hub)",
        "huggingface.co",
        False,
        "the data set's own page says how to cite it",
    ),
):
    _add(_DATASETS, "data set", Row(_name, _factory, _about, _source, _offline, *_cited(_cite)))

for _law, _rule, _what, _from, _cite in (
    ("iid", laws.Iid, "equal sizes, uniform draws", "FedFN harness", "uniform draws need no source"),
    (
        "pooled",
        laws.Pooled,
        "one client with everything: the centralised control",
        "-",
        "the centralised control needs no source",
    ),
    (
        "dirichlet",
        laws.Dirichlet,
        "label skew, unequal sizes, a minimum",
        "FedFN harness, LDA(alpha)",
        ("yurochkin2019bayesian",),
    ),
    (
        "dirichlet_equal",
        label_skew.DirichletEqual,
        "label skew, equal sizes, class priors for each client",
        "FedDyn, FedSMU",
        ("hsu2019measuring", "acar2021federated"),
    ),
    (
        "shards",
        label_skew.Shards,
        "s shards of one class each for every client",
        "FedFN harness, Sharding(s)",
        ("mcmahan2017communication",),
    ),
    ("classes", label_skew.Classes, "exactly k classes a client (pathological)", "-", ("li2022federated",)),
    ("quantity", label_skew.Quantity, "unequal sizes, equal label mix", "-", ("li2022federated",)),
    (
        "natural",
        label_skew.Natural,
        "the data's own writers, roles, domains or client column",
        "LEAF",
        "the data's own clients; cite the data",
    ),
    (
        "overlap",
        laws.Overlap,
        "independent draws of equal size; clients overlap and are derived when asked for",
        "FedPart",
        ("wang2024why",),
    ),
):
    _add(_LAWS, "partition", Row(_law, _rule, _what, _from, True, *_cited(_cite)))
