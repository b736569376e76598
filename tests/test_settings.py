"A setting that is changed after the constructor does, and says, what it would have from the start."
import inspect
from copy import deepcopy

import pytest
import torch

import dml_nb.losses as package
from dml_nb.proof import test_same as same
from dml_nb.losses.dro import (
    DRO, DROKL, BinomialPair, ChiSquareBall, ContrastivePair, DROKLGrouped, DROTopK, KLBall,
    KLPenalty, MarginPair, PhiBall, Simplex, TopK, Uniform)
from dml_nb.losses.catalogue import LOSSES
from dml_nb.losses.hardest import HAP2S
from dml_nb.transport import MMD, Wasserstein
from dml_nb.weighting import PairLoss, Sum

miner = package.MultiSimilarityMiner(.2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def hard():
    return package.HardTriplets()


#: Settings that all worst cases have.
every_pair = dict(pairs='ordered', drop_zero=True, sample=40, generator=None, miner=miner)
#: For each loss: what it is made with, and for each setting another value.
CASES = {
    'Contrastive': ({}, dict(lam=.1)),
    'Binomial': ({}, dict(alpha=3., beta=20., lam=.3, miner=miner)),
    'BinLifted': ({}, dict(alpha=3., beta=20., lam=.3)),
    'EqualWeights': ({}, dict(miner=miner)),
    'Histogram': ({}, dict(nodes=21)),
    'LiftedStructure': ({}, dict(lam=-9.)),
    'LiftedStructureStar': ({}, dict(alpha=3., beta=20., miner=miner)),
    'NPairs': ({}, dict(scale=4.)),
    'NCA': ({}, dict(scale=4.)),
    'Angular': ({}, dict(alpha=30.)),
    'AngularNPairs': ({}, dict(alpha=30., lam=.5)),
    'MultiSimilarity': ({}, dict(alpha=3., beta=20., lam=.3, epsilon=None)),
    'DRO': (dict(base=MarginPair(), uncertainty=TopK(20)), dict(
        base=BinomialPair(), uncertainty=KLPenalty(.1)) | every_pair),
    'DROTopK': (dict(k=20), dict(k=40, base=BinomialPair()) | every_pair),
    'DROTopKPN': (dict(k=20), dict(k=40, base=BinomialPair()) | every_pair),
    'DROKL': (dict(gamma=.1), dict(gamma=.3, base=ContrastivePair()) | every_pair),
    'DROKLGrouped': ({}, dict(gamma_pos=.3, gamma_neg=.2, base=BinomialPair(), drop_zero=True,
                              pseudo=.2)),
    'Triplet': ({}, dict(margin=.3, distance='sqeuclidean', reduction='sum', select=hard())),
    'BatchHard': ({}, dict(margin=.4)),
    'HAP2S': ({}, dict(margin=.4, weighting='polynomial', gamma=.2, alpha=5.)),
    'CIT': ({}, dict(gamma=.5)),
    'SelectionBias': (dict(select=hard()), dict(select=miner, lam=2.)),
    'AdaptedTriplet': (dict(generator=generator()), dict(
        margin=.4, lam=.5, reduction='mean', generator=None)),
    'ClassDiscrepancy': (dict(divergence=Wasserstein(.05)), dict(divergence=MMD(sigma=.5))),
    'InfoNCE': ({}, dict(temperature=.5)),
    'SupCon': ({}, dict(temperature=.5, inside=True)),
    'SigLIP': ({}, dict(scale=4., bias=-1.)),
    'Circle': ({}, dict(m=.25, gamma=8.)),
    'TupletMargin': ({}, dict(margin=20., scale=4.)),
    'IntraPairVariance': ({}, dict(pos_eps=.3, neg_eps=.2)),
    'MarginLoss': ({}, dict(margin=.5, beta=.9, classes=6)),
    'CentroidTriplet': ({}, dict(margin=.5)),
    'SmoothAP': ({}, dict(temperature=.1)),
    'FastAP': ({}, dict(bins=4)),
    'RecallAtK': ({}, dict(ks=(1, 3), temperature=.1, rank_temperature=.5, offset=.5)),
    'RankedList': ({}, dict(margin=.2, Tn=2., imbalance=.3, alpha=1.4, Tp=3., eps=.01, detach=True)),
}
#: Settings that make parameters: later they can be read only.
FIXED = {('MarginLoss', 'classes')}
#: Settings without effect at the others' defaults, with what they need to have one.
NEEDS = {('HAP2S', 'alpha'): dict(weighting='polynomial')}
RANDOM = 'DRO', 'DROTopK', 'DROTopKPN', 'DROKL', 'AdaptedTriplet'
SILENT = {(name, 'generator') for name in RANDOM}


def losses():
    "Names of the losses of classes that users import; tests/test_structure.py has the others"
    for name in package.__all__:
        found = getattr(package, name)
        is_loss = inspect.isclass(found) and issubclass(found, PairLoss)
        if is_loss and not hasattr(found, 'read_labels'):
            yield name


def proxy_losses():
    "Names of the losses that bring proxies of their own"
    for name in package.__all__:
        found = getattr(package, name)
        if inspect.isclass(found) and issubclass(found, package.Proxies) and name != 'Proxies':
            yield name


def settings_of(name):
    parameters = list(inspect.signature(getattr(package, name).__init__).parameters.values())[1:]
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named - {'normalize', 'block'}


@pytest.mark.parametrize('name', list(losses()))
def test_every_setting_is_tried(name):
    assert settings_of(name) == CASES[name][1].keys()


def seeded(loss):
    "Value and weights with the same draws each time"
    random = torch.Generator().manual_seed(1)
    z = torch.randn(30, 8, generator=random, dtype=torch.float64)
    labels = torch.arange(30) % 6
    z = z + 1.5 * torch.randn(6, 8, generator=random, dtype=torch.float64)[labels]
    torch.manual_seed(2)
    for owner in loss.modules():
        if isinstance(getattr(owner, 'generator', None), torch.Generator):
            owner.generator.manual_seed(2)
    return loss(z, labels), loss.pair_weights(z, labels)


changeable = [(name, s) for name in CASES for s in CASES[name][1] if (name, s) not in FIXED]


@pytest.mark.parametrize('name, setting', changeable)
@pytest.mark.parametrize('in_a_sum', [False, True])
def test_a_setting_changed_later_acts(name, setting, in_a_sum):
    made, others = CASES[name]
    made = made | NEEDS.get((name, setting), {})
    cls, value = getattr(package, name), others[setting]
    changed, expected = cls(**made), cls(**made | {setting: value})
    before = repr(changed)
    total = changed + 0. * package.Contrastive() if in_a_sum else changed
    setattr(changed, setting, value)
    assert repr(changed) == repr(expected)
    if (name, setting) in SILENT:
        return
    assert repr(changed) != before
    same(seeded(total), seeded(expected), rtol=1e-9, atol=1e-12)
    same(seeded(deepcopy(changed)), seeded(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('name, setting', FIXED)
def test_a_setting_that_makes_parameters_is_read_only(name, setting):
    made, others = CASES[name]
    loss = getattr(package, name)(**made | {setting: others[setting]})
    with pytest.raises(AttributeError, match=setting):
        setattr(loss, setting, others[setting] + 1)
    assert getattr(loss, setting) == others[setting] and list(loss.parameters())


def test_registering_a_loss_is_one_line():
    "Every loss of the package stands in the one table that commands, recipes and pages read"
    made = set()
    for entry in LOSSES.values():
        loss = entry.for_data(5, 8)
        made |= {type(loss).__name__} | {type(term).__name__ for _, term in loss.terms}
        assert isinstance(loss, (PairLoss, package.Proxies))
        assert not (type(loss) is Sum and len(loss.terms) < 2)
    assert set(losses()) | set(proxy_losses()) <= made


def test_a_registered_loss_is_there_at_once(monkeypatch):
    from dml_nb.experiments import Recipe
    entry = LOSSES['contrastive']
    monkeypatch.setitem(LOSSES, 'another', entry)
    assert Recipe(loss='another').loss == 'another'
    with pytest.raises(ValueError, match='another'):
        Recipe(loss='none of them')


#: Losses of one number that may be anything above 0.
OF_ANY_SIZE = {
    'KL': DROKL,
    'KL, smooth': lambda x: DROKL(x, BinomialPair()),
    'KL, in blocks': lambda x: DROKL(x, block=40),
    'grouped': lambda x: DROKLGrouped(x, x),
    'grouped, smooth': lambda x: DROKLGrouped(x, x, BinomialPair()),
    'grouped, pseudo pairs': lambda x: DROKLGrouped(x, x, pseudo=.2),
    'K': DROTopK,
    'KL ball': lambda x: DRO(MarginPair(), KLBall(x)),
    'chi-square ball': lambda x: DRO(MarginPair(), ChiSquareBall(x)),
    'phi ball': lambda x: DRO(MarginPair(), PhiBall(torch.expm1, x)),
    'sharpness': lambda x: DRO(BinomialPair(min(x, 2.), min(x, 50.)), Uniform()),
    'temperature': lambda x: HAP2S(gamma=x),
    'power': lambda x: HAP2S(weighting='polynomial', alpha=x),
}


def gathered_classes():
    "A batch of thirty classes around their centres: most hinges are 0, so a value is small"
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 30
    centres = torch.randn(30, 16, generator=random)
    return centres[labels] + .5 * torch.randn(120, 16, generator=random), labels


@pytest.mark.parametrize('size', [1e-300, 1e-6, .1, 1., 10., 1e3, 1e6, 1e12, 1e300])
@pytest.mark.parametrize('name', OF_ANY_SIZE)
def test_float32_keeps_the_digits(name, size):
    z, labels = gathered_classes()
    loss = OF_ANY_SIZE[name](size)
    same(loss(z, labels).double(), loss(z.double(), labels), rtol=1e-5, atol=1e-9)
    weights = loss.pair_weights(z.double(), labels)
    error = loss.pair_weights(z, labels).double() - weights
    assert error.norm() <= 1e-5 * weights.norm()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('size, limit', [(1e12, Uniform()), (1e-12, Simplex())])
def test_a_penalty_ends_in_the_mean_and_the_maximum(size, limit, dtype):
    z, labels = gathered_classes()
    z = z.to(dtype)
    for base in (MarginPair(), BinomialPair(), ContrastivePair()):
        expected = DRO(base, limit)(z, labels)
        for block in (None, 40):
            same(DROKL(size, base, block=block)(z, labels), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize('gamma', [1.5, 1e6])
def test_a_penalty_holds_losses_of_any_spread(gamma):
    "One far above thousands of equals, one far below them, and thousands far below zero"
    for common, other in ((0., 40.), (0., -40.), (-1000., -960.), (300., 440.), (7., 7.)):
        losses = torch.full((4000,), common).index_fill_(0, torch.tensor([7]), other) * gamma
        found = KLPenalty(gamma).solve([losses])['value']
        of_count = torch.tensor(4000.).double().log()
        exact = gamma * ((losses.double() / gamma).logsumexp(0) - of_count)
        same(found, exact, rtol=0., atol=1e-6 * losses.abs().max().item())
