"""Imports point one way, and the command loads little. Read from the source, so lazy imports count too."""

import ast
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedstrata
from fedstrata.compare.run_cache import PRESENTATION_PACKAGES, RESULT_PACKAGES

ROOT = Path(__file__).parents[1] / "src" / "fedstrata"

ORDER = """
cli
api compare studies doctor
report
analysis inference
runs testing bench
engine citations
config wire backends templates
client methods models diagnostics
core data storage trackers
common
"""
"""Folders from the top down. A folder imports from lower lines, or from its own line where no circle forms."""
LEVEL = {folder: -place for place, line in enumerate(ORDER.split("\n")) for folder in line.split()}
VOCABULARY = {"common", "core", "client", "methods"}


def sources():
    return sorted(ROOT.rglob("*.py"))


def module_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(module):
    return module.split(".")[1] if "." in module else "fedstrata"


MODULES = {module_of(path): path for path in sources()}


def typing_only(tree):
    """Nodes of the imports that only type checkers run."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }


def imports(path):
    """Yield (line, module) of every import of our own package, except those for type checkers only."""
    tree = ast.parse(path.read_text())
    skipped = typing_only(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            inner = [f"{node.module}.{a.name}" for a in node.names]
            names = [name if name in MODULES else node.module or "" for name in inner]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.partition(".")[0] == "fedstrata")


EDGES = {module: {name for _, name in imports(path)} - {module} for module, path in MODULES.items()}


def circles(edges):
    """Nodes that reach themselves."""
    reached = {node: set(targets) for node, targets in edges.items()}
    for middle in edges:
        for targets in reached.values():
            if middle in targets:
                targets.update(reached[middle])
    return {node for node, targets in reached.items() if node in targets}


def test_every_folder_has_a_place_in_the_order():
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders | {"api"} == set(LEVEL)
    assert len(LEVEL) <= 26
    assert {path.stem for path in ROOT.glob("*.py")} == {"__init__", "__main__", "_version", "api"}


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path):
    here = folder_of(module_of(path))
    if here in ("fedstrata", "__main__"):  # the face and the command
        return
    for line, name in imports(path):
        there = folder_of(name)
        if there not in (here, "_version"):
            assert there != "fedstrata", f"{path.name}:{line}: {here} imports the package itself"
            assert LEVEL[there] <= LEVEL[here], f"{path.name}:{line}: {here} imports {name}, which lies above it"


def test_no_circle_among_modules_or_folders():
    assert not circles(EDGES)
    folders = {}
    for module, targets in EDGES.items():
        folders.setdefault(folder_of(module), set()).update(map(folder_of, targets))
    assert not circles({folder: targets - {folder} for folder, targets in folders.items()} | {"_version": set()})


@pytest.mark.parametrize("path", sorted((ROOT / "methods").rglob("*.py")), ids=lambda p: p.stem)
def test_methods_import_only_the_vocabulary(path):
    for line, name in imports(path):
        assert folder_of(name) in VOCABULARY, f"{path.name}:{line}: a method imports {name}"


@pytest.mark.parametrize(("library", "home"), [("ray", "backends/ray.py"), ("flwr", "backends/flower.py")])
def test_a_runtime_is_imported_by_its_own_backend_only(library, home):
    for path in sources():
        if str(path.relative_to(ROOT)) == home:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(name.split(".")[0] == library for name in names), f"{path.name} imports {library}"


def test_pyplot_is_never_imported():
    for path in sources():
        assert "pyplot" not in path.read_text(), path


def test_result_and_presentation_packages_partition_the_folders():
    assert not RESULT_PACKAGES & PRESENTATION_PACKAGES
    assert set(LEVEL) == RESULT_PACKAGES | PRESENTATION_PACKAGES


def test_what_decides_a_result_imports_only_what_decides_or_is_known_to_only_observe():
    """Otherwise a change in what is imported would leave cached runs that would be trained differently."""
    imported = {folder_of(t) for m, targets in EDGES.items() if folder_of(m) in RESULT_PACKAGES for t in targets}
    assert imported - RESULT_PACKAGES <= {"_version", "trackers"}


def test_the_face_names_the_same_for_users_and_for_type_checkers():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    typed = {
        (node.module.removeprefix("fedstrata."), alias.name)
        for node in typing_only(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {(module, name) for name, module in fedstrata._HOMES.items()} == typed
    assert set(fedstrata._HOMES) == set(fedstrata.__all__) <= set(dir(fedstrata))
    for name in fedstrata.__all__:
        assert getattr(fedstrata, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = fedstrata.runn


def test_a_public_function_keeps_its_name_where_a_folder_has_the_same():
    code = "import fedstrata, fedstrata.compare.entries, fedstrata.studies.base; print(fedstrata.compare.__name__)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "compare\n"
    )


LIGHT = (
    ["--help"],
    ["--version"],
    ["run", "--help"],
    ["compare", "--help"],
    *(
        ["list", what]
        for what in ["methods", "datasets", "models", "partitions", "measures", "studies", "trackers", "executors"]
    ),
    ["cite", "fedprox + fedavgm"],
)
HEAVY = {"torch", "matplotlib", "sklearn", "scipy", "pandas", "pyarrow"}


def loaded(arguments, **environment):
    """Top-level packages that a command loads."""
    code = (
        f"import sys\nsys.argv = ['fedstrata']\nfrom fedstrata.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return set(done.stderr.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_a_command_that_trains_nothing_loads_no_heavy_package(arguments):
    assert not loaded(arguments) & HEAVY


def test_shell_completion_loads_no_heavy_package():
    assert not loaded([], _FEDSTRATA_COMPLETE="complete_bash", COMP_WORDS="fedstrata li", COMP_CWORD="1") & HEAVY


@pytest.mark.slow
def test_help_takes_at_most_a_fifth_of_importing_torch():
    def median(*command):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    median("-m", "fedstrata", "--help")  # compiles what is not compiled yet
    assert median("-m", "fedstrata", "--help") <= median("-c", "import torch") / 5
