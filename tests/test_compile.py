"""One compiled graph gives what the eager loss gives, and serves batches of every size. The default
compiler of torch.compile needs a C++ compiler, so this is no cell of a page."""
import shutil

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from dml_nb.engine import operator
from dml_nb.proof import test_same as same
from dml_nb.losses import (
    CIT, DROKL, Angular, ArcFace, BatchHard, ClassDiscrepancy, Contrastive, DROTopK, MarginLoss,
    MultiSimilarity, SoftTriple, Triplet)
from dml_nb.losses.catalogue import LOSSES
from dml_nb.transport import MMD, Wasserstein

losses = [
    MultiSimilarity(), Contrastive(), Triplet() + 0.5 * MultiSimilarity(), Angular(), DROTopK(96),
    DROKL(.1), BatchHard(), CIT(.5), ClassDiscrepancy(MMD(sigma=.5)),
    Triplet() + 0.5 * ClassDiscrepancy(Wasserstein(.05)),
]
sizes = 24, 32, 40, 28, 36, 48, 20, 44, 52, 60, 37, 51
has_compiler = shutil.which('g++') or shutil.which('clang++')
needs_compiler = pytest.mark.skipif(not has_compiler, reason='no C++ compiler for torch.compile')


@pytest.fixture(autouse=True)
def forgotten():
    torch.compiler.reset()               # torch keeps eight versions of one function


def batch(B, classes=9, D=16):
    generator = torch.Generator().manual_seed(B)
    labels = torch.randint(classes, (B,), generator=generator)
    centres = 2. * nn.functional.one_hot(labels, D)
    return (torch.randn(B, D, generator=generator) + centres).requires_grad_(), labels


def counted(f):
    "One graph, and how many of them were made"
    counter = CompileCounterWithBackend('aot_eager')
    return torch.compile(f, fullgraph=True, backend=counter), counter


def answer(loss, operands, *args, **options):
    "Value and gradients; random choices are the same each time."
    torch.manual_seed(0)
    value = loss(*args, **options)
    return value.detach(), torch.autograd.grad(value, operands)


def check_equal(compiled, loss, operands, *args, **options):
    found, expected = (answer(f, operands, *args, **options) for f in (compiled, loss))
    same(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize('loss', losses, ids=repr)
def test_compiled_equals_eager(loss):
    z, labels = batch(48)
    check_equal(torch.compile(loss, fullgraph=True), loss, [z], z, labels)


@pytest.mark.long
@pytest.mark.parametrize('name', LOSSES)
def test_all_sizes_share_a_graph(name):
    loss = LOSSES[name].for_data(12, 16)
    compiled, counter = counted(loss)
    for number, B in enumerate(sizes):
        z, labels = batch(B, classes=5 + number % 4)
        check_equal(compiled, loss, [z, *loss.parameters()], z, labels)
    assert counter.frame_count <= 2                  # the first size, and then any


@pytest.mark.long
@pytest.mark.parametrize('loss', [Contrastive(), Triplet(), MarginLoss(classes=9)], ids=repr)
def test_references_of_all_sizes_share_a_graph(loss):
    compiled, counter = counted(loss)
    for B, R in ((24, 40), (32, 52), (20, 61), (28, 33), (44, 90), (27, 71), (36, 64), (31, 80)):
        z, labels = batch(B)
        ref, ref_labels = batch(R)
        own = torch.arange(B).where(torch.arange(B) % 3 > 0, -1)
        check_equal(compiled, loss, [z, ref], z, labels, ref, ref_labels, own)
    assert counter.frame_count <= 2


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize(
    'loss', [MultiSimilarity(), Triplet(), ArcFace(9, 16), SoftTriple(9, 16, tau=.2)], ids=repr)
def test_a_whole_step_of_all_sizes(loss):
    torch.manual_seed(0)
    body = nn.Linear(16, 16)
    counter = CompileCounterWithBackend('inductor')

    def step(x, labels):
        return loss(body(x), labels)

    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for B in sizes[:6]:
        x, labels = batch(B)
        check_equal(compiled, step, [*body.parameters(), *loss.parameters()], x, labels)
    assert counter.frame_count <= 2


@pytest.mark.parametrize('loss, name', [
    (Contrastive(), 'lam'), (Triplet(), 'margin'), (ArcFace(9, 16), 'scale')], ids=repr)
def test_a_setting_acts_whenever_it_is_set(loss, name):
    compiled, counter = counted(loss)
    z, labels = batch(24)
    before = getattr(loss, name)
    for factor in (1., .9, .8, .7, .6, .5, .4, .3, .2, .1, .05):
        setattr(loss, name, before * factor)
        check_equal(compiled, loss, [z], z, labels)


def kinds_of_nodes(loss, *args):
    "What the graph of a loss calls, and what it gives"
    names = set()

    def backend(module, inputs):
        names.update(str(node.target) for node in module.graph.nodes)
        return module

    return names, torch.compile(loss, fullgraph=True, backend=backend)(*args)


@pytest.mark.parametrize('loss, is_operator', [
    (Contrastive(), False), (Contrastive(block=7), True), (Contrastive(block=99), True),
    (Triplet(), True),
    (MarginLoss(classes=9), False), (MarginLoss(classes=9, block=7), True)], ids=repr)
def test_what_needs_blocks_is_one_operator(loss, is_operator):
    z, labels = batch(24)
    names, value = kinds_of_nodes(loss, z, labels)
    assert ('dml_nb.value_and_gradients.default' in names) == is_operator
    same(value, loss(z, labels))


def test_a_large_batch_is_one_operator(monkeypatch):
    monkeypatch.setattr(operator, 'traced_pairs', lambda device: 30 * 30)
    loss = MultiSimilarity()
    compiled, counter = counted(loss)
    for B in sizes:
        z, labels = batch(B)
        check_equal(compiled, loss, [z], z, labels)
    assert counter.frame_count <= 3                  # the first size, the small, the large


def test_a_sum_that_is_made_in_the_graph():
    first, second = Contrastive(block=5), Triplet()

    def step(z, labels):
        return (first + .5 * second)(z, labels)

    z, labels = batch(24)
    names, value = kinds_of_nodes(step, z, labels)
    assert 'dml_nb.value_and_gradients.default' in names
    check_equal(torch.compile(step, fullgraph=True, backend='aot_eager'), step, [z], z, labels)


@pytest.mark.parametrize('loss', [MultiSimilarity(), Triplet(), ArcFace(9, 16)], ids=repr)
def test_nan_stays_nan(loss):
    z, labels = batch(24)
    with torch.no_grad():
        z[3, 2] = float('nan')
    compiled, _ = counted(loss)
    value, gradients = answer(compiled, [z, *loss.parameters()], z, labels)
    assert value.isnan() and all(gradient.isnan().all() for gradient in gradients)


@pytest.mark.parametrize('loss', [MultiSimilarity(), Triplet()], ids=repr)
def test_a_second_derivative_is_refused(loss):
    z, labels = batch(24)
    compiled, _ = counted(loss)
    first, = torch.autograd.grad(compiled(z, labels), z, create_graph=True)
    with pytest.raises(RuntimeError, match='double backward|once_differentiable'):
        first.square().sum().backward()


@pytest.mark.parametrize('loss', [MultiSimilarity(), Triplet()], ids=repr)
def test_half_precision_under_autocast(loss):
    z, labels = batch(24)
    low = z.detach().bfloat16().requires_grad_()
    compiled, _ = counted(loss)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        check_equal(compiled, loss, [low], low, labels)
        assert compiled(low, labels).dtype is torch.float32
