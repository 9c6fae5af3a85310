"""Commands that are typed wrong, and places and arrays that are not what they are called."""

import numpy as np
import pytest

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.inference.inputs import _arrays, read
from fedstrata.inference.predict import Predictions
from fedstrata.templates.generate import new


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["predict"], "Missing argument 'RUN'"),
        (["predict", "--nosuch", "x", "y"], "No such option '--nosuch'"),
        (["new", "method", "-x"], "No such option '-x'"),
        (["export", "r", "--format"], "Option '--format' requires an argument."),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(call, words, said):
    code, out, err = call(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"fedstrata: error: {said}")


def test_no_words_at_all_show_the_commands(call):
    code, out, err = call()
    assert code == 2
    assert "compare" in out + err


def test_help_and_version_end_well(call):
    assert call("--version")[0] == call("new", "--help")[0] == 0


def test_predictions_are_not_written_over_a_folder(tmp_path):
    import torch  # noqa: PLC0415

    told = Predictions(("0",), ("a", "b"), torch.tensor([[0.5, 0.5]]).double(), None, None, None, ())
    with pytest.raises(ConfigError, match="is a folder"):
        told.write(tmp_path)


def test_a_package_does_not_go_into_a_file(call, here):
    (here / "file").write_text("")
    code, _, err = call("new", "method", "fedmine", "--folder", "file")
    assert (code, err.count("\n")) == (2, 1)
    with pytest.raises(ConfigError, match="which is a file"):
        new("method", "fedmine", here / "file")


def test_an_array_that_was_cut_short_is_not_called_a_pickle_alone(tmp_path):
    np.save(tmp_path / "whole.npy", np.zeros((3, 1, 8, 8)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:100])
    with pytest.raises(DataError, match=r"holds no readable array \(EOF: .*\); it must be a complete array of numbers"):
        _arrays(tmp_path / "cut.npy")


def test_data_without_a_name_are_not_the_folder_at_hand(monkeypatch):
    monkeypatch.setattr("fedstrata.inference.inputs.preprocessor_of", lambda _: None)
    with pytest.raises(DataError, match="name of the data is empty"):
        read("", None)
