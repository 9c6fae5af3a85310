"""Hostile names of runs and clients reach no path."""

import numpy as np
import pytest

from fedstrata.common.errors import ConfigError
from fedstrata.config.config import Config
from fedstrata.data import Federation
from helpers import lab
from helpers.examples import in_folder


def hostile():
    """Two hundred strings that are no names."""
    parts = [
        "..",
        "/",
        "\\",
        "\0",
        "\n",
        "\r",
        "\x1b[31m",
        "{0}",
        "%s",
        "%n",
        "$(id)",
        "`id`",
        "~",
        " ",
        "*",
        "?",
        ":",
        "|",
        "<b>",
        "'",
        '"',
        ";",
    ]
    parts += ["\u202e", "\u2028", "\ud800", "\x7f", "é", "权"]
    names = [
        f(p)
        for p in parts
        for f in (str, lambda p: f"a{p}", lambda p: f"{p}a", lambda p: f"a{p}b", lambda p: p * 3, lambda p: f"../{p}")
    ]
    names += [
        "",
        ".",
        "...",
        "-rf",
        "_x",
        "/etc/passwd",
        "C:\\x",
        "a" * 129,
        "a" * 10_000,
        "a/../../b",
        "a//b",
        "auto ",
        "con:",
        "a\tb",
        "\ufeffa",
    ]
    names += [f"{'../' * n}x" for n in range(1, 30)]
    return [name for name in names if name not in ("a..", "a..b")]  # odd, but plain folder names


def test_row_72_hostile_run_names_are_refused_in_one_short_line(tmp_path):
    assert len(hostile()) >= 200
    for name in hostile():
        with pytest.raises(ConfigError, match="folder name") as caught:
            Config(name=name, out=str(tmp_path))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300
    assert list(tmp_path.iterdir()) == []


def test_row_72_hostile_client_names_are_data_and_reach_no_path(tmp_path):
    names = [name for name in dict.fromkeys(hostile()) if name]
    x, y, _ = lab.arrays((len(names),))
    data = Federation.of(x.numpy(), y.numpy(), client=np.array(names, dtype=object), test=(x.numpy(), y.numpy()))
    assert data.clients == len(names)
    assert all(line.isprintable() for line in data.describe().split("\n"))
    result = in_folder(tmp_path / "only", (data, lab.small()))
    written = {p.name for p in result.folder.iterdir()}
    assert written == {
        "config.toml",
        "manifest.json",
        "rounds.jsonl",
        "summary.json",
        "model.safetensors",
        "checkpoints",
        ".lock",
    }
    assert [p.name for p in tmp_path.iterdir()] == ["only"]
