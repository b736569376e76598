"""Two and three processes give the loss and the gradient of one, for every loss; what one rank
raises is raised on all. The processes are started once for each number of them."""
import json
import os
import subprocess
import sys
import traceback
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dml_nb.training import distributed
from dml_nb.losses import (
    CIT, DCDL, DRO, DROKL, AdaptedTriplet, Angular, Binomial, CentroidTriplet,
    ClassDiscrepancy, DistanceWeighted, DROTopK, Graded, HardTriplets, Levels, MultiSimilarity,
    RandomTriplets, SelectionBias, SemiHard, Shares, Triplet)
from dml_nb.losses.catalogue import LOSSES
from dml_nb.losses.dro import MarginPair
from dml_nb.losses.uncertainty import ChiSquareBall, KLBall, TopK, VariancePenalty
from dml_nb.data import ClassBatchSampler
from dml_nb.transport import MMD, EnergyDistance, SinkhornDivergence, Wasserstein
from dml_nb.weighting import PairLoss

pytestmark = pytest.mark.long
ROWS = {2: (29, 11), 3: (25, 17, 9)}


def seeded():
    return torch.Generator().manual_seed(3)


def of_table(entry):
    "A loss for the batch below; all ranks have the same first proxies, and their own draws after"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return entry.for_data(6, 8).double()


class Dropout(nn.Module):
    "A loss of another library that draws: the engine does not know it, nor what it draws"
    def forward(self, embeddings, labels):
        return nn.functional.dropout(embeddings).square().mean()


CASES = {f'catalogue: {name}': partial(of_table, entry) for name, entry in LOSSES.items()} | {
    'SinkhornDivergence': partial(ClassDiscrepancy, SinkhornDivergence(.05)),
    'EnergyDistance': partial(ClassDiscrepancy, EnergyDistance()),
    'Wasserstein in blocks': partial(ClassDiscrepancy, Wasserstein(.05), block=4),
    'MMD in blocks': partial(ClassDiscrepancy, MMD(), block=5),
    'MS in blocks': partial(MultiSimilarity, block=3),
    'top-K in blocks': partial(DROTopK, 20, block=7),
    'KL ball': partial(DRO, MarginPair(), KLBall(.5)),
    'variance': partial(DRO, MarginPair(), VariancePenalty(.5)),
    'top-K of ordered pairs': partial(DRO, MarginPair(), TopK(30), pairs='ordered'),
    'chi-square in blocks': partial(DRO, MarginPair(), ChiSquareBall(1.), block=6),
    'CIT, both parts': partial(CIT, .5),
    'DCDL': lambda: DCDL(MultiSimilarity(), Wasserstein(.05)),
    'sum': lambda: .5 * MultiSimilarity() + Triplet() + .1 * ClassDiscrepancy(MMD()),
    'sum with statistics': lambda: DROTopK(20) + 2 * Triplet(select=HardTriplets()),
    'unit rows promised': partial(MultiSimilarity, normalize=False),
    'drawn pairs': lambda: DROKL(.1, sample=50, generator=seeded()),
    'drawn triplets': lambda: Triplet(select=RandomTriplets(seeded())),
    'drawn by distance': lambda: Triplet(select=DistanceWeighted(dim=8, generator=seeded())),
    'mined by distance': lambda: DROTopK(20, miner=DistanceWeighted(generator=seeded(), dim=8)),
    'adapted': lambda: AdaptedTriplet(lam=.3, generator=seeded()),
    'bias of drawn triplets': lambda: SelectionBias(SemiHard(generator=seeded())),
    'draws of the process': lambda: Triplet(select=SemiHard()),
    'draws of another library': Dropout,
}


def batch(world, dtype=torch.float64):
    "Rows of all ranks, some unlabelled; the rows of each; a network"
    g = torch.Generator().manual_seed(0)
    counts = ROWS[world]
    n = sum(counts)
    labels = torch.randint(6, (n,), generator=g)
    labels[::13] = -1
    pictures = torch.randn(n, 5, generator=g, dtype=dtype)
    net = nn.Linear(5, 8, dtype=dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=dtype))
    return pictures, labels, net


def mine(tensor, rank, world):
    return tensor.split(ROWS[world])[rank]


def gradients(net):
    return [p.grad.clone() for p in net.parameters()]


def same(found, wanted, what, tolerance=1e-10):
    scale = max(1., float(wanted.abs().max())) if wanted.numel() else 1.
    error = float((found - wanted).abs().max()) / scale if wanted.numel() else 0.
    assert error < tolerance, f'{what}: apart by {error:.1e}'


def same_step(found, value, net, wanted):
    "Go backward from `found`: the value, and the gradient of each parameter of the network"
    found.backward()
    same(found.detach(), value.detach(), 'value')
    for p, q in zip(gradients(net), wanted):
        same(p, q, 'gradient')


def check_loss(rank, world, make):
    "Value, gradients of a network averaged over ranks, gradients of the rows"
    x, labels, net = batch(world)
    torch.manual_seed(5)
    value = make()(net(x), labels)
    value.backward()
    wanted = gradients(net)
    net.zero_grad()
    torch.manual_seed(5 + rank)               # a process has random numbers of its own
    loss = distributed(make())
    apart = DistributedDataParallel(net)
    z = apart(mine(x, rank, world))
    z.retain_grad()
    found = loss(z, mine(labels, rank, world))
    same_step(found, value, net, wanted)
    if rank > 0:
        state = torch.get_rng_state()
        assert torch.equal(state, torch.Generator().manual_seed(5 + rank).get_state())


def one_process(make, x, labels, net, **kwargs):
    "Value and gradients that one process finds"
    net.zero_grad()
    value = make()(net(x), labels, **kwargs)
    value.backward()
    found = gradients(net)
    net.zero_grad()
    return value.detach(), found


def check_references(rank, world, make):
    "References that are learned, the same on all ranks; some anchors are among them"
    x, labels, net = batch(world)
    g = seeded()
    given = torch.randn(13, 8, generator=g, dtype=torch.float64)
    ref_labels = torch.randint(6, (13,), generator=g)
    own = torch.full((len(x),), -1)
    own[3:9] = torch.arange(6)
    ref = given.clone().requires_grad_()
    value, wanted = one_process(make, x, labels, net, ref=ref, ref_labels=ref_labels,
                                self_index=own)
    learned = given.clone().requires_grad_()
    apart = DistributedDataParallel(net)
    z = apart(mine(x, rank, world))
    found = distributed(make())(z, mine(labels, rank, world), learned, ref_labels,
                                mine(own, rank, world))
    same_step(found, value, net, wanted)
    same(learned.grad, ref.grad, 'gradient of the references')


def check_matrix(rank, world):
    "Who belongs with whom, as booleans: rows of this rank, columns of all"
    x, labels, net = batch(world)
    matrix = labels[:, None] == labels
    value, wanted = one_process(MultiSimilarity, x, matrix, net)
    apart = DistributedDataParallel(net)
    z = apart(mine(x, rank, world))
    found = distributed(MultiSimilarity())(z, mine(matrix, rank, world))
    same_step(found, value, net, wanted)


def structured_labels(kind, labels, columns):
    "Sets of two neighbours, levels, or relevances of the rows of all ranks with some columns"
    classes = labels.clamp(min=0)
    if kind is Shares:
        table = nn.functional.one_hot(classes, 7) + nn.functional.one_hot((classes + 1) % 7, 7)
        return (table > 0) & (labels >= 0)[:, None]
    if kind is Levels:
        return torch.stack([labels, torch.where(labels < 0, -1, labels // 2)], 1)
    return 1 / (1 + (labels[:, None] - columns).abs()).double()


def check_structure(rank, world, kind, inner=MultiSimilarity, block=None, with_references=False):
    "Sets, levels and relevances, in a batch with itself and against references"
    def make():
        return kind(inner(block=block), *([[1., .5]] if kind is Levels else []))

    x, labels, net = batch(world)
    given, options = labels, {}
    if with_references:
        given = torch.randint(6, (13,), generator=seeded())
        ref = torch.randn(13, 8, generator=seeded(), dtype=torch.float64)
        ref_labels = None if kind is Graded else structured_labels(kind, given, given)
        options = dict(ref=ref, ref_labels=ref_labels)
    y = structured_labels(kind, labels, given)
    value, wanted = one_process(make, x, y, net, **options)
    apart = DistributedDataParallel(net)
    found = distributed(make())(apart(mine(x, rank, world)), mine(y, rank, world), **options)
    same_step(found, value, net, wanted)


def check_structured_memory(rank, world):
    "Levels in a memory"
    from dml_nb.training import CrossBatchMemory
    x, labels, net = batch(world)
    y = structured_labels(Levels, labels, labels)
    one, many = (CrossBatchMemory(Levels(MultiSimilarity(), [1., .5]), 100) for _ in range(2))
    apart, many = DistributedDataParallel(net), distributed(many)
    for step in range(2):
        z = net(x + step)
        value = one.loss(z, y, *one.references(z, y))
        value.backward()
        one.store(z.detach(), y)
        wanted = gradients(net)
        net.zero_grad()
        same_step(many(apart(mine(x, rank, world) + step), mine(y, rank, world)), value, net, wanted)
        net.zero_grad()
    assert torch.equal(many.loss.labels, one.labels)


def check_tuples(rank, world, make, several):
    "Index tuples of the rows of each rank, as many as there happen to be"
    x, labels, net = batch(world)
    starts = [sum(ROWS[world][:r]) for r in range(world)]
    lists = []
    for r, rows in enumerate(ROWS[world]):
        g = torch.Generator().manual_seed(r)
        lists.append([torch.randint(rows, (4 * r + 3 * (k > 1) * several,), generator=g)
                      for k in range(3 + several)])
    together = [torch.cat([index + start for index, start in zip(column, starts)])
                for column in zip(*lists)]
    value, wanted = one_process(make, x, None, net, tuples=together)
    apart = DistributedDataParallel(net)
    z = apart(mine(x, rank, world))
    found = distributed(make())(z, None, tuples=lists[rank])
    same_step(found, value, net, wanted)


def check_empty_rank(rank, world):
    "All rows on the last rank"
    x, labels, net = batch(world)
    value, wanted = one_process(MultiSimilarity, x, labels, net)
    rows = slice(None) if rank == world - 1 else slice(0)
    apart = DistributedDataParallel(net)
    found = distributed(MultiSimilarity())(apart(x[rows]), labels[rows])
    same_step(found, value, net, wanted)


def check_frozen_rank(rank, world):
    "A rank whose rows take no gradient sends what the gradient of the others needs"
    x, labels, net = batch(world)
    whole = net(x).detach().requires_grad_()
    value = MultiSimilarity()(whole, labels)
    value.backward()
    learns = rank < world - 1
    z = mine(whole.detach(), rank, world).clone().requires_grad_(learns)
    found = distributed(MultiSimilarity())(z, mine(labels, rank, world))
    same(found.detach(), value.detach(), 'value')
    if learns:
        found.backward()
        same(z.grad / world, mine(whole.grad, rank, world), 'gradient')


def check_narrow(rank, world, dtype, tolerance):
    "Narrow numbers travel as they are"
    x, labels, net = batch(world, torch.float32)
    x = x.to(dtype)
    whole = x.clone().requires_grad_()
    value = MultiSimilarity()(whole, labels)
    value.backward()
    z = mine(x, rank, world).clone().requires_grad_()
    found = distributed(MultiSimilarity())(z, mine(labels, rank, world))
    found.backward()
    assert found.dtype == value.dtype and z.grad.dtype == dtype
    same(found.detach(), value.detach(), 'value', 1e-5)
    same(z.grad.float() / world, mine(whole.grad, rank, world).float(), 'gradient', tolerance)


def check_alone(rank, world):
    "Without gradients and in evaluation a rank asks nobody"
    x, labels, net = batch(world)
    if rank == 0:
        z = net(mine(x, rank, world))
        alone = MultiSimilarity()(z, mine(labels, rank, world))
        loss = distributed(MultiSimilarity())
        with torch.no_grad():
            assert loss(z, mine(labels, rank, world)) == alone
        assert loss.eval()(z, mine(labels, rank, world)) == alone


def check_own_generators(rank, world):
    "A generator of the loss stands on all ranks where that of rank 0 stands"
    x, labels, net = batch(world)
    generator = torch.Generator().manual_seed(rank)
    loss = distributed(Triplet(select=SemiHard(generator=generator)))
    loss(net(mine(x, rank, world)), mine(labels, rank, world))
    states = [None] * world
    dist.all_gather_object(states, generator.get_state().tolist())
    assert all(state == states[0] for state in states)


class Fails(PairLoss):
    "On one rank, in the middle of its share"
    def __init__(self, rank, **kwargs):
        super().__init__(**kwargs)
        self.rank = rank

    def extra_repr(self):
        return ''

    def value_and_weights(self, S, pairs):
        if dist.get_rank() == self.rank:
            raise ValueError('margin: expected a number, got a fish')
        return S.new_zeros(()), torch.zeros_like(S)


def raised(kind, contains, call):
    "The message of an error, which must be raised"
    try:
        call()
    except kind as error:
        assert contains in str(error), f'{contains!r} is not in {str(error)!r}'
        return
    raise AssertionError(f'{contains}: not raised')


def check_errors(rank, world):
    "What one rank does wrong is raised on all of them, and the next call works"
    x, labels, net = batch(world)
    x, labels = mine(x, rank, world), mine(labels, rank, world)
    z = net(x)
    last = rank == world - 1
    loss = distributed(MultiSimilarity())
    where = f'(on rank {world - 1} of {world})'

    def expect(kind, contains, *args, loss=loss, **kwargs):
        raised(kind, contains, lambda: loss(*args, **kwargs))

    expect(ValueError, f'got shape (1,) {where}', z, labels[:1] if last else labels)
    expect(TypeError, 'expected integer classes', z, labels.double() if last else labels)
    expect(ValueError, 'labels: expected one integer', z, None if last else labels)
    expect(TypeError, 'z: expected a floating-point tensor', None if last else z, labels)
    expect(ValueError, f'number of columns of z: expected the same on all ranks, rank {world - 1}',
           z[:, :3] if last else z, labels)
    expect(ValueError, 'dtype of z: expected', z.float() if last else z, labels)
    expect(ValueError, 'loss: expected the same', z, labels,
           loss=distributed(MultiSimilarity(beta=40. if last else 50.)))
    expect(ValueError, 'loss: expected the same', z, labels,
           loss=distributed(MultiSimilarity(block=3 if last else None)))
    expect(ValueError, 'expected the same', z, labels, z.detach(), labels)
    expect(ValueError, 'z: expected at least one row', z[:0], labels[:0])
    expect(ValueError, 'tuples: expected indices from 0 to', z, None, tuples=([0], [1], [len(z)]))
    expect(ValueError, f'got a fish {where}', z, labels, loss=distributed(Fails(world - 1)))
    everywhere = ', '.join(map(str, range(world)))
    expect(ValueError, f'(on ranks {everywhere} of {world})', z, labels[:1])
    assert torch.isfinite(loss(z, labels))
    z = z.detach()
    if rank == 0:
        assert labels[0] == -1                    # in no pair
        z[0, 0] = float('nan')
    z.requires_grad_()
    value = loss(z, labels)
    value.backward()
    assert value.isnan() and z.grad.isnan().all(), 'what is no number reaches all ranks'


class Centres(nn.Module):
    "A loss of another library: the engine does not know it, and it has parameters"
    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.ones(6, 8, dtype=torch.float64))

    def forward(self, embeddings, labels, indices_tuple=None):
        known = labels >= 0
        gap = embeddings[known] - self.centres[labels[known]]
        return gap.square().sum(1).sqrt().mean()


def check_foreign(rank, world):
    "Its gradient is right too, that of its parameters included"
    x, labels, net = batch(world)
    theirs = Centres()
    value, wanted = one_process(lambda: theirs, x, labels, net)
    centres = theirs.centres.grad.clone()
    theirs.zero_grad()
    apart = DistributedDataParallel(net)
    z = apart(mine(x, rank, world))
    found = distributed(theirs)(z, mine(labels, rank, world))
    same_step(found, value, net, wanted)
    same(theirs.centres.grad, centres, 'gradient of its parameters')


def check_training(rank, world):
    "Steps of SGD with shards of a sampler end where one process ends with all their rows"
    g = seeded()
    labels = torch.arange(60) // 5
    x = torch.randn(60, 5, generator=g, dtype=torch.float64)

    def trained(net, loss, batches):
        optimiser = torch.optim.SGD(net.parameters(), lr=.1, momentum=.9)
        for rows in batches:
            optimiser.zero_grad()
            loss(net(x[rows]), labels[rows]).backward()
            optimiser.step()

    shards = [list(ClassBatchSampler(labels, 3, 2, rank=r, world=world)) for r in range(world)]
    alone, together = nn.Linear(5, 8, dtype=torch.float64), nn.Linear(5, 8, dtype=torch.float64)
    for net in (alone, together):
        with torch.no_grad():
            net.weight.copy_(torch.eye(8, 5))
            net.bias.zero_()
    trained(alone, Triplet(), [sum(rows, []) for rows in zip(*shards)])
    trained(DistributedDataParallel(together), distributed(Triplet()), shards[rank])
    for p, q in zip(together.parameters(), alone.parameters()):
        same(p.detach(), q.detach(), 'weights')


def check_memory(rank, world):
    "Past batches as references, a learned temperature: gradients, parameters, what is stored"
    from dml_nb.training import CrossBatchMemory, Temperature
    x, labels, net = batch(world)

    def made():
        flat = MultiSimilarity(normalize=False, epsilon=None)
        return CrossBatchMemory(Temperature(flat).double(), size=100)

    one, many = made(), distributed(made())
    apart = DistributedDataParallel(net)
    for step in range(3):
        one.zero_grad()
        many.zero_grad()
        z = net(x + step)
        wanted_value = one.loss(z, labels, *one.references(z, labels))
        wanted_value.backward()
        one.store(z.detach(), labels)             # as `forward` does, without asking other ranks
        wanted = gradients(net)
        net.zero_grad()
        slope = one.loss.log_scale.grad.clone()
        found = many(apart(mine(x, rank, world) + step), mine(labels, rank, world))
        same_step(found, wanted_value, net, wanted)
        same(many.loss.loss.log_scale.grad, slope, 'gradient of the temperature')
        net.zero_grad()
    same(many.loss.rows, one.rows, 'rows that are stored')
    assert torch.equal(many.loss.labels, one.labels)


def check_chunks(rank, world):
    "Gradient caching within DistributedDataParallel"
    from dml_nb.training import GradientCache
    x, labels, net = batch(world)
    value, wanted = one_process(MultiSimilarity, x, labels, net)
    apart = DistributedDataParallel(net)
    z = GradientCache(4).embed(apart, mine(x, rank, world))
    found = distributed(MultiSimilarity())(z, mine(labels, rank, world))
    same_step(found, value, net, wanted)


CHECKS = {name: partial(check_loss, make=make) for name, make in CASES.items()} | {
    'references': partial(check_references, make=MultiSimilarity),
    'references in blocks': partial(check_references, make=partial(MultiSimilarity, block=4)),
    'references of top-K': partial(check_references, make=partial(DROTopK, 20)),
    'a matrix of labels': check_matrix,
    'sets': partial(check_structure, kind=Shares),
    'sets and references': partial(check_structure, kind=Shares, with_references=True),
    'levels in blocks': partial(check_structure, kind=Levels, block=3),
    'levels and statistics': partial(check_structure, kind=Levels, inner=partial(DROTopK, 20)),
    'levels and references': partial(check_structure, kind=Levels, with_references=True),
    'levels of a loss of classes': partial(check_structure, kind=Levels, inner=CentroidTriplet),
    'levels by angles': partial(check_structure, kind=Levels, inner=Angular),
    'relevances': partial(check_structure, kind=Graded),
    'relevances and references': partial(check_structure, kind=Graded, with_references=True),
    'levels in a memory': check_structured_memory,
    'triplets': partial(check_tuples, make=Triplet, several=False),
    'pairs': partial(check_tuples, make=Binomial, several=True),
    'a rank without rows': check_empty_rank,
    'a rank without gradient': check_frozen_rank,
    'float32': partial(check_narrow, dtype=torch.float32, tolerance=1e-5),
    'bfloat16': partial(check_narrow, dtype=torch.bfloat16, tolerance=1e-2),
    'a rank alone': check_alone,
    'generators of a loss': check_own_generators,
    'errors': check_errors,
    'a loss of another library': check_foreign,
    'training with a sampler': check_training,
    'a memory': check_memory,
    'gradient caching': check_chunks,
}


def work(rank, world, folder):
    "Every check on one rank; what failed is written down"
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank,
                            world_size=world, timeout=timedelta(seconds=60))
    said = {}
    for name, check in CHECKS.items():
        try:
            check(rank, world)
        except Exception:
            said[name] = traceback.format_exc()
        dist.barrier()
    (folder/f'{rank}.json').write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope='module', params=list(ROWS), ids=lambda world: f'{world} processes')
def failures(request, tmp_path_factory):
    "What each rank says of each check"
    world = request.param
    folder = tmp_path_factory.mktemp(f'processes{world}')
    mp.spawn(work, (world, folder), nprocs=world)
    return [json.loads((folder/f'{rank}.json').read_text()) for rank in range(world)]


@pytest.mark.parametrize('name', CHECKS)
def test_processes_equal_one(failures, name):
    said = [f'rank {rank}: {failed[name]}' for rank, failed in enumerate(failures)
            if name in failed]
    assert not said, '\n'.join(said)


ENDED = """
from pathlib import Path
names = [file.read_text() for file in Path('/proc/self/task').glob('*/comm')]
assert not any('gloo' in name for name in names), names
"""
ENDING = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import dml_nb.training.distribution

store = dist.FileStore(sys.argv[1], 1)
dist.init_process_group('gloo', store=store, rank=0, world_size=1)
net = DistributedDataParallel(torch.nn.Linear(2, 2))
net(torch.ones(1, 2)).sum().backward()
del net
dist.destroy_process_group()
""" + ENDED


@pytest.mark.skipif(sys.platform != 'linux', reason='lists threads as Linux does')
def test_destroyed_group_leaves_no_threads(tmp_path):
    "Threads that outlive the group now and then abort the process at Python's end"
    command = [sys.executable, '-W', 'ignore', '-c', ENDING, str(tmp_path/'store')]
    environment = os.environ | dict(PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


FASTAI = """
import json
import torch
import torch.distributed as dist
from fastai.callback.progress import ProgressCallback
from fastai.distributed import num_distrib, rank_distrib
from dml_nb.data import load_data, split_by_class
from dml_nb.training import distributed, metric_dataloaders, metric_learner
from dml_nb.losses import MultiSimilarity

digits = load_data('digits')
train, valid = [digits.subset(part) for part in split_by_class(digits.labels)]
dls = metric_dataloaders(train, valid, 5, 8, device='cpu', rank=rank_distrib(),
                         world=num_distrib())
learn = metric_learner(dls, 'small_convnet', distributed(MultiSimilarity()), dim=8)
learn.remove_cb(ProgressCallback)
with learn.distrib_ctx(sync_bn=False, cpu=True), learn.no_logging():
    learn.distributed_trainer._wrap_dl = lambda dl: dl
    learn.fit(2, .01)
weights = torch.cat([p.detach().flatten() for p in learn.model.parameters()])
everyones = [torch.empty_like(weights) for _ in range(2)]
dist.all_gather(everyones, weights)
if dist.get_rank() == 0:
    print(json.dumps(dict(
        same=torch.equal(*everyones), epoch=dls.train.sampler.epoch,
        losses=len(learn.recorder.losses), batches=len(dls.train),
        recall=[row[2] for row in learn.recorder.values])), flush=True)
dist.barrier()
dist.destroy_process_group()
""" + ENDED


def test_fastai_trains_with_shards(tmp_path):
    "The launchers' own way: `torchrun`, fastai's context, one line that keeps shards whole"
    pytest.importorskip('accelerate', reason='fastai trains on several processes with accelerate')
    script = tmp_path/'train.py'
    script.write_text(FASTAI)
    command = [sys.executable, '-W', 'ignore', '-m', 'torch.distributed.run', '--standalone',
               '--nproc-per-node=2', str(script)]
    environment = os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found['same'] and found['epoch'] == 2
    assert found['losses'] == 2 * found['batches']
    assert found['recall'][-1] > .5
