"""Numbers beyond float32 and arrays of a wrong shape are named by the checks in one line, without a warning of numpy's
beside it.
"""

import io
import math

import numpy as np
import pytest
from PIL import Image

import fedstrata
from fedstrata.cli import main
from fedstrata.common.errors import DataError
from fedstrata.config.config import Config
from fedstrata.data import Federation
from helpers import lab


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e300, -1e39])
def test_a_feature_beyond_float32_is_named(value):
    x = np.ones((6, 2))
    x[3, 1] = value
    with pytest.raises(DataError, match=r"row 3, column 1 is -?inf"):
        fedstrata.Federation.of(x, np.arange(6) % 2)


@pytest.mark.filterwarnings("error")
def test_a_table_with_a_number_beyond_float32_is_one_line(tmp_path, capsys):
    rows = [f"{1e308 if i == 3 else i},{'yes' if i % 2 else 'no'}" for i in range(40)]
    (tmp_path / "x.csv").write_text("\n".join(["a,label", *rows]) + "\n")
    with pytest.raises(SystemExit) as end:
        main(
            ["check", f"data.root={tmp_path}", "data=table(path='x.csv', label='label')", "clients=2", "partition=iid"]
        )
    assert end.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "inf" in said[0]


def stack(folder, **changes):
    """Packed 28 x 28 pictures in the layout of shared data, with changes to the training file."""
    picture = io.BytesIO()
    Image.fromarray(np.zeros((20 * 28, 28), dtype=np.uint8)).save(picture, "png")
    table = {
        "m0000": np.frombuffer(picture.getvalue(), dtype=np.uint8),
        "size": np.array([28, 28, 1]),
        "labels": np.arange(20) % 10,
        "classes": np.array(list("0123456789")),
        "writer": np.arange(20) % 4,
    }
    (folder / "mnist").mkdir()
    np.savez(folder / "mnist" / "train.npz", **table | changes)
    np.savez(folder / "mnist" / "test.npz", **table)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"size": np.array([28])}, "size is [28]"),
        ({"size": np.array("x")}, "size is 'x'"),
        ({"size": np.full(3, np.nan)}, "size is [nan, nan, nan]"),
        ({"size": np.full(3, 2**31 - 1)}, "size is [2147483647"),
        ({"size": np.zeros(3, dtype=np.int64)}, "size is [0, 0, 0]"),
        ({"classes": np.array("x")}, "classes has shape ()"),
        ({"writer": np.array("x")}, "writer has shape ()"),
        ({"writer": np.zeros(7, dtype=np.int64)}, "writer has shape (7,); it must be [20]"),
    ],
)
def test_an_array_of_the_wrong_shape_in_a_file_is_named(tmp_path, changes, says):
    stack(tmp_path, **changes)
    config = Config(data="mnist", data_root=str(tmp_path), partition="natural")
    if says is None:
        assert config.federation().clients == 4
        return
    with pytest.raises(DataError) as told:
        config.federation()
    assert says in str(told.value)


def test_t17_nan_in_the_data_is_refused_where_they_are_read():
    x, y, client = lab.arrays()
    x[18, 2] = math.nan
    with pytest.raises(DataError, match="row 18, column 2 is nan"):
        Federation.of(x.numpy(), y.numpy(), client=client.numpy())
