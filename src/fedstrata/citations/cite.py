"""Find what to cite for a run: the publications of its parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from fedstrata import citations
from fedstrata._version import __version__
from fedstrata.citations import Entry
from fedstrata.common import index
from fedstrata.common.call_syntax import Call, bind, parse_call, parse_calls
from fedstrata.config.config import CLASS_PARTITION, MODELS, Config

if TYPE_CHECKING:
    from fedstrata.core.chain import Method

FEDAVG = "mcmahan2017communication"
FEDSTRATA = Entry(
    "fedstrata",
    "misc",
    {
        "author": "{The fedstrata authors}",
        "title": "fedstrata: Federated Learning on Clients That Differ",
        "year": "2026",
        "howpublished": "https://github.com/fedstrata/fedstrata",
        "note": f"Version {__version__}",
    },
)


@dataclass(frozen=True)
class Citation:
    """One publication to cite.

    Attributes:
        key: as in the BibTeX entry.
        bibtex: the entry.
        what: what it is cited for: "FedAvg; model cnn".
        text: the reference as a sentence; the BibTeX entry of a plug-in.
    """

    key: str
    bibtex: str
    what: str
    text: str


@dataclass(frozen=True)
class Part:
    """A part of a run, with the publications of its registry row.

    Attributes:
        what: "method fedprox", "data digits".
        cite: keys of the bibliography, or BibTeX entries.
        uncited: why there are none.
    """

    what: str
    cite: tuple[str, ...]
    uncited: str = ""


Kind: TypeAlias = Literal["methods", "datasets", "models", "partitions"]


class Row(Protocol):
    """What every registry's row says about publications."""

    @property
    def cite(self) -> tuple[str, ...]:
        """Keys of the bibliography, or BibTeX entries."""
        ...

    @property
    def uncited(self) -> str:
        """Why there are none."""
        ...


def cite(
    method: str | Method | Sequence[str | Method], config: Config | None = None, *, given: Collection[str] = ()
) -> tuple[Citation, ...]:
    """Return the publications behind a run, each once.

    The order is FedAvg, the method's pieces, model, data, partition law, fedstrata.

    Args:
        method: in call syntax, or a chain of pieces; or several, for a comparison.
        config: of the run; its ``method`` does not count. None is for the methods alone.
        given: parts that came from Python instead of the configuration: "federation", "module"; they are left out.
    Raises:
        ConfigError: a method, model, data set or partition that does not exist.
        DataError: data that determine the model or the partition ("auto") and cannot be read.
    """
    found: dict[str, Citation] = {}
    for part in parts(method, config, given=given):
        for source in part.cite:
            new = _citation(source, part.what)
            old = found.get(new.key)
            found[new.key] = (
                new if old is None else Citation(old.key, old.bibtex, _joined(old.what, part.what), old.text)
            )
    found[FEDSTRATA.key] = Citation(FEDSTRATA.key, FEDSTRATA.bibtex, "fedstrata", FEDSTRATA.text)
    return tuple(found.values())


def unpublished(
    method: str | Method | Sequence[str | Method], config: Config | None = None, *, given: Collection[str] = ()
) -> dict[str, str]:
    """Return the parts of a run without a publication, and why; arguments as in :func:`cite`."""
    return {
        p.what: p.uncited or "its package names no publication"
        for p in parts(method, config, given=given)
        if not p.cite
    }


def parts(
    method: str | Method | Sequence[str | Method], config: Config | None, *, given: Collection[str] = ()
) -> list[Part]:
    """List the parts of a run."""
    several = list(method) if isinstance(method, Sequence) and not isinstance(method, str) else [method]
    found = [Part("FedAvg", (FEDAVG,))]
    for one in several:
        found += _pieces(one)
    if config is not None:
        found += _settings(config, given)
    return list(dict.fromkeys(found))


def _citation(source: str, what: str) -> Citation:
    if source.lstrip().startswith("@"):
        return Citation(citations.key_of(source), source.strip(), what, source.strip())
    entry = citations.entry(source)
    return Citation(entry.key, entry.bibtex, what, entry.text)


def _joined(before: str, more: str) -> str:
    return before if more in before.split("; ") else f"{before}; {more}"


def _part(what: str, kind: Kind, name: str) -> Part:
    row = index.cited(kind, name) or _registered(kind, name)
    return Part(f"{what} {name}", row.cite, row.uncited)


def _registered(kind: Kind, name: str) -> Row:
    """Return the row of a name that is not built in: of a plug-in, or registered from Python."""
    # the registries load torch, which `fedstrata cite` of built-in parts need not
    from fedstrata.data.registry import DATASETS, PARTITIONS  # noqa: PLC0415
    from fedstrata.methods import find as find_method  # noqa: PLC0415
    from fedstrata.models.registry import MODELS  # noqa: PLC0415

    find: Mapping[Kind, Callable[[str], Row]] = {
        "methods": find_method,
        "datasets": DATASETS.find,
        "models": MODELS.find,
        "partitions": PARTITIONS.find,
    }
    return find[kind](name)


def _pieces(method: str | Method) -> Iterator[Part]:
    if isinstance(method, str):
        for call in parse_calls(method):
            if call.name != "fedavg":
                yield _part("method", "methods", call.name)
        return
    from fedstrata.methods import row_of  # the same  # noqa: PLC0415

    for piece in method.pieces:
        row = row_of(piece)
        what = f"method {piece.name}"
        yield Part(what, (), "a piece of the user") if row is None else Part(what, row.cite, row.uncited)


def _settings(config: Config, given: Collection[str]) -> Iterator[Part]:
    model, law = _names(config, given)
    if model is not None:
        yield _part("model", "models", model)
    if "federation" in given:
        return
    data = parse_call(config.data).name
    yield _part("data", "datasets", data)
    if law is not None and law.endswith("Partitioner"):
        yield Part(f"partition {law}", ("beutel2020flower",))
    elif law is not None:
        yield _part("partition", "partitions", law)


def _names(config: Config, given: Collection[str]) -> tuple[str | None, str | None]:
    """Return the names of the model and the partition law.

    "auto" depends on the data set, and where its name does not determine it, on the data.
    """
    call = parse_call(config.data)
    model = None if "module" in given or (config.model == "auto" and "federation" in given) else config.model
    law = None if "federation" in given else config.partition
    if model == "auto" and call.name in MODELS:
        model = MODELS[call.name]
    if law == "auto" and call.name in NATURAL:
        law = NATURAL[call.name]
    if "auto" in (model, law):
        natural, classes, chosen = _read_data(config, call)
        model = chosen if model == "auto" else model
        law = ("natural" if natural else CLASS_PARTITION if classes else "iid") if law == "auto" else law
    return (None if model is None else parse_call(model).name), (None if law is None else parse_call(law).name)


NATURAL = dict.fromkeys(
    ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "pacs", "ag_news"), CLASS_PARTITION
) | {
    "shakespeare": "natural",
    "synthetic": "natural",
    "synthetic_iid": "natural",
}
"""The partition of ``partition = "auto"`` for data sets where the name determines it."""


def _read_data(config: Config, call: Call) -> tuple[bool, bool, str]:
    """Return whether the data define clients, whether they have classes, and the model for their shape."""
    from fedstrata.data.location import Place  # the same  # noqa: PLC0415
    from fedstrata.data.registry import find_dataset  # noqa: PLC0415

    reader = bind(call, find_dataset(call.name).factory, what="data")
    source = reader.read(
        Place(
            None if config.data_root is None else Path(config.data_root),
            None if config.clients == "auto" else config.clients,
        )
    )
    return source.natural, source.task.has_classes, config.model_for(source.task)
