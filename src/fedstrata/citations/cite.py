"""Find what to cite for a run: the publications of its parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedstrata import citations
from fedstrata._version import __version__
from fedstrata.citations import Entry
from fedstrata.common.call_syntax import Call, bind, parse_call, parse_calls
from fedstrata.config.config import CLASS_PARTITION, MODELS, Config
from fedstrata.core.chain import Method
from fedstrata.data.location import Place
from fedstrata.data.registry import find_dataset, find_partition
from fedstrata.methods import find as find_method
from fedstrata.methods import rows
from fedstrata.models.registry import find as find_model

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


class _Row(Protocol):
    @property
    def cite(self) -> tuple[str, ...]: ...
    @property
    def uncited(self) -> str: ...


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
    several = [method] if isinstance(method, str | Method) else list(method)
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


def _part(what: str, row: _Row) -> Part:
    return Part(what, row.cite, row.uncited)


def _pieces(method: str | Method) -> Iterator[Part]:
    if isinstance(method, str):
        for call in parse_calls(method):
            if call.name != "fedavg":
                yield _part(f"method {call.name}", find_method(call.name))
        return
    known = {row.piece: row for row in rows()}
    for piece in method.pieces:
        row = known.get(type(piece))
        what = f"method {piece.name}"
        yield Part(what, (), "a piece of the user") if row is None else _part(what, row)


def _settings(config: Config, given: Collection[str]) -> Iterator[Part]:
    model, law = _names(config, given)
    if model is not None:
        yield _part(f"model {model}", find_model(model))
    if "federation" in given:
        return
    data = parse_call(config.data).name
    yield _part(f"data {data}", find_dataset(data))
    if law is not None and law.endswith("Partitioner"):
        yield Part(f"partition {law}", ("beutel2020flower",))
    elif law is not None:
        yield _part(f"partition {law}", find_partition(law))


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
    reader = bind(call, find_dataset(call.name).factory, what="data")
    source = reader.read(
        Place(
            None if config.data_root is None else Path(config.data_root),
            None if config.clients == "auto" else config.clients,
        )
    )
    return source.natural, source.task.has_classes, config.model_for(source.task)
