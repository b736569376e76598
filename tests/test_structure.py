"""Sets, levels and relevances with every loss: value and weights equal loops over rows, whole, in
blocks and against references; which batches are refused, and why. The definitions below know who is
positive and who is negative to whom, and nothing else of the package."""
from math import radians

import pytest
import torch
from torch import nn

from dml_nb.core import unit
from dml_nb.losses import (
    CIT, DCDL, AdaptedTriplet, Angular, ArcFace, CentroidTriplet, ClassDiscrepancy, Contrastive,
    DROTopK, Graded, HardTriplets, InfoNCE, IntraPairVariance, Levels, MarginLoss, MultiSimilarity, SemiHard, Shares,
    SmoothAP, Triplet)
from dml_nb.losses.catalogue import LOSSES
from dml_nb.proof.weights import in_blocks
from dml_nb.training import CrossBatchMemory, GradientCache, Temperature
from dml_nb.transport import Wasserstein
from dml_nb.weighting import PairLoss

softplus = nn.Softplus(threshold=500)
B, R, D = 13, 9, 6


def mean(terms, S):
    terms = [t for t in terms if t is not None]
    return torch.stack(terms).mean() if terms else 0 * S.sum()


def by_row(of_row, average=None):
    "A definition from what one anchor counts with the similarities of its positives and negatives"
    def definition(S, pos, neg):
        terms = [of_row(S[i][pos[i]], S[i][neg[i]]) for i in range(len(S))]
        if average == 'B':
            return sum((t for t in terms if t is not None), 0 * S.sum()) / len(S)
        if average == 'terms':
            return mean([v for t in terms if t is not None for v in t], S)
        if average == 'rows':
            return mean(terms, S)
        return sum((t for t in terms if t is not None), 0 * S.sum())
    return definition


def contrastive(S, pos, neg):
    total = (torch.relu(S - .5) * neg).sum() - (S * pos).sum()
    return total / max(1, int((pos | neg).sum()))


def binomial(p, n):
    far = softplus(2 * (.5 - p)).mean() if len(p) else 0.
    return far + softplus(50 * (n - .5)).mean() if len(n) else far + 0 * p.sum()


def bin_lifted(p, n):
    far = (softplus(2 * (.5 - p)).sum() + (-2 * p).logsumexp(0)) / 4 if len(p) else 0 * n.sum()
    return far + (softplus(50 * (n - .5)).sum() + (50 * n).logsumexp(0)) / 100 if len(n) else far


def histogram_of(s, nodes=101):
    t = torch.linspace(-1, 1, nodes, dtype=s.dtype)
    step = 2 / (nodes - 1)
    return (1 - (s[:, None] - t).abs() / step).clamp(min=0).sum(0) / len(s)


def unordered(S, pos, neg):
    "Similarities of the pairs of a batch with itself, each once; of references, every entry"
    if S.shape[0] != S.shape[1]:
        return S[pos], S[neg]
    upper, S = torch.ones_like(pos).triu(1), (S + S.T) / 2
    return S[pos & upper], S[neg & upper]


def histogram(S, pos, neg):
    p, n = unordered(S, pos, neg)
    if not len(p) or not len(n):
        return 0 * S.sum()
    return histogram_of(n) @ histogram_of(p).cumsum(0)


def lifted(p, n):
    if len(p) and len(n):
        return torch.relu((1 - p).logsumexp(0) + n.logsumexp(0))


def lifted_star(p, n):
    far = (-2 * p).logsumexp(0) / 2 if len(p) else 0 * n.sum()
    return far + (50 * n).logsumexp(0) / 50 if len(n) else far


def n_pairs(scale):
    def of_row(p, n):
        return [torch.cat([0 * s[None], scale * (n - s)]).logsumexp(0) for s in p if len(n)]
    return of_row


def nca(p, n):
    if len(p):
        return torch.cat([p, n]).logsumexp(0) - p.logsumexp(0)


def multi_similarity(epsilon):
    def of_row(p, n):
        if epsilon is not None:
            least = p.min() if len(p) else torch.inf
            most = n.max() if len(n) else -torch.inf
            p, n = p[p < most + epsilon], n[n > least - epsilon]
        far = torch.cat([p.new_zeros(1), -2 * (p - .5)]).logsumexp(0) / 2
        return far + torch.cat([n.new_zeros(1), 50 * (n - .5)]).logsumexp(0) / 50
    return of_row


def pair_losses(S, pos, neg):
    p, n = unordered(S, pos, neg)
    return torch.relu(.2 + .5 - p), torch.relu(.2 - .5 + n)


def expected(losses, worst):
    return (worst(losses.detach()) * losses).sum() if len(losses) else 0.


def largest(k):
    def worst(losses):
        return (losses >= losses.sort().values[-min(k, len(losses))]) / min(k, len(losses))
    return worst


def chi_square(losses, rho=1.):
    n, v, lo, hi = len(losses), losses - losses.max(), -30., 60.
    for _ in range(200):
        p = (1 + v * 2.**((lo + hi) / 2)).clamp(min=0)
        p = p / p.sum()
        lo, hi = ((lo + hi) / 2, hi) if n * (n * p @ p - 1) / 2 <= rho else (lo, (lo + hi) / 2)
    return p


def dro(S, pos, neg):
    return expected(torch.cat(pair_losses(S, pos, neg)), chi_square) + 0 * S.sum()


def dro_top_k(S, pos, neg):
    losses = torch.cat(pair_losses(S, pos, neg))
    return losses.topk(min(10, len(losses))).values.mean() if len(losses) else 0 * S.sum()


def dro_top_k_pn(S, pos, neg):
    kept = torch.cat([side.topk(min(5, len(side))).values for side in pair_losses(S, pos, neg)])
    return kept.mean() if len(kept) else 0 * S.sum()


def dro_kl(S, pos, neg):
    losses = torch.cat(pair_losses(S, pos, neg))
    if not len(losses):
        return 0 * S.sum()
    return .1 * ((losses / .1).logsumexp(0) - torch.tensor(float(len(losses))).double().log())


def dro_kl_grouped(p, n):
    sides = torch.relu(.7 - p), torch.relu(n - .3)
    return sum(s.logsumexp(0) - torch.tensor(float(len(s))).double().log() for s in sides if len(s))


def triplet(p, n):
    return torch.relu(n - p[:, None] + .1).flatten()


def batch_hard(p, n):
    if len(p) and len(n):
        return torch.relu(n.max() - p.min() + .1)


def hap2s(p, n):
    if len(p) and len(n):
        near = (-p / .5).detach().softmax(0) @ p
        return torch.relu((n / .5).detach().softmax(0) @ n - near + .1)


def cit(p, n):
    return torch.relu(1 - torch.exp(p[:, None] - n)).flatten()


def supcon(p, n):
    if len(p):
        return (10 * torch.cat([p, n])).logsumexp(0) - (10 * p).mean()


def siglip(p, n):
    return softplus(-10 * p + 10).sum() + softplus(10 * n - 10).sum()


def circle(p, n, m=.4, gamma=80.):
    if len(p) and len(n):
        far = -gamma * (1 + m - p).clamp(min=0).detach() * (p - 1 + m)
        near = gamma * (n + m).clamp(min=0).detach() * (n - m)
        return softplus(far.logsumexp(0) + near.logsumexp(0))


def tuplet_margin(p, n):
    eased = torch.cos(torch.acos(p) - radians(5.73))
    return [torch.cat([0 * s[None], 64 * (n - s)]).logsumexp(0) for s in eased if len(n)]


def intra_pair_variance(S, pos, neg):
    far = .99 * S[pos].mean() - S[pos] if pos.any() else S.new_zeros(1)
    near = S[neg] - 1.01 * S[neg].mean() if neg.any() else S.new_zeros(1)
    return torch.relu(far).square().mean() + torch.relu(near).square().mean() + 0 * S.sum()


def margin_loss(p, n):
    far, near = torch.relu((2 - 2 * p).sqrt() - 1.), torch.relu(1.4 - (2 - 2 * n).sqrt())
    return (far[:, None] + near).flatten()


def ahead(s, others):
    return torch.sigmoid((others - s) / .01).sum()


def smooth_ap(p, n):
    if len(p):
        ranks = [ahead(s, p) + .5 for s in p]             # its own sigmoid is a half
        return 1 - torch.stack([r / (r + ahead(s, n)) for r, s in zip(ranks, p)]).mean()


def recall_at_k(p, n):
    ranks = torch.stack([ahead(s, torch.cat([p, n])) + .5 for s in p]) if len(p) else p
    return [1 - torch.sigmoid(k - ranks).sum().clamp(max=k) / min(k, len(p))
            for k in (1, 2, 4, 8, 16) if len(p)]


def fast_ap(p, n):
    if not len(p):
        return None
    nodes = torch.arange(11.).double()
    h, both = ((1 - ((1 - s[:, None]) * 5 - nodes).abs()).clamp(min=0).sum(0)
               for s in (p, torch.cat([p, n])))
    H, all_before = h.cumsum(0), both.cumsum(0)
    some = all_before > 0
    return 1 - (h * H)[some].div(all_before[some]).sum() / len(p)


def ranked_list(p, n):
    def average(h, T, count):
        h = h[h > 0]
        return (torch.exp(T * h) @ h) / (torch.exp(T * h).sum() + 1e-5 * count) if len(h) else 0.
    count = 1 + len(p) + len(n)
    far = average((2 - 2 * p).sqrt() - .8, 0., count)
    return .5 * far + .5 * average(1.2 - (2 - 2 * n).sqrt(), 10., count) + 0 * p.sum()


DEFINITIONS = dict(
    contrastive=contrastive, binomial=by_row(binomial), bin_lifted=by_row(bin_lifted),
    equal_weights=by_row(lambda p, n: n.sum() - p.sum(), 'B'), histogram=histogram,
    lifted_structure=by_row(lifted), lifted_structure_star=by_row(lifted_star, 'B'),
    n_pairs=by_row(n_pairs(1.), 'terms'), nca=by_row(nca),
    multi_similarity=by_row(multi_similarity(.1), 'B'),
    multi_similarity_weighting=by_row(multi_similarity(None), 'B'),
    dro=dro, dro_top_k=dro_top_k, dro_top_k_pn=dro_top_k_pn, dro_kl=dro_kl,
    dro_kl_grouped=by_row(dro_kl_grouped), triplet=by_row(triplet, 'terms'),
    batch_hard=by_row(batch_hard, 'B'), hap2s=by_row(hap2s, 'B'), cit=by_row(cit, 'terms'),
    infonce=by_row(n_pairs(10.), 'terms'), supcon=by_row(supcon, 'rows'),
    siglip=by_row(siglip, 'B'), circle=by_row(circle, 'B'),
    tuplet_margin=by_row(tuplet_margin, 'terms'), intra_pair_variance=intra_pair_variance,
    margin_loss=by_row(margin_loss, 'terms'), smooth_ap=by_row(smooth_ap, 'rows'),
    fast_ap=by_row(fast_ap, 'rows'), recall_at_k=by_row(recall_at_k, 'terms'),
    ranked_list=by_row(ranked_list, 'B'))

made = {name: entry.for_data(6, D, **{'k': 10} if 'top_k' in name else {})
        for name, entry in LOSSES.items()}
pair_losses_of_table = [name for name, loss in made.items() if isinstance(loss, PairLoss)]
of_classes = [name for name in pair_losses_of_table
              if made[name].own_batch_only or made[name].indivisible == 'class']


def test_every_loss_without_classes_is_defined_here():
    assert set(DEFINITIONS) == set(pair_losses_of_table) - set(of_classes)


def rows(n, seed):
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sets(n, seed):
    table = torch.rand(n, 5, generator=torch.Generator().manual_seed(seed)) < .35
    table[2] = False                                                     # a row without labels
    return table


def levels(n, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.stack([torch.randint(5, (n,), generator=g), torch.randint(3, (n,), generator=g)], 1)
    table[1, 0] = table[4, 1] = -1
    return table


def relevances(n, columns, seed):
    r = torch.randint(4, (n, columns), generator=torch.Generator().manual_seed(seed)) / 3
    return torch.maximum(r, r.T) if n == columns else r


class Sets:
    make = Shares
    labels = sets(B, 0), sets(R, 1)

    def relations(self, y, y_ref):
        pairs = [[sum(int(a and b) for a, b in zip(u, v)) for v in y_ref.tolist()] for u in y.tolist()]
        known = torch.tensor([[any(u) and any(v) for v in y_ref.tolist()] for u in y.tolist()])
        yield 1., torch.tensor(pairs) >= 1, known


class TwoLevels:
    labels = levels(B, 0), levels(R, 1)

    def make(self, loss): return Levels(loss, [1., .5])

    def relations(self, y, y_ref):
        for weight, level in ((1., 0), (.5, 1)):
            u, v = y[:, level].tolist(), y_ref[:, level].tolist()
            same = torch.tensor([[a == b for b in v] for a in u])
            yield weight, same, torch.tensor([[a >= 0 and b >= 0 for b in v] for a in u])


class ThreeGrades:
    make = Graded
    labels = relevances(B, B, 0), relevances(B, R, 1)

    def relations(self, r, _):
        before = 0.
        for t in (torch.tensor(k) / 3 for k in (1, 2, 3)):               # as float32 has them
            yield float(t.double() - before), r >= t, torch.ones_like(r, dtype=torch.bool)
            before = t.double()


STRUCTURES = dict(sets=Sets(), levels=TwoLevels(), grades=ThreeGrades())
each_structure = pytest.mark.parametrize('structure', STRUCTURES.values(), ids=STRUCTURES)


def make(structure, loss):
    return type(structure).make(structure, loss) if isinstance(structure, TwoLevels) else \
        type(structure).make(loss)


def by_loops(name, structure, S, y, y_ref, is_self):
    S = S.detach().requires_grad_()
    value = sum(weight * DEFINITIONS[name](S, pos & known & ~is_self, ~pos & known & ~is_self)
                for weight, pos, known in structure.relations(y, y_ref))
    W, = torch.autograd.grad(value, S)
    return value.detach(), W


def same(found, wanted, what):
    error = float(((found - wanted).abs() / wanted.abs().clamp(min=1)).max())
    assert error < 1e-9, f'{what}: apart by {error:.1e}'


@each_structure
@pytest.mark.parametrize('name', DEFINITIONS)
def test_equals_loops(name, structure):
    z, y = rows(B, 0), structure.labels[0]
    S = unit(z) @ unit(z).T
    value, W = by_loops(name, structure, S, y, y, torch.eye(B, dtype=torch.bool))
    x = z.clone().requires_grad_()
    for block in (None, 5, 1):
        loss = make(structure, made[name])
        loss.block = block
        found, found_W = loss.from_similarity(S, y)
        same(found, value, 'value')
        # a pair of a batch with itself has two entries, and only their sum counts
        same((found_W + found_W.T).fill_diagonal_(0), (W + W.T).fill_diagonal_(0), 'W')
        dx, = torch.autograd.grad(loss(x, y), x)
        wanted, = torch.autograd.grad((W * (unit(x) @ unit(x).T)).sum(), x)
        same(dx, wanted, 'gradient')


@each_structure
@pytest.mark.parametrize('name', [name for name in DEFINITIONS if made[name].indivisible == 'pair'])
def test_equals_loops_against_references(name, structure):
    z, ref, (y, y_ref) = rows(B, 0), rows(R, 1), structure.labels
    if isinstance(structure, ThreeGrades):
        y, y_ref = y_ref, None
    own = torch.full((B,), -1)
    own[3:6] = torch.arange(3)                                           # some are among the others
    S = unit(z) @ unit(ref).T
    value, W = by_loops(name, structure, S, y, y_ref, own[:, None] == torch.arange(R))
    for block in (None, 4):
        loss = make(structure, made[name])
        loss.block = block
        same(loss(z, y, ref, y_ref, own), value, 'value')
        same(loss.pair_weights(z, y, ref, y_ref, own), W, 'W')


@pytest.mark.parametrize('name', sorted({*of_classes} - {'adapted_triplet'}))       # which draws
def test_losses_of_classes_are_added_up_over_levels(name):
    z, y = rows(B, 0).requires_grad_(), levels(B, 3)
    loss = Levels(made[name], [1., .5])
    wanted = made[name](z, y[:, 0]) + .5 * made[name](z, y[:, 1])
    found = loss(z, y)
    same(found.detach(), wanted.detach(), 'value')
    same(*(torch.autograd.grad(value, z)[0] for value in (found, wanted)), 'gradient')


def test_three_grades_in_order_are_three_levels():
    "Species in genus in family: the relevance of a pair is the finest level that it shares"
    z, y = rows(B, 0), torch.stack([torch.arange(B) % 8, torch.arange(B) % 4, torch.arange(B) % 2], 1)
    same_at = (y[:, None] == y).float()                                   # (B, B, 3)
    r = torch.where(same_at[..., 0] > 0, 1., torch.where(same_at[..., 1] > 0, .75, .25 * same_at[..., 2]))
    for loss in (MultiSimilarity(), DROTopK(20), InfoNCE()):
        by_level = Levels(loss, [.25, .5, .25]).pair_weights(z, y)
        same(Graded(loss).pair_weights(z, r), by_level, 'W')


def test_terms_and_sums_share_one_table():
    z, y = rows(B, 0), levels(B, 0)
    # terms of one pass, of two and of none before the weights
    a, b = DROTopK(20) + 2 * IntraPairVariance() + Triplet(select=HardTriplets()), MultiSimilarity()
    for block in (None, 4):
        loss = Levels(a + b, [1., .5])
        loss.block = block
        wanted = Levels(a, [1., .5]).pair_weights(z, y) + Levels(b, [1., .5]).pair_weights(z, y)
        same(loss.pair_weights(z, y), wanted, 'W')
        for level, weights in enumerate(([1., 0.], [0., 1.])):
            loss.weights = weights
            same(loss.pair_weights(z, y), (a + b).pair_weights(z, y[:, level]), 'W')
    together = Levels(a, [1., .5]) + .3 * Levels(b, [0., 1.])
    wanted = Levels(a, [1., .5]).pair_weights(z, y) + .3 * Levels(b, [0., 1.]).pair_weights(z, y)
    same(together.pair_weights(z, y), wanted, 'W')
    with pytest.raises(ValueError, match='read the same labels'):
        (Levels(b, [1., 1.]) + b)(z, y)


def test_what_is_at_the_diagonal_is_not_read():
    z, r = rows(B, 0), ThreeGrades.labels[0]
    loss = Graded(MultiSimilarity(epsilon=None))                          # negatives count alone
    assert torch.equal(loss(z, r), loss(z, r.clone().fill_diagonal_(.123)))
    low = r.clamp(max=2 / 3).fill_diagonal_(1.)                           # no pair has relevance 1
    assert torch.equal(loss(z, low), loss(z, low.clone().fill_diagonal_(0.)))


def test_rounded_relevances():
    z, r = rows(B, 0), torch.rand(B, B, generator=torch.Generator().manual_seed(0))
    loss = MultiSimilarity()
    same(Graded(loss, grades=4)(z, r), Graded(loss)(z, (r * 4).round() / 4), 'value')
    coarse, fine = (abs(float(Graded(loss, grades=g)(z, r) - Graded(loss)(z, r))) for g in (2, 64))
    assert fine < coarse / 4


@each_structure
@pytest.mark.parametrize('name', DEFINITIONS)
def test_degenerate_batches(name, structure):
    loss = make(structure, made[name])
    y = structure.labels[0]
    none = torch.zeros_like(y) if y.dtype != torch.int64 else torch.full_like(y, -1)
    batches = dict(
        none=(rows(B, 0), none), one=(rows(1, 0), y[:1, :1] if y.shape == (B, B) else y[:1]),
        collapsed=(torch.ones(B, D, dtype=torch.float64), y),
        all_alike=(rows(B, 0), torch.ones_like(y)), zeros=(0 * rows(B, 0), y))
    for kind, (z, labels) in batches.items():
        z.requires_grad_()
        value = loss(z, labels)
        gradient, = torch.autograd.grad(value, z)
        assert value.isfinite() and gradient.isfinite().all(), kind
        if kind in ('none', 'one'):
            assert (gradient == 0).all(), kind
    z = rows(B, 0)
    z[3, 2] = float('nan')
    z.requires_grad_()
    value = loss(z, y)
    assert value.isnan() and torch.autograd.grad(value, z)[0].isnan().all()


@each_structure
def test_compiled_and_half(structure):
    z, y = rows(B, 0).requires_grad_(), structure.labels[0]
    for inner in (MultiSimilarity(), DROTopK(20)):
        loss = make(structure, inner)
        torch.compiler.reset()
        compiled = torch.compile(loss, fullgraph=True, backend='aot_eager')
        same(compiled(z, y).detach(), loss(z, y).detach(), 'compiled')
        same(*(torch.autograd.grad(f(z, y), z)[0] for f in (compiled, loss)), 'gradient')
        half = z.detach().bfloat16().requires_grad_()
        value = loss(half, y)
        assert value.dtype == torch.float32
        assert torch.autograd.grad(value, half)[0].dtype == torch.bfloat16


@pytest.mark.parametrize('structure', [STRUCTURES['sets'], STRUCTURES['levels']], ids=['sets', 'levels'])
def test_memory_keeps_structured_labels(structure):
    "Two steps: the rows of the first are references of the second"
    z, y = [rows(B, k) for k in (0, 1)], [structure.labels[0], structure.labels[0].flip(0)]
    z[0][5] = float('inf')                                                # stored without a label
    loss = make(structure, MultiSimilarity(normalize=False))
    memory = CrossBatchMemory(Temperature(loss, temperature=1.), size=20)
    memory(z[0].requires_grad_(), y[0])
    found = memory(z[1].requires_grad_(), y[1])
    kept = unit(torch.where(torch.arange(B)[:, None] == 5, 0., z[0]))
    labels = y[0].clone()
    labels[5] = 0 if labels.dtype == torch.bool else -1
    ref = torch.cat([unit(z[1]), kept]), torch.cat([y[1], labels])
    same(found.detach(), loss(unit(z[1]), y[1], *ref, torch.arange(B)).detach(), 'value')
    with pytest.raises(ValueError, match='relevances of pairs'):
        CrossBatchMemory(Graded(MultiSimilarity()), 20)


@each_structure
def test_gradient_cache(structure):
    net, x = nn.Linear(D, 4).double(), rows(B, 0)
    loss = make(structure, MultiSimilarity())
    found = []
    for embed in (net, lambda x: GradientCache(4).embed(net, x)):
        net.zero_grad()
        loss(embed(x), structure.labels[0]).backward()
        found.append(net.weight.grad.clone())
    same(*found, 'gradient')


@pytest.mark.parametrize('loss, relative', [
    (Angular(), r'NPairs\(\)'), (CentroidTriplet(), r'Triplet\(\)'), (CIT(0.), 'gamma=1'),
    (AdaptedTriplet(), 'SemiHard'), (ClassDiscrepancy(Wasserstein(.05)), 'MultiSimilarity'),
    (DCDL(Triplet(), Wasserstein(.05), 1.), 'MultiSimilarity'), (MarginLoss(classes=4), 'MarginLoss')])
def test_losses_of_classes_are_refused(loss, relative):
    for structured in (Shares, Graded):
        with pytest.raises(ValueError, match=f'needs no classes.*{relative}'):
            structured(loss)


def test_wrong_input_is_refused():
    z, loss = rows(B, 0), MultiSimilarity()
    y, s, r = levels(B, 0), sets(B, 0), relevances(B, B, 0)
    wrong = [
        lambda: Shares(loss, at_least=0), lambda: Shares(ArcFace(4, D)), lambda: Shares(Shares(loss)),
        lambda: Shares(loss)(z, y), lambda: Shares(loss)(z, s[1:]), lambda: Shares(loss)(z, s[:, 0]),
        lambda: Shares(loss)(z, s, z, s[:, 1:]), lambda: Shares(loss)(z, s, z),
        lambda: Shares(loss)(z, s, tuples=([0], [1], [2])), lambda: Shares(loss)(z),
        lambda: Levels(loss, []), lambda: Levels(loss, 1.), lambda: Levels(loss, ['a']),
        lambda: Levels(MarginLoss(classes=4), [1., 1.]), lambda: Levels(loss, [1.])(z, y),
        lambda: Levels(loss, [1., 1.])(z, y.double()), lambda: Levels(loss, [1., 1.])(z, y - 1),
        lambda: Levels(Angular(), [1., 1.])(z, y, z, y), lambda: Levels(loss, [1., 1.])(z, y[:, 0]),
        lambda: Graded(loss, grades=0), lambda: Graded(loss)(z, r * 2), lambda: Graded(loss)(z, r[1:]),
        lambda: Graded(loss)(z, r[:, 1:]), lambda: Graded(loss)(z, r * float('nan')),
        lambda: Graded(loss)(z, y), lambda: Graded(loss)(z, r, z[:4])]
    for number, call in enumerate(wrong):
        with pytest.raises((TypeError, ValueError), match='expected'):
            call()
            pytest.fail(f'wrong input {number} was accepted')


def test_the_loss_within_is_named():
    z, y = rows(B, 0), levels(B, 0)
    with pytest.raises(ValueError, match='Angular: expected integer classes of one batch'):
        Levels(Angular(), [1., 1.])(z, y, z, y)


def test_settings_act_when_they_are_set():
    z, y = rows(B, 0), levels(B, 0)
    loss = Levels(CIT(), [1., 1.])
    loss.weights = [1., 0.]
    same(loss(z, y), CIT()(z, y[:, 0]), 'value')
    loss.loss.gamma = .5
    same(loss(z, y), CIT(.5)(z, y[:, 0]), 'value')
    sets_loss = Shares(CIT())
    sets_loss.loss.gamma = .5
    with pytest.raises(ValueError, match='gamma=1'):
        sets_loss(z, sets(B, 0))
    sets_loss = Shares(Contrastive())
    one = sets_loss(z, sets(B, 0))
    sets_loss.at_least = 2
    assert sets_loss(z, sets(B, 0)) != one
    graded, r = Graded(Contrastive()), torch.rand(B, B, generator=torch.Generator().manual_seed(0))
    graded.grades = 3
    assert graded(z, r) == Graded(Contrastive(), grades=3)(z, r) != Graded(Contrastive())(z, r)
    assert repr(Shares(Contrastive())) == 'Shares(loss=Contrastive(lam=0.5), at_least=1)'


@pytest.mark.parametrize('loss', [SmoothAP(), MultiSimilarity(), Triplet(select=SemiHard())], ids=repr)
def test_large_batches(loss, monkeypatch):
    "Rows enough for lists of positives, several blocks, and counts without masks of all rows"
    monkeypatch.setattr('dml_nb.engine.tables.one_block', lambda device: 2**14)
    g = torch.Generator().manual_seed(0)
    z = torch.randn(300, D, generator=g)
    whole = torch.stack([torch.arange(300) // 4, torch.arange(300)**2 // 9000], 1)
    some = whole.clone()
    some[::7, 0] = -1
    sets = nn.functional.one_hot(some[:, 0] + 1)[:, 1:].bool()
    uneven = nn.functional.one_hot(whole[:, 1]).bool()

    def by_level(y): return loss(z, y[:, 0]) + .5 * loss(z, y[:, 1])

    for structured, labels, wanted in (
            (Levels(loss, [1., .5]), whole, lambda: by_level(whole)),
            (Levels(loss, [1., .5]), some, lambda: by_level(some)),
            (Shares(loss), sets, lambda: loss(z, some[:, 0])),
            (Shares(loss), uneven, lambda: loss(z, whole[:, 1]))):
        for block in (None, 70):
            torch.manual_seed(0)
            found = in_blocks(structured, block)(z, labels)
            torch.manual_seed(0)
            torch.testing.assert_close(found, wanted())
