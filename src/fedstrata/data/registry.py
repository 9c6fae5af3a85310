"""Look up data sets and partition laws by name; users and packages may register more."""

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
    """A registered data set or partition law: one line of ``fedstrata list``.

    Attributes:
        name: as users write it.
        factory: a frozen dataclass of settings; ``read(place)`` for data, ``deal(pool, clients, seed)`` for a law.
        about: one line.
        source: its origin.
        offline: True where it needs neither files nor a network.
        cite: keys of ``fedstrata.citations``, or BibTeX entries.
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


_DATASETS = (
    Row(
        "digits",
        bundled.Digits,
        "8x8 grey digits, 10 classes; the default",
        "scikit-learn, from UCI",
        cite=(
            "alpaydin1998optical",
            "pedregosa2011scikit",
        ),
    ),
    Row(
        "mnist",
        images.Mnist,
        "28x28 grey digits, 10 classes; with writers where the files have them",
        "LeCun, Cortes, Burges",
        offline=False,
        cite=("lecun1998gradient",),
    ),
    Row(
        "fashion_mnist",
        images.FashionMnist,
        "28x28 grey clothes, 10 classes",
        "Xiao, Rasul, Vollgraf 2017",
        offline=False,
        cite=("xiao2017fashion",),
    ),
    Row(
        "cifar10",
        images.Cifar10,
        "32x32 colour photographs, 10 classes",
        "Krizhevsky 2009",
        offline=False,
        cite=("krizhevsky2009learning",),
    ),
    Row(
        "cifar100",
        images.Cifar100,
        "32x32 colour photographs, 100 classes or 20 coarse ones",
        "Krizhevsky 2009",
        offline=False,
        cite=("krizhevsky2009learning",),
    ),
    Row(
        "tiny_imagenet",
        folders.TinyImagenet,
        "64x64 colour photographs, 200 classes or any subset",
        "Stanford CS231n",
        offline=False,
        cite=("le2015tiny",),
    ),
    Row(
        "pacs",
        images.Pacs,
        "64x64 pictures, 7 classes in 4 domains",
        "Li et al. 2017",
        offline=False,
        cite=("li2017deeper",),
    ),
    Row(
        "synthetic_iid",
        synthetic.SyntheticIid,
        "the same with one model and one input law for all clients",
        "Li et al. 2020 (FedProx)",
        cite=("li2020federated",),
    ),
    Row(
        "synthetic",
        synthetic.Synthetic,
        "60 features, 10 classes, models and inputs that differ by client",
        "Li et al. 2020 (FedProx)",
        cite=("li2020federated",),
    ),
    Row(
        "folder",
        folders.Folder,
        "pictures in folders: class/file, below clients or domains where there are such",
        "your own",
        offline=False,
        uncited="your own pictures",
    ),
    Row(
        "table",
        tables.Table,
        "CSV or parquet with a label column, and a client column where there is one",
        "your own",
        offline=False,
        uncited="your own table",
    ),
    Row(
        "breast_cancer",
        bundled.BreastCancer,
        "30 measurements, 2 classes",
        "scikit-learn, from UCI",
        cite=(
            "street1993nuclear",
            "pedregosa2011scikit",
        ),
    ),
    Row(
        "wine",
        bundled.Wine,
        "13 measurements, 3 classes",
        "scikit-learn, from UCI",
        cite=(
            "aeberhard1992wine",
            "pedregosa2011scikit",
        ),
    ),
    Row(
        "diabetes",
        bundled.Diabetes,
        "10 measurements, regression",
        "scikit-learn, Efron et al. 2004",
        cite=(
            "efron2004least",
            "pedregosa2011scikit",
        ),
    ),
    Row(
        "series",
        series.Series,
        "long CSV or parquet of time series: forecast from windows",
        "your own",
        offline=False,
        uncited="your own series",
    ),
    Row(
        "eeg",
        series.Eeg,
        "4 channels of brain waves, 800 values each: forecast from windows",
        "matplotlib's sample data",
        uncited="sample data without a publication",
    ),
    Row(
        "ag_news",
        text.AgNews,
        "news in 4 classes, as words",
        "Zhang et al. 2015",
        offline=False,
        cite=("zhang2015character",),
    ),
    Row(
        "shakespeare",
        text.Shakespeare,
        "the next character; a client is a role",
        "LEAF, Caldas et al. 2018",
        offline=False,
        cite=("caldas2018leaf",),
    ),
    Row(
        "hub",
        hub.Hub,
        "a data set of the Hugging Face hub or a folder saved by datasets (extra: hub)",
        "huggingface.co",
        offline=False,
        uncited="the data set's own page says how to cite it",
    ),
)
_PARTITIONS = (
    Row(
        "iid",
        laws.Iid,
        "equal sizes, uniform draws",
        "FedFN harness",
        uncited="uniform draws need no source",
    ),
    Row(
        "pooled",
        laws.Pooled,
        "one client with everything: the centralised control",
        "-",
        uncited="the centralised control needs no source",
    ),
    Row(
        "dirichlet",
        laws.Dirichlet,
        "label skew, unequal sizes, a minimum",
        "FedFN harness, LDA(alpha)",
        cite=("yurochkin2019bayesian",),
    ),
    Row(
        "dirichlet_equal",
        label_skew.DirichletEqual,
        "label skew, equal sizes, class priors for each client",
        "FedDyn, FedSMU",
        cite=(
            "hsu2019measuring",
            "acar2021federated",
        ),
    ),
    Row(
        "shards",
        label_skew.Shards,
        "s shards of one class each for every client",
        "FedFN harness, Sharding(s)",
        cite=("mcmahan2017communication",),
    ),
    Row(
        "classes",
        label_skew.Classes,
        "exactly k classes a client (pathological)",
        "-",
        cite=("li2022federated",),
    ),
    Row(
        "quantity",
        label_skew.Quantity,
        "unequal sizes, equal label mix",
        "-",
        cite=("li2022federated",),
    ),
    Row(
        "natural",
        label_skew.Natural,
        "the data's own writers, roles, domains or client column",
        "LEAF",
        uncited="the data's own clients; cite the data",
    ),
    Row(
        "overlap",
        laws.Overlap,
        "independent draws of equal size; clients overlap and are derived when asked for",
        "FedPart",
        cite=("wang2024why",),
    ),
)

DATASETS: Registry[Row] = Registry(
    "datasets",
    "data set",
    accepts=_with("read"),
    wanted="a dataclass of settings with read(place), or a fedstrata.data.Row",
    entries={row.name: row for row in _DATASETS},
    adapt=_row,
)
PARTITIONS: Registry[Row] = Registry(
    "partitions",
    "partition",
    accepts=_with("deal"),
    wanted="a dataclass of settings with deal(pool, clients, seed), or a fedstrata.data.Row",
    entries={row.name: row for row in _PARTITIONS},
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
    """Build the law of a call with its settings.

    Raises:
        ConfigError: an unknown law or setting.
    """
    if call.name not in PARTITIONS and call.name.endswith("Partitioner"):
        return hub.FlowerLaw(call)
    law: Law = bind(call, PARTITIONS.find(call.name).factory, what="partition")
    return law
