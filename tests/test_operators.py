"""How many operators a step dispatches, on tensors without data: the same on every machine. On a GPU
each is a kernel to launch, and for a small batch their number is the time."""
import pytest
import torch

from dml_nb.engine.tables import Batch
from dml_nb.experiments.benchmark import Operators
from dml_nb.losses.catalogue import LOSSES

B, D, CLASSES = 128, 128, 32
AT_MOST = dict(
    contrastive=45, batch_hard=45, n_pairs=55, infonce=55, siglip=45, triplet=55,
    multi_similarity=75, supcon=75, circle=70, proxy_nca=75, normalized_softmax=75, cosface=75,
    arcface=85, sub_center_arcface=85, soft_triple=85, proxy_anchor=85)


def step(loss, device='meta'):
    "The operators of a forward and a backward pass"
    z = torch.randn(B, D, device=device, requires_grad=True)
    labels = torch.arange(B, device=device) // (B // CLASSES)
    with Operators() as operators:
        loss(z, labels).backward()
    return operators.count


@pytest.mark.parametrize('name', AT_MOST)
def test_a_step_dispatches_few_operators(name):
    count = step(LOSSES[name].for_data(CLASSES, D).to('meta'))
    assert count.total() <= AT_MOST[name], count
    assert '_local_scalar_dense' not in count                            # no read on the host


def test_what_is_no_formula_takes_at_most_thirty():
    "Unit rows, S, the table of pairs, P and N, W, the product, the tangent, what autograd does"
    class Nothing(type(LOSSES['contrastive'].for_data(CLASSES, D))):
        def value_and_weights(self, S, pairs):
            P, N = pairs.split(S)
            return S.new_empty(()), pairs.weights(P, N)

    assert step(Nothing()).total() <= 30


def test_the_table_of_pairs_is_made_on_demand():
    y = torch.arange(B, device='meta') // 4
    with Operators() as operators:
        batch = Batch(y, y)
    assert not operators.count
    with Operators() as operators:
        batch.n_pos
        batch.n_pos
    once = operators.count.total()
    with Operators() as operators:
        batch.n_pos, batch.total_pos
    assert operators.count.total() < once
