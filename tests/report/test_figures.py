"""Pictures that cannot be written."""

import pytest

from fedstrata.common.errors import ConfigError
from fedstrata.report.figures import Picture


@pytest.mark.parametrize(
    ("name", "says"),
    [("p.xyz", r"PNG, SVG or PDF.*call it p\.png"), ("nosuch/p.png", "no folder"), ("", "is a folder")],
)
def test_a_picture_that_cannot_be_written_says_what_would_be_right(tmp_path, name, says):
    with pytest.raises(ConfigError, match=says):
        Picture().write(tmp_path / name)
    assert Picture().write(tmp_path / "p.PNG").read_bytes().startswith(b"\x89PNG")
