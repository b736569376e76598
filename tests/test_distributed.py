"""Two and three processes give the loss and the gradient of one, for every loss; what one rank
raises is raised on all. The processes are started once for each number of them."""
import json
import traceback
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dml_nb.distributed import distributed
from dml_nb.losses import (
    CIT, DCDL, DRO, DROKL, AdaptedTriplet, BatchHard, Binomial, ClassDiscrepancy,
    DistanceWeighted, DROTopK, HardTriplets, MultiSimilarity, RandomTriplets, SelectionBias,
    SemiHard, Triplet)
from dml_nb.losses.catalogue import LOSSES
from dml_nb.losses.dro import MarginPair
from dml_nb.losses.uncertainty import ChiSquareBall, KLBall, PhiBall, TopK, VariancePenalty
from dml_nb.transport import MMD, EnergyDistance, SinkhornDivergence, Wasserstein

ROWS = {2: (29, 11), 3: (25, 17, 9)}


def seeded():
    return torch.Generator().manual_seed(3)


CASES = {f'catalogue: {name}': entry for name, entry in LOSSES.items()} | {
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
    'sum with surveys': lambda: DROTopK(20) + 2 * Triplet(select=HardTriplets()),
    'unit rows promised': partial(MultiSimilarity, normalize=False),
    'drawn pairs': lambda: DROKL(.1, sample=50, generator=seeded()),
    'drawn triplets': lambda: Triplet(select=RandomTriplets(seeded())),
    'drawn by distance': lambda: Triplet(select=DistanceWeighted(dim=8, generator=seeded())),
    'mined by distance': lambda: DROTopK(20, miner=DistanceWeighted(generator=seeded(), dim=8)),
    'adapted': lambda: AdaptedTriplet(lam=.3, generator=seeded()),
    'bias of drawn triplets': lambda: SelectionBias(SemiHard(generator=seeded())),
    'draws of the process': lambda: Triplet(select=SemiHard()),
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
    found.backward()
    same(found.detach(), value.detach(), 'value')
    for p, q in zip(gradients(net), wanted):
        same(p, q, 'gradient')
    if rank > 0:
        state = torch.get_rng_state()
        assert torch.equal(state, torch.Generator().manual_seed(5 + rank).get_state())


CHECKS = {name: partial(check_loss, make=make) for name, make in CASES.items()}


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
