"""One compiled graph gives what the eager loss gives. The default compiler of torch.compile needs
a C++ compiler, so this is no cell of a page."""
import shutil

import pytest
import torch

from dml_nb.check import test_same as same
from dml_nb.losses import (
    CIT, DROKL, Angular, BatchHard, ClassDiscrepancy, Contrastive, DROTopK, MultiSimilarity,
    Triplet)
from dml_nb.transport import MMD, Wasserstein

losses = [
    MultiSimilarity(), Contrastive(), Triplet() + 0.5 * MultiSimilarity(), Angular(), DROTopK(96),
    DROKL(.1), BatchHard(), CIT(.5), ClassDiscrepancy(MMD(sigma=.5)),
    Triplet() + 0.5 * ClassDiscrepancy(Wasserstein(.05)),
]
has_compiler = shutil.which('g++') or shutil.which('clang++')


@pytest.mark.long
@pytest.mark.skipif(not has_compiler, reason='no C++ compiler for torch.compile')
@pytest.mark.parametrize('loss', losses, ids=repr)
def test_compiled_equals_eager(loss):
    torch.compiler.reset()               # torch keeps eight versions of one function
    torch.manual_seed(0)
    z, labels = torch.randn(48, 16, requires_grad=True), torch.arange(48) % 9
    value, expected = torch.compile(loss, fullgraph=True)(z, labels), loss(z, labels)
    same(value, expected)
    gradients = [torch.autograd.grad(v, z)[0] for v in (value, expected)]
    same(*gradients, rtol=1e-4, atol=1e-6)
