"""``fedstrata run`` where nothing good comes back."""

import json

import pytest

from fedstrata.cli import main


def test_t17_a_run_in_which_every_reply_was_refused_ends_with_exit_code_0_and_says_so(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["run", "rounds=2", "cohort=2", "local.lr=1e30", "local.epochs=1", "executor=loop", "--json"])
    out, _ = capfd.readouterr()
    assert (left.value.code or 0) == 0
    summary = json.loads(out)
    assert summary["refused"] == {"nonfinite": 4}
    assert summary["rounds_without_update"] == 2
    assert summary["accuracy"]["final"] is not None
