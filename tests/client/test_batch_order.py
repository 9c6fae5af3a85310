"""Batches of every purpose: no sample alone under a batch norm, none lost."""

import torch

from fedstrata.client.tools import ClientTools
from helpers import lab
from helpers.examples import every_example


@every_example
def test_t16_no_method_ever_sees_a_single_sample_and_none_loses_one(monkeypatch, example):
    """n = k * batch + 1: in training, in private fits and in fine-tuning, every pass reads all n samples in k
    batches.
    """
    seen, read = {}, ClientTools.read

    def spy(self, purpose, epoch, positions):
        if not self.probe:
            seen.setdefault((purpose, self.task.round, (self.task.client, self.task.cohort_index), epoch), []).append(
                positions
            )
        return read(self, purpose, epoch, positions)

    monkeypatch.setattr(ClientTools, "read", spy)
    x, y, _ = lab.arrays((9, 5, 17))
    data = lab.listed(x, y, (9, 5, 17), testing="server", test=(x.numpy(), y.numpy()))
    found = lab.play(example, (data, lab.small("batch")), cohort=3, rounds=2)
    assert all(row["refused"] == [] for row in found.rows)
    assert {purpose for purpose, *_ in seen}
    for (purpose, _, (client, _), _), batches in seen.items():
        n = (9, 5, 17)[client]
        sizes = [len(b) for b in batches]
        assert 1 not in sizes
        if purpose not in ("finetune.finetune", "perfedavg.adapt"):  # a number of steps, which may end inside a pass
            assert sizes == [4] * (n // 4 - 1) + [5], purpose
            assert sorted(torch.cat(batches).tolist()) == list(range(n))
