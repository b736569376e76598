"""What a step costs where no clock is needed: products, passes over S, memory.

Times are noisy, counts are not. Each bound here is what the engine does now; a change that makes it
do more fails, and says which loss."""
import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dml_nb.engine.scratch import Scratch
from dml_nb.engine import inputs, memory
from dml_nb.support.results import extra_memory
from dml_nb.losses import (
    Contrastive, DROTopK, Graded, Histogram, Levels, LiftedStructure, MultiSimilarity, NCA, Shares,
    Triplet)
from dml_nb.losses.catalogue import LOSSES
from dml_nb.weighting import PairLoss

aten = torch.ops.aten
B, R, D = 300, 210, 131            # D is no other size, so that products with the embeddings show
rows_of_a_block = 70
pair_losses = [name for name, entry in LOSSES.items()
               if isinstance(entry.for_data(B // 4, D), PairLoss)]
gathering = [name for name in pair_losses if LOSSES[name].for_data(B // 4, D).statistics_passes]


class Counted(TorchDispatchMode):
    "Multiplications in products with embeddings, operations on large tensors, the largest tensor"
    def __init__(self, large=10**9):
        super().__init__()
        self.large, self.multiplications, self.passes, self.largest = large, 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        answer = func(*args, **(kwargs or {}))
        given = [a for a in args if isinstance(a, torch.Tensor)]
        made = [a for a in torch.utils._pytree.tree_leaves(answer) if isinstance(a, torch.Tensor)]
        packet = func.overloadpacket
        if packet in (aten.mm, aten.addmm, aten.addmm_):
            first, second = [a for a in given if a.ndim == 2][-2:]
            sizes = *first.shape, second.shape[1]
            if D in sizes:
                self.multiplications += sizes[0] * sizes[1] * sizes[2]
        elif not func.is_view and packet not in (aten.empty, aten.new_empty):
            self.passes += any(a.numel() >= self.large for a in given + made)
        self.largest = max([self.largest, *(a.numel() for a in made)])
        return answer


def batch(rows=B):
    torch.manual_seed(0)
    z = torch.randn(rows, D, requires_grad=True)
    return z, (torch.arange(rows) // 4)[torch.randperm(rows)]


@pytest.fixture(params=['one block', 'several blocks'])
def cut(request, monkeypatch):
    "Blocks of the engine's choice: one for so small a batch, or several as for a large one"
    if request.param == 'several blocks':
        spans = memory.spans
        monkeypatch.setattr(memory, 'spans', lambda batch, block, indivisible: spans(
            batch, block or rows_of_a_block, indivisible))
    return request.param


def step(loss, *given):
    "What a step forward and backward costs"
    with Counted() as counted:
        loss(*given).backward()
    return counted


@pytest.mark.parametrize('name', pair_losses)
def test_a_batch_with_itself_takes_two_products(name, cut):
    "S, and W with its transpose; the second pass finds S where it was made"
    loss = LOSSES[name].for_data(B // 4, D)
    assert step(loss, *batch()).multiplications == 2 * B * B * D


symmetric = [name for name in pair_losses if LOSSES[name].for_data(B // 4, D).symmetric]


@pytest.mark.parametrize('name', symmetric)
def test_symmetric_weights_are_their_own_transpose(name):
    "So that the sum of both need not be made; classes of several sizes and one unlabelled image"
    z, _ = batch(25)
    y = torch.tensor([0] * 9 + [1] * 7 + [2] * 5 + [3] * 3 + [-1])
    W = LOSSES[name].for_data(B // 4, D).pair_weights(z.double(), y)
    torch.testing.assert_close(W, W.T, rtol=0, atol=1e-9)


def test_a_loss_that_inherits_has_to_say_itself_that_it_is_symmetric():
    class Upper(Contrastive):
        def value_and_weights(self, S, pairs):
            W = torch.triu(torch.ones_like(S), 1)
            return (W * S).sum(), W

    z, y = batch(6)
    loss = Upper()(z, y)
    loss.backward()
    leaf = z.detach().clone().requires_grad_()
    x = torch.nn.functional.normalize(leaf)
    (x @ x.T).triu(1).sum().backward()
    torch.testing.assert_close(z.grad, leaf.grad)


@pytest.mark.parametrize('name', ['multi_similarity', *gathering])
def test_references_take_three_products(name, cut):
    loss = LOSSES[name].for_data(B // 4, D)
    if inputs.demanding_term(loss) is not None:
        pytest.skip('it takes no references')
    z, y = batch()
    ref, y_ref = z.detach()[:R].clone().requires_grad_(), y[:R]
    assert step(loss, z, y, ref, y_ref).multiplications == 3 * B * R * D


@pytest.mark.parametrize('name', pair_losses)
def test_without_gradient_one_product(name, cut):
    loss = LOSSES[name].for_data(B // 4, D)
    with Counted() as counted, torch.no_grad():
        loss(*batch())
    assert counted.multiplications == B * B * D


def test_terms_of_a_sum_share_their_products(cut):
    total = MultiSimilarity() + .5 * Triplet() + Histogram()
    assert step(total, *batch()).multiplications == 2 * B * B * D


def structured(y):
    "Three levels, sets and three relevances, with labels to call them with"
    levels = torch.stack([y, y // 4, y // 16], 1)
    same = (levels[:, None] == levels).float()
    sets = torch.nn.functional.one_hot(y).bool()
    return ((lambda loss: Levels(loss, [1., .5, .25]), levels), (Shares, sets),
            (Graded, same.mean(-1)))


@pytest.mark.parametrize('kind', range(3), ids=['levels', 'sets', 'relevances'])
def test_relations_share_their_products(kind, cut):
    z, y = batch()
    make, labels = structured(y)[kind]
    assert step(make(MultiSimilarity() + Histogram()), z, labels).multiplications == 2 * B * B * D


# operations that read or write a matrix as large as S, the products left out
PASSES = {Contrastive: 9, MultiSimilarity: 18, NCA: 12, LiftedStructure: 11, Triplet: 5}


@pytest.mark.parametrize('kind', PASSES)
def test_passes_over_S(kind):
    "One block, one hundred classes of ten, so that only S is as large as S"
    z, _ = batch(1000)
    y = torch.arange(1000) // 10                     # in order, so that W stays where it is
    kind()(z, y).backward()                          # memory is borrowed by now
    with Counted(large=1000 * 1000) as counted, torch.no_grad():
        kind()(z, y)
    assert counted.passes <= PASSES[kind]


@pytest.mark.parametrize('name', pair_losses)
def test_autograd_keeps_nothing_as_large_as_S(name, cut):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(t.numel()) or t, lambda t: t):
        LOSSES[name].for_data(B // 4, D)(*batch())
    assert max(kept) <= B * D


@pytest.mark.parametrize('loss', [
    Contrastive, MultiSimilarity, NCA, LiftedStructure, Triplet, Histogram,
    lambda block: DROTopK(96, block=block)])
def test_small_blocks_make_nothing_as_large_as_S(loss):
    "A block that a user asks for is a wish for less memory, and nothing is kept whole"
    rows = 1024
    z, y = batch(rows)
    memory.WholeMemory.pool.clear()
    assert step(loss(block=32), z, y).largest <= rows * D
    assert all(not kept.slots for kept in memory.WholeMemory.pool)


@pytest.mark.parametrize('kind', range(2), ids=['levels', 'sets'])
def test_relations_are_made_a_block_at_a_time(kind, monkeypatch):
    monkeypatch.setattr('dml_nb.engine.tables.one_block', lambda device: 2**16)   # for a larger batch
    rows = 1024
    z, y = batch(rows)
    make, labels = structured(y)[kind]
    loss = make(MultiSimilarity(block=32))
    Scratch.pool.clear()
    assert step(loss, z, labels).largest <= max(rows * D, labels.numel())
    assert len(Scratch.pool[0].slots) <= 4                               # S and what one term takes
    labels = labels.clone()
    labels[::7] = -1 if kind == 0 else 0                                 # some have no label
    assert step(loss, z, labels).largest <= max(rows * D, labels.numel())


in_a_process = """
import torch
from dml_nb.losses import MultiSimilarity
torch.set_num_threads(1)
z, y = torch.randn(4096, 64, requires_grad=True), torch.arange(4096) // 4
wide = torch.randn(4096, 128, requires_grad=True)
MultiSimilarity()(z[:64].detach().requires_grad_(), y[:64]).backward()
"""


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists('/proc/self/clear_refs'), reason='memory is read from /proc')
def test_memory_of_a_process():
    "Small blocks take an eighth of the memory of one block; all of W is 64 MB, once"
    def extra(job): return extra_memory(in_a_process, job)

    dense = extra('MultiSimilarity(block=4096)(z, y).backward()')
    small = extra('MultiSimilarity(block=128)(z, y).backward()')
    assert small <= dense / 8
    whole = 'MultiSimilarity()(wide, y).backward()'
    assert extra(whole) <= extra('MultiSimilarity(block=512)(wide, y).backward()') + 64 + 16
    assert extra('\n'.join(3 * [whole])) <= extra(whole) + 16
