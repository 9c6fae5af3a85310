"""Citations: every registered part has a publication or a reason, and what is printed is BibTeX."""

import json
import re
from dataclasses import dataclass, replace

import pytest

from fedstrata import ConfigError, chain, citations, data
from fedstrata.citations import ENTRIES, REQUIRED, key_of
from fedstrata.citations.cite import cite, unpublished
from fedstrata.cli import main
from fedstrata.config.config import MODELS, Config
from fedstrata.core.piece import Piece
from fedstrata.methods import registry as methods
from fedstrata.methods.fedprox import FedProx
from fedstrata.models import registry as models

ROWS = [
    *(("method", row) for row in methods.rows()),
    *(("model", row) for row in models.rows()),
    *(("data", row) for row in data.datasets()),
    *(("partition", row) for row in data.partitions()),
]


def complaint(row):
    """What a row lacks; the law that a new method, model or data set meets."""
    if bool(row.cite) == bool(row.uncited):
        return f"{row.name}: give keys of fedstrata.citations, or the reason for having none"
    return next((f"{row.name}: no entry {key}" for key in row.cite if key not in ENTRIES), None)


def read_bibtex(text):
    """Entries (kind, key, fields) by a reader of its own, which knows nothing of how we write them.

    Comments begin with %.
    """
    text = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    place, found = 0, []
    while (start := text.find("@", place)) >= 0:
        head = re.compile(r"@(\w+)\{([^,\s]+),").match(text, start)
        assert head, text[start : start + 80]
        place, fields = head.end(), {}
        while (field := re.compile(r"\s*(\w+)\s*=\s*\{").match(text, place)) is not None:
            depth, end = 1, field.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
            assert field[1] not in fields
            fields[field[1]] = text[field.end() : end - 1]
            assert text[end] == ",", f"after {field[1]} of {head[2]}"
            place = end + 1
        assert text[place:].lstrip().startswith("}"), f"{head[2]} is not closed"
        found.append((head[1], head[2], fields))
    return found


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=lambda v: getattr(v, "name", v))
def test_every_registered_part_has_a_publication_or_a_reason(kind, row):
    assert complaint(row) is None


@pytest.mark.parametrize(
    "changes", [{"cite": ()}, {"cite": ("nobody2020nothing",)}, {"uncited": "and a reason beside it"}]
)
def test_a_row_without_a_publication_is_found(changes):
    assert complaint(replace(methods.find("fedprox"), **changes))


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_is_bibtex_with_the_fields_of_its_type(key):
    entry = ENTRIES[key]
    [(kind, found, fields)] = read_bibtex(entry.bibtex)
    assert (kind, found) == (entry.kind, key)
    assert set(REQUIRED[kind]) <= set(fields)
    assert entry.bibtex.isascii()
    assert re.fullmatch(r"(19|20)\d\d", fields["year"])
    assert re.fullmatch(r"\d+--\d+", fields.get("pages", "1--2"))
    assert all(", " in author or author.startswith("{") for author in fields["author"].split(" and "))


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_reads_as_a_sentence(key):
    text = ENTRIES[key].text
    assert not set(text) & set("{}\\")
    assert ENTRIES[key].fields["year"] in text
    assert text.endswith(".")


def test_every_entry_is_used():
    cited = {key for _, row in ROWS for key in row.cite}
    assert set(ENTRIES) - cited == {"beutel2020flower"}  # Flower's partitioners are no rows


def test_letters_with_accents_are_written_for_latex():
    assert "Kone{\\v{c}}n{\\'y}, Jakub" in citations.entry("caldas2018leaf").bibtex
    assert "Jakub Konečný" in citations.entry("caldas2018leaf").text


def test_a_chain_cites_fedavg_each_piece_and_fedstrata():
    found = cite("fedprox(mu=0.1) + fedavgm")
    assert [c.key for c in found] == ["mcmahan2017communication", "li2020federated", "hsu2019measuring", "fedstrata"]
    assert [c.what for c in found] == ["FedAvg", "method fedprox", "method fedavgm", "fedstrata"]


def test_several_methods_cite_each_publication_once():
    found = cite(["fedavg", "fedadam", "fedyogi", chain(FedProx(0.1))])
    assert [c.key for c in found] == ["mcmahan2017communication", "reddi2021adaptive", "li2020federated", "fedstrata"]
    assert found[1].what == "method fedadam; method fedyogi"


def test_a_run_cites_model_data_and_partition():
    config = Config(data="cifar10", model="resnet18", partition="shards(s=2)")
    found = {c.key: c.what for c in cite("fedavg", config)}
    assert found["he2016deep"] == "model resnet18"
    assert found["krizhevsky2009learning"] == "data cifar10"
    assert found["mcmahan2017communication"] == "FedAvg; partition shards"


@pytest.mark.parametrize(
    ("settings", "whats"),
    [
        ({"data": "cifar10"}, {"model cnn", "partition dirichlet"}),
        ({"data": "shakespeare"}, {"model char_lstm", "data shakespeare"}),
        ({"data": "diabetes"}, {"model mlp", "data diabetes"}),
        (
            {"data": "digits", "partition": "DirichletPartitioner(alpha=0.3, partition_by=label)"},
            {"partition DirichletPartitioner"},
        ),
    ],
)
def test_auto_cites_what_it_chooses(settings, whats):
    found = {part for c in cite("fedavg", Config(**settings)) for part in c.what.split("; ")}
    assert whats <= found


@pytest.mark.parametrize("name", [*MODELS, "diabetes", "eeg", "wine"])
def test_auto_is_told_without_reading_what_reading_would_tell(name):
    """Data that lie in the network or on a disk are not read to cite them.

    Those that are here show that the same comes out.
    """
    config = Config(data=name, clients="auto" if name == "eeg" else 10)
    rows = {row.name: row for row in data.datasets()}
    told = {part for c in cite("fedavg", config) for part in c.what.split("; ")} | set(unpublished("fedavg", config))
    if rows[name].offline:
        federation = config.federation()
        law = re.match(r"\w+", federation.partition.law)[0]
        assert f"partition {law}" in told
        assert f"model {config.model_for(federation.task)}" in told
    else:
        assert len({what.split()[0] for what in told} & {"model", "data", "partition"}) == 3


def test_what_a_run_got_from_python_is_left_out():
    found = cite("fedavg", Config(model="cnn"), given=("federation",))
    assert [c.what for c in found] == ["FedAvg; model cnn", "fedstrata"]
    assert len(cite("fedavg", Config(), given=("federation", "module"))) == 2


def test_parts_without_a_publication_say_why():
    found = unpublished("local + finetune(steps=1)", Config(partition="iid", model="logistic"))
    assert list(found) == ["method local", "method finetune", "model logistic", "partition iid"]
    assert all(len(why.split()) > 3 for why in found.values())


@dataclass(frozen=True)
class Mine(Piece):
    """Not registered."""


def test_a_piece_of_ones_own_needs_no_registration():
    assert unpublished(chain(Mine())) == {"method mine": "a piece of the user"}


def test_a_package_may_bring_its_own_entry(monkeypatch):
    entry = "@article{me2026, author = {Me}, title = {{Mine}}, journal = {J}, year = {2026}}"
    row = methods.Row(Mine, "mine", ("mine",), methods.NoLimit("a test", ""), cite=(entry,))
    monkeypatch.setattr(methods.METHODS, "_entries", {**methods.METHODS.items(), row.name: row})
    assert cite("mine")[1].key == "me2026"
    assert cite("mine")[1].bibtex == entry


@pytest.mark.parametrize(
    "bad",
    [
        "@article{",
        "@article{a b, title = {x}}",
        "article{a, title = {x}}",
        "@article{a, title = {x}",
        "@misc{,title={x}}",
    ],
)
def test_a_broken_entry_is_refused(bad):
    with pytest.raises(ConfigError, match="is no BibTeX entry"):
        key_of(bad)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ConfigError, match="li2020federated"):
        citations.entry("li2020federate")


def test_the_command_prints_a_bib_file(capsys):
    main_ok(["cite", "scaffold + fedper", "data=cifar10"])
    printed = capsys.readouterr().out
    keys = [key for _, key, _ in read_bibtex(printed)]
    assert len(keys) == len(set(keys))
    assert {"karimireddy2020scaffold", "arivazhagan2019federated", "krizhevsky2009learning", "fedstrata"} <= set(keys)


def test_the_command_prints_json(capsys):
    main_ok(["cite", "local", "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "method local" in found["unpublished"]
    assert {"key", "bibtex", "what", "text"} == set(found["citations"][0])


def test_the_command_refuses_an_unknown_method(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["cite", "scafold"])
    assert exit_.value.code == 2
    assert "Did you mean 'scaffold'" in capsys.readouterr().err


def main_ok(arguments):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 0
