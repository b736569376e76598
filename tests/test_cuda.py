"""What holds on a CPU holds on a GPU: numbers, precision, no waiting for the host, one graph.

`bash tools/gpu.sh` runs these. Without a GPU they skip; what they compare is then only imported."""
from contextlib import contextmanager, nullcontext

import pytest
import torch

from dml_nb.proof.weights import standard_batches
from dml_nb.core import similarities
from dml_nb.losses.catalogue import LOSSES
from dml_nb.weighting import PairLoss

#: The losses that wait for a GPU in every call, and for what. All others never do, unless they are
#: called with `tuples=(a, p, n)`: triplets that pair an anchor with itself are then left out of
#: lists whose new length the host must know.
CLASS_SIZES = 'blocks are cut between classes, whose sizes the host must know'
POSITIVES = 'one pass for each positive of an anchor, whose largest number the host must know'
WAITS = {
    'angular': CLASS_SIZES,
    'angular_n_pairs': CLASS_SIZES,
    'cit_probability': CLASS_SIZES,
    'wasserstein': CLASS_SIZES + ', and so are groups of classes of about one size',
    'triplet_discrepancy': 'as wasserstein, which is a part of it',
    'adapted_triplet': 'its triplets are a list, whose length depends on the batch',
    'selection_bias': 'its triplets are a list, whose length depends on the batch',
    'smooth_ap': POSITIVES,
    'recall_at_k': POSITIVES,
}
#: Losses that choose triplets by index.
selects = {name for name, entry in LOSSES.items()
           if getattr(entry.for_data(2, 2), 'select', None) is not None}

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU that torch can use'),
]
each_loss = pytest.mark.parametrize('name', list(LOSSES))


def value_and_gradient(loss, z, labels):
    z = z.detach().requires_grad_()
    value = loss(z, labels)
    return value, torch.autograd.grad(value, z)[0]


def batch(B=96, D=16, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(B, D, generator=generator, dtype=dtype), torch.arange(B) % 12


def is_random(loss):
    "Whether two calls differ"
    values = []
    for seed in range(3):
        torch.manual_seed(seed)
        values.append(loss(*batch()).item())
    return len(set(values)) > 1


@each_loss
def test_equals_the_cpu_in_double_precision(name):
    if is_random(LOSSES[name].for_data(12, 16)):
        pytest.skip('draws at random, from another generator on each device')
    for z, labels in standard_batches().values():
        loss = LOSSES[name].for_data(int(labels.max()) + 1, z.shape[1]).double()
        here = value_and_gradient(loss, z, labels)
        there = value_and_gradient(loss, z.cuda(), labels.cuda())
        for a, b in zip(here, there):
            torch.testing.assert_close(a, b.cpu(), rtol=1e-10, atol=1e-10)


def test_fast_modes_leave_similarities_alone():
    z = batch(512, 128)[0].cuda()
    exact = similarities(z.double()).float()
    plain = similarities(z)
    torch.testing.assert_close(plain, exact, rtol=0, atol=1e-6)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert similarities(z).equal(plain)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    with torch.autocast('cuda', dtype=torch.bfloat16):
        assert similarities(z).equal(plain)


@each_loss
def test_bf16_autocast_changes_nothing(name):
    loss = LOSSES[name].for_data(12, 16).cuda()
    if is_random(loss):
        pytest.skip('draws anew at each call')
    z, labels = (t.cuda() for t in batch())
    expected = value_and_gradient(loss, z, labels)
    with torch.autocast('cuda', dtype=torch.bfloat16):
        found = value_and_gradient(loss, z, labels)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b)


@contextmanager
def waiting_refused():
    "Inside, whatever makes the host wait for the GPU raises."
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode('error')
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode('default')


@each_loss
def test_a_step_waits_for_the_gpu_only_where_it_is_said(name):
    loss = LOSSES[name].for_data(12, 16).cuda()
    z, labels = (t.cuda() for t in batch())
    value_and_gradient(loss, z, labels)                 # what is built once may wait
    refused = pytest.raises(RuntimeError, match='synchronizing') if name in WAITS else nullcontext()
    with waiting_refused(), refused:
        value_and_gradient(loss, z, labels)


def test_a_trace_shows_no_copy_to_the_host():
    loss = LOSSES['multi_similarity']()
    z, labels = (t.cuda() for t in batch())
    value_and_gradient(loss, z, labels)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as trace:
        value_and_gradient(loss, z, labels)
    names = {event.key for event in trace.key_averages()}
    waits = {name for name in names
             if 'Memcpy DtoH' in name or name in ('aten::item', 'aten::_local_scalar_dense')}
    assert not waits


@each_loss
def test_one_graph_gives_the_same(name):
    loss = LOSSES[name].for_data(12, 16).cuda()
    if name in selects or is_random(loss):
        pytest.skip('chooses triplets by index or at random')
    torch.compiler.reset()
    z, labels = (t.cuda() for t in batch())
    expected = value_and_gradient(loss, z, labels)
    found = value_and_gradient(torch.compile(loss, fullgraph=True), z, labels)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_memory_follows_the_block():
    B, D, block = 16384, 64, 512
    z, labels = (t.cuda() for t in batch(B, D))
    loss = LOSSES['multi_similarity'](block=block)
    assert isinstance(loss, PairLoss)
    value_and_gradient(loss, z, labels)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    value_and_gradient(loss, z, labels)
    extra = torch.cuda.max_memory_allocated() - before
    assert extra < 16 * block * B * 4                   # a few matrices of one block, not of all


def test_the_last_modules_train():
    pytest.importorskip('faiss')
    from dml_nb.experiments import Recipe, run
    few = dict(classes=5, per_class=2, steps=2)
    recipe = Recipe('n_pairs', data='glyphs', size=64, arch='squeezenet1_1', tail=2, dim=8, **few)
    assert 0 < run(recipe, device='cuda')['trained']['recall@1'] <= 1
