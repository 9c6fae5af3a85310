"""Files of a comparison that are damaged or another's."""

import json

import pytest

from fedstrata.common.errors import StateError
from fedstrata.compare.comparison_file import FILE, FORMAT, read
from helpers.comparisons import asked, make


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"format": 1}'])
def test_the_same_call_mends_a_damaged_record_as_its_message_promises(tmp_path, text):
    planned = asked(tmp_path, seeds=(0,), executor="loop", rounds=1)
    planned.folder.mkdir()
    record = planned.folder / FILE
    record.write_bytes(text)
    with pytest.raises(StateError, match=r"damaged|format"):
        read(planned.folder)
    make(planned, observers=(lambda _event: None,))  # in this process
    assert len(read(planned.folder).results) == 2
    assert (planned.folder / f"{FILE}.damaged-1").read_bytes() == text


def test_a_record_of_another_comparison_is_still_refused(tmp_path):
    planned = asked(tmp_path, seeds=(0,))
    planned.folder.mkdir()
    (planned.folder / FILE).write_text(json.dumps({"format": FORMAT, "digest": "another"}))
    with pytest.raises(StateError, match="another comparison"):
        make(planned)
    assert (planned.folder / FILE).exists()
