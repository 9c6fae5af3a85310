"""The data sets and partition laws by name. Users may register their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedstrata.common import plugins
from fedstrata.common.call_syntax import Call, bind
from fedstrata.common.registry import Registry
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


def _with(verb: str) -> Callable[[object], bool]:
    return lambda offered: isinstance(offered, Row) and callable(getattr(offered.factory, verb, None))


def _row(plugin: plugins.Plugin, offered: object) -> object:
    """Return a plug-in's row, or make one of a factory."""
    if not isinstance(offered, Row) and callable(offered):
        return Row(plugin.name, offered, plugin.about, plugin.origin, offline=False)
    if isinstance(offered, Row) and offered.name != plugin.name:
        plugins.refuse(plugin, f"its row is called {offered.name!r}, so the entry point must be called that, too.")
    return offered


def _cited(cite: tuple[str, ...] | str) -> tuple[tuple[str, ...], str]:
    """Keys of the bibliography; text is the reason for having none."""
    return ((), cite) if isinstance(cite, str) else (cite, "")


_DATASETS: tuple[tuple[str, Callable[..., Any], str, str, bool, tuple[str, ...] | str], ...] = (
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
)
_PARTITIONS: tuple[tuple[str, Callable[..., Any], str, str, tuple[str, ...] | str], ...] = (
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
)

DATASETS: Registry[Row] = Registry(
    "datasets",
    "data set",
    accepts=_with("read"),
    wanted="a dataclass of settings with read(place), or a fedstrata.data.Row",
    entries={
        name: Row(name, factory, about, source, offline, *_cited(cite))
        for name, factory, about, source, offline, cite in _DATASETS
    },
    adapt=_row,
)
PARTITIONS: Registry[Row] = Registry(
    "partitions",
    "partition",
    accepts=_with("deal"),
    wanted="a dataclass of settings with deal(pool, clients, seed), or a fedstrata.data.Row",
    entries={
        name: Row(name, factory, about, source, True, *_cited(cite))
        for name, factory, about, source, cite in _PARTITIONS
    },
    adapt=_row,
)


def register_dataset(
    name: str, factory: Callable[..., Reader], *, about: str, source: str, offline: bool = False
) -> None:
    """Register a data set under a name.

    Raises:
        ConfigError: the name is taken.
    """
    DATASETS.register(name, Row(name, factory, about, source, offline))


def register_law(name: str, factory: Callable[..., Law], *, about: str, source: str) -> None:
    """Register a partition law under a name.

    Raises:
        ConfigError: the name is taken.
    """
    PARTITIONS.register(name, Row(name, factory, about, source))


def datasets() -> tuple[Row, ...]:
    """Return the built-in and registered data sets, in the order of registration."""
    return tuple(DATASETS.items().values())


def partitions() -> tuple[Row, ...]:
    """Return the built-in and registered partition laws, in the order of registration."""
    return tuple(PARTITIONS.items().values())


def find_dataset(name: str) -> Row:
    """Return a data set by name; see :meth:`Registry.find`."""
    return DATASETS.find(name)


def find_partition(name: str) -> Row:
    """Return a partition law by name; see :meth:`Registry.find`."""
    return PARTITIONS.find(name)


def find_law(call: Call) -> Law:
    """The law that ``call`` means, with its settings.

    Raises:
        ConfigError: unknown, or settings that it does not have.
    """
    if call.name not in PARTITIONS and call.name.endswith("Partitioner"):
        return hub.FlowerLaw(call)
    law: Law = bind(call, PARTITIONS.find(call.name).factory, what="partition")
    return law
