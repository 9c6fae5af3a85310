"""What the documents say holds: every block of every page runs, examples in docstrings run, the site builds strictly
and needs no network.
"""

import ast
import doctest
import functools
import importlib
import importlib.util
import multiprocessing
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedstrata
from fedstrata.cli import app
from fedstrata.methods import rows as methods
from helpers import doc_pages, doc_reader
from helpers.tiers import tiered

ROOT = Path(__file__).parents[2]
OPTIONAL = ("ray", "flower")  # backends whose libraries are extras
MODULES = [
    m.name
    for m in pkgutil.walk_packages(fedstrata.__path__, "fedstrata.")
    if m.name.rsplit(".", 1)[-1] not in (*OPTIONAL, "__main__")
]
PRELOADED = [
    *(
        "fedstrata.cli",
        "fedstrata.run",
        "fedstrata.compare.comparison",
        "fedstrata.doctor",
        "fedstrata.inference",
        "fedstrata.report.page",
    ),
    *(
        "fedstrata.report.export",
        "fedstrata.report.figures",
        "sklearn.datasets",
        "sklearn.metrics",
        "scipy.stats",
        "pandas",
        "pyarrow.parquet",
        "PIL.Image",
    ),
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
]
RUNS = [path for path in doc_pages.pages() if doc_pages.blocks(path)]
SHORT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/config.md")]
NOT_RUN = (
    r"make [\w-]+|git push|source \S+|python3 -m venv \S+|pip install .*|mlflow ui.*|tensorboard --logdir.*|python -m"
    r" http\.server.*"
)

README = """
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import fedstrata

fedstrata.run(name="first")
Path("common.toml").write_text('data = "digits"')
Path("mine.toml").write_text('base = "common"\\nvalidation = 0.2')
rows = "".join(f"{i},{i % 7},{i % 2},h{i % 4}\\n" for i in range(200))
Path("x.csv").write_text("id,age,died,hospital\\n" + rows)
rng = np.random.default_rng(0)
for client, kind, place in [(c, k, p) for c in "ab" for k in ("cat", "dog") for p in range(12)]:
    folder = Path("pictures", client, kind)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 255, (32, 32), dtype=np.uint8)).save(folder / f"{place}.png")
folder = Path("DIR/cifar-10-batches-bin")
folder.mkdir(parents=True)
for name in [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]:
    drawn = rng.integers(0, 255, (2400, 3073), dtype=np.uint8)
    drawn[:, 0] = np.arange(2400) % 10
    (folder / name).write_bytes(drawn.tobytes())
x, y, hospital = torch.randn(120, 7), torch.arange(120) % 2, [f"h{i % 3}" for i in range(120)]
my_module = nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
"""
BROUGHT = {  # README and CONTRIBUTING are kept free of comments for a test; every other page states its own rules
    "README.md": doc_reader.Brought(
        README,
        words={r"\[runs/OTHER\]": "", r"runs/NAME": "runs/first"},
        settings=doc_pages.settings("rounds=1 executor=loop local.epochs=1 --seeds=0,1 report=none"),
        left=NOT_RUN + r"|\.venv/bin/fedstrata bench",  # minutes; a slow test runs it
    ),
    "CONTRIBUTING.md": doc_reader.Brought(left=NOT_RUN),
    "inversion.md": doc_reader.Brought(words={r"steps=\d+": "steps=1, images=1"}),  # minutes of attacks
}


@pytest.fixture(scope="session")
def forks():
    """A server that has everything imported and forks a process for each page."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@pytest.mark.parametrize("path", tiered(RUNS, SHORT), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_reader_who_does_what_a_page_says_gets_there(path, tmp_path, forks):
    folder = tmp_path / "here"
    folder.mkdir()
    brought = BROUGHT.get(path.name, doc_reader.Brought())
    child = forks.Process(target=doc_reader.play, args=(str(path), str(folder), str(tmp_path / "log"), brought))
    child.start()
    child.join(240)
    said = (tmp_path / "log").read_text(errors="replace") if (tmp_path / "log").exists() else ""
    if child.exitcode is None:
        child.kill()
    print(said[-40:])
    assert child.exitcode == 0, f"{path.name}:\n{said[-6000:]}"


def test_what_is_not_run_is_listed_and_could_not_be_run_in_a_test():
    skipped = [(path, block) for path in RUNS for block in doc_pages.blocks(path) if block.skip]
    for path, block in skipped:
        print(f"{path.relative_to(ROOT)}, line {block.line}: not run because {block.skip}")
        for command in doc_pages.commands(block.source):
            assert re.fullmatch(NOT_RUN, command), f"{path.name}: {command}"
        assert block.language == "bash", f"{path.name}, line {block.line}: only commands may be left out"


def test_a_command_that_is_named_in_a_page_exists():
    commands = {c.name or c.callback.__name__ for c in app.registered_commands} | {
        g.name or g.typer_instance.info.name for g in app.registered_groups
    }
    for path in doc_pages.pages():
        for name in re.findall(r"`fedstrata (\w+)", path.read_text()):
            assert name in commands, f"{path.name}: fedstrata {name}"


def test_a_make_target_that_is_named_in_a_page_exists():
    for path in doc_pages.pages():
        for name in re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(), re.MULTILINE):
            assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"{path.name}: make {name}"


def test_the_readme_opens_with_the_two_commands():
    first = next(block for block in doc_pages.blocks(ROOT / "README.md") if block.language == "bash")
    assert doc_pages.commands(first.source)[:2] == ["make demo", "make test"]


def test_links_in_documents_lead_somewhere():
    for path in doc_pages.pages():
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            assert target.startswith("https://") or (path.parent / target).exists(), f"{path.name}: {target}"


def test_a_rule_of_a_page_reads_as_it_is_written(tmp_path):
    path = tmp_path / "x.md"
    shell = '```bash\na \\\n  "b # x"  # our\'s\n```\n'
    path.write_text(f'<!-- test page: rounds=2 -->\n<!-- test: exits 2 -->\n{shell}\n```toml title="m.toml"\nx\n```\n')
    shell, file = doc_pages.blocks(path)
    assert (shell.exits, shell.settings, doc_pages.commands(shell.source)) == (2, {"rounds": "2"}, ['a "b # x"'])
    assert (file.title, file.source) == ("m.toml", "x\n")


def test_a_page_that_is_wrong_fails(tmp_path, forks):
    for place, source in enumerate(
        (
            "```bash\nfedstrata run ruonds=1\n```\n",
            "```python\nassert False\n```\n",
            "```bash\nfalse\n```\n",
            "```toml\nx = 1\n```\n",
        )
    ):
        path, folder = tmp_path / f"{place}.md", tmp_path / str(place)
        path.write_text(source)
        folder.mkdir()
        child = forks.Process(
            target=doc_reader.play, args=(str(path), str(folder), str(tmp_path / f"{place}.log"), doc_reader.Brought())
        )
        child.start()
        child.join(60)
        assert child.exitcode == 1, source


@pytest.mark.parametrize("name", [*MODULES, "helpers.doc_reader"])
def test_examples_in_docstrings_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


@pytest.mark.slow
def test_the_bench_of_the_readme_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fedstrata", "bench", "--jobs", "S", "--pairs", "5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "batched" in done.stdout


# ---- inferred defaults


@pytest.fixture(scope="module")
def inferred():
    spec = importlib.util.spec_from_file_location("make_inferred", ROOT / "docs" / "make" / "inferred.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_inferred"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    module.rows = functools.cache(module.rows)
    yield module
    del sys.modules["make_inferred"]


def test_the_page_of_inferred_defaults_is_what_the_code_says(inferred):
    assert inferred.PAGE.read_text() == inferred.page(), "run: python docs/make/inferred.py"


def test_every_time_the_code_says_inferred_it_is_a_row(inferred):
    counted = sum(path.read_text().count("INFERRED") for path in (ROOT / "src").rglob("*.py"))
    rows = inferred.rows()
    assert counted == sum(
        sentence.count("INFERRED") for sentence in {(row.name, row.sentence): row.sentence for row in rows}.values()
    )


def test_a_named_setting_is_listed_with_its_default(inferred):
    rows = {(row.name, row.setting): row.default for row in inferred.rows()}
    assert rows["ditto", "mu"] == "0.1"
    assert rows["fedadam", "lr"] == "0.01"  # a field of a parent class


def test_sentences_end_at_full_stops_and_not_at_abbreviations(inferred):
    text = (
        "A first one. Source: Li et al. 2021, Alg. 1. mu 0.1 is INFERRED (see sec. 3).\n\nAnother\nparagraph; B is"
        " INFERRED."
    )
    assert inferred.sentences(text) == ["mu 0.1 is INFERRED (see sec. 3).", "Another paragraph; B is INFERRED."]


# ---- methods and versions
# ---------------------------------------------------------------------------------------------------------------------


def test_every_method_is_explained_on_the_page_of_its_family():
    families = {path.stem: path.read_text() for path in (ROOT / "docs" / "families").glob("*.md")}
    for row in methods():
        assert row.name.replace("_", "") in re.sub(r"[-\s_]", "", families[row.family].lower()), row.name
    for name, text in families.items():
        mark = name.replace("-", "_")
        assert f"<!-- make: {mark} -->" in text, name
        assert f"<!-- make: {mark}_settings -->" in text, name


def test_the_version_is_one():
    assert f"version: {fedstrata.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{fedstrata.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


# ---- pins


def test_constraints_pin_every_dependency_of_the_library_its_tests_and_its_site():
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *project["optional-dependencies"]["docs"],
    ]:
        name = re.match(r"[A-Za-z0-9_-]+", text)[0].lower()
        assert name in pinned or name == "fedstrata", text


def test_a_method_of_one_s_own_takes_fewer_than_thirty_lines():
    file = next(block for block in doc_pages.blocks(ROOT / "docs" / "own-method.md") if block.title == "mine.py")
    assert sum(bool(line.strip()) for line in file.source.splitlines()) < 30


def test_python_in_pages_is_python():
    for path in doc_pages.pages():
        for block in doc_pages.blocks(path):
            if block.language in ("python", "prepare"):
                ast.parse(block.source)
