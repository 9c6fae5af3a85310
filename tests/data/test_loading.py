"""Settings of data, refused in words."""

import pytest

from fedstrata import Federation
from fedstrata.common.errors import DataError


def test_a_share_where_test_samples_belong_says_what_is_meant():
    with pytest.raises(DataError, match=r"test is '0\.2'; it is \(x, y\).*testing='own\(share=0\.2\)'"):
        Federation.of([[0.0], [1.0]] * 4, [0, 1] * 4, client=[0, 1] * 4, test=0.2)
