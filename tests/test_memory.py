"""Blocks keep their promise: a batch whose similarities fill 256 MB is trained in far less. Each in
a process of its own, so that the peak is its own."""
from pathlib import Path

import pytest

from dml_nb.support.results import extra_memory

setup = '''
import torch
from dml_nb.losses import (
    CIT, DROKL, BatchHard, ClassDiscrepancy, Contrastive, DROTopK, MultiSimilarity, SemiHard,
    Triplet)
from dml_nb.transport import MMD
torch.set_num_threads(2)
def step(z, labels): {loss}(z, labels).backward()
z, labels = torch.randn(8192, 64, requires_grad=True), torch.arange(8192) // 4
step(z[:64], labels[:64])
'''
losses = [
    'MultiSimilarity(block=512)', 'Contrastive(block=512)', 'Triplet(block=512)',
    'Triplet(select=SemiHard(), block=512)', 'BatchHard(block=512)', 'CIT(1., block=512)',
    'CIT(.5, block=512)', 'DROTopK(16384, block=512)', 'DROKL(.1, block=512)',
    'ClassDiscrepancy(MMD(), block=512)',
]
has_proc = Path('/proc/self/clear_refs').exists()


@pytest.mark.long
@pytest.mark.skipif(not has_proc, reason='the peak of memory is read from /proc, of Linux')
@pytest.mark.parametrize('loss', losses)
def test_blocks_need_little_memory(loss):
    extra = extra_memory(setup.format(loss=loss), 'step(z, labels)')
    assert extra < 250, f'{loss} took {extra:.0f} MB for B = 8192, D = 64'
