"""Nothing in the package unpickles, evaluates text, or runs a shell."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "fedstrata"
MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml", "ruamel", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {
    ("torch", "load"),
    ("torch", "save"),
    ("os", "system"),
    ("os", "popen"),
    ("subprocess", "*"),
    ("pandas", "read_pickle"),
    ("pd", "read_pickle"),
}


def offences(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{node.lineno}: imports {n}" for n in names if n.split(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node):
    function = node.func
    if isinstance(function, ast.Name) and function.id in CALLS:
        yield f"{node.lineno}: calls {function.id}"
    if isinstance(function, ast.Attribute):
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        if ((owner, function.attr) in ATTRIBUTES or (owner, "*") in ATTRIBUTES) and not _is_our_own_python(node, owner):
            yield f"{node.lineno}: calls {owner}.{function.attr}"
        if owner in ("np", "numpy") and function.attr == "load" and not _refuses_objects(node):
            yield f"{node.lineno}: np.load without allow_pickle=False"
    if any(word.arg == "shell" and getattr(word.value, "value", None) for word in node.keywords):
        yield f"{node.lineno}: shell=True"
    if any(word.arg == "allow_pickle" and getattr(word.value, "value", None) is not False for word in node.keywords):
        yield f"{node.lineno}: allow_pickle is not False"


def _is_our_own_python(node, owner):
    """Another process of this interpreter, its words listed in the source: no shell, and no program that a user could
    name.
    """
    words = node.args[0] if owner == "subprocess" and node.args else None
    first = words.elts[0] if isinstance(words, ast.List) and words.elts else None
    return isinstance(first, ast.Attribute) and ast.unparse(first) == "sys.executable"


def _refuses_objects(node):
    return any(word.arg == "allow_pickle" and getattr(word.value, "value", None) is False for word in node.keywords)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_source_has_no_unsafe_call(path):
    assert list(offences(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "import ruamel.yaml",
        "def f():\n    import dill",
        "eval('1')",
        "torch.load(p)",
        "np.load(p)",
        "np.load(p, allow_pickle=True)",
        "numpy.load(p, allow_pickle=flag)",
        "subprocess.run(x)",
        "subprocess.Popen([x, 'a'])",
        "subprocess.Popen([sys.executable, 'a'], shell=True)",
        "run(x, shell=True)",
    ],
)
def test_the_check_finds_what_it_looks_for(source):
    assert list(offences(source))


def test_the_check_lets_safe_calls_pass():
    assert (
        list(
            offences(
                "np.load(p, allow_pickle=False)\nmodel.eval()\njson.load(f)\nast.parse(text,"
                " mode='eval')\nre.compile('x')"
            )
        )
        == []
    )
