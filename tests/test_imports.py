"""Imports go one way. Read from the source, so that lazy imports count too."""

import ast
from pathlib import Path

import pytest

from fedstrata.compare.run_cache import RESULT_PACKAGES

ROOT = Path(__file__).parents[1] / "src" / "fedstrata"

# From the bottom up. A room may import itself and what stands on lower floors; rooms of one floor stand beside each
# other.
FLOORS = [
    {"__init__"},  # its version; what it offers is imported from everywhere, and nobody below may ask it for more
    {"alive", "allocator", "errors", "streams", "templates"},
    {"bibliography", "calls", "container", "events", "interrupt", "keys", "optim", "params"},
    {"layout", "plugins", "schedules", "sections", "toml"},
    {"net", "states"},
    {"measure", "plan", "prefix"},
    {"kept", "piece", "order"},
    {"compose", "data", "models"},
    {"config", "kit", "methods"},
    {"steps"},
    {"cite", "costs", "round", "track"},
    {"report", "server", "state", "wire"},
    {"build", "evaluate", "ledger"},
    {"backends", "ending"},
    {"engine"},
    {"bench", "describe", "folder", "summary", "testing"},
    {"doctor", "recall"},
    {"run"},
    {"compare", "use"},
    {"studies"},
    {"api", "catalogue", "new"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
VOCABULARY = {
    "calls",
    "compose",
    "errors",
    "layout",
    "net",
    "params",
    "piece",
    "plan",
    "states",
    "streams",
    "optim",
    "methods",
}


def sources():
    return sorted(ROOT.rglob("*.py"))


def room_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imports(path):
    """(line, room, imported module) of every import of our own package, wherever it stands, except those for type
    checkers only.
    """
    tree = ast.parse(path.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and _is_type_checking(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = (
                [f"{node.module}.{a.name}" for a in node.names] if node.module == "fedstrata" else [node.module or ""]
            )
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "fedstrata":
                room = rest.split(".")[0] or "__init__"
                yield node.lineno, ("__init__" if room == "__version__" else room), name


def _is_type_checking(test):
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path):
    room = room_of(path)
    if room == "__init__":
        return
    assert room in FLOOR, f"{room} has no floor yet: say in this test what it stands on"
    for line, other, name in imports(path):
        if other != room:
            assert FLOOR[other] < FLOOR[room], (
                f"{path.name}:{line}: {room} imports {name}, which does not stand below it"
            )


@pytest.mark.parametrize("path", sorted((ROOT / "methods").rglob("*.py")), ids=lambda p: p.stem)
def test_methods_import_only_the_vocabulary(path):
    allowed = VOCABULARY | (
        {"plugins"} if path.stem == "registry" else set()
    )  # the registry is no method: it also finds those of other packages
    for line, other, name in imports(path):
        assert other in allowed, f"{path.name}:{line}: a method imports {name}"


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


def test_what_decides_a_run_calls_only_what_decides_or_is_known_to_look_on():
    """Otherwise a change in what is called would leave cached runs standing that would come out differently."""
    onlookers = {"__init__", "plugins", "report", "track"}
    called = {room for path in sources() if room_of(path) in RESULT_PACKAGES for _, room, _ in imports(path)}
    assert called - RESULT_PACKAGES == onlookers
