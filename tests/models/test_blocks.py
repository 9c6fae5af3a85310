"""Max-pools by torch's fast path are torch's own, in values, gradients and format."""

import pytest
import torch
from torch.nn.functional import max_pool2d

from fedstrata.models.blocks import max_pool


@pytest.mark.parametrize("windows", [(2, 2, 0), (3, 2, 1)])
@pytest.mark.parametrize("last", [False, True])
def test_a_pool_is_torchs_in_values_and_gradients_and_keeps_the_format(windows, last):
    form = torch.channels_last if last else torch.contiguous_format
    image = torch.randn(3, 5, 8, 8, generator=torch.Generator().manual_seed(0)).relu().contiguous(memory_format=form)
    ours, theirs = (image.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
    found, wanted = max_pool(ours, *windows, channels_last=last), max_pool2d(theirs, *windows)
    assert torch.equal(found, wanted)
    assert found.is_contiguous(memory_format=form)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    (mine,), (their,) = (
        torch.autograd.grad((found * weights).sum(), ours),
        torch.autograd.grad((wanted * weights).sum(), theirs),
    )
    assert torch.equal(mine, their)
