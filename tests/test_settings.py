"A setting that is changed after the constructor does, and says, what it would have from the start."
import inspect
from copy import deepcopy

import pytest
import torch

import dml_nb.losses as package
from dml_nb.check import test_same as same
from dml_nb.losses.dro import (
    BinomialPair, ChiSquareBall, ContrastivePair, KLBall, KLPenalty, MarginPair, Simplex, TopK,
    VariancePenalty)
from dml_nb.losses.catalogue import LOSSES
from dml_nb.transport import MMD, EnergyDistance, Wasserstein
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
}
#: Settings without effect at the others' defaults, with what they need to have one.
NEEDS = {('HAP2S', 'alpha'): dict(weighting='polynomial')}
SILENT = {(name, 'generator') for name in ('DRO', 'DROTopK', 'DROTopKPN', 'DROKL', 'AdaptedTriplet')}


def losses():
    "Names of the losses that users import"
    for name in package.__all__:
        found = getattr(package, name)
        if inspect.isclass(found) and issubclass(found, PairLoss):
            yield name


def settings_of(name):
    parameters = list(inspect.signature(getattr(package, name).__init__).parameters.values())[1:]
    return {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD} - {'normalize', 'block'}


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


@pytest.mark.parametrize('name, setting', [(name, s) for name in CASES for s in CASES[name][1]])
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


def test_registering_a_loss_is_one_line():
    "Every loss of the package stands in the one table that commands, recipes and pages read"
    made = set()
    for entry in LOSSES.values():
        loss = entry()
        made |= {type(loss).__name__} | {type(term).__name__ for _, term in loss.terms}
        assert isinstance(loss, PairLoss) and not (type(loss) is Sum and len(loss.terms) < 2)
    assert set(losses()) <= made


def test_a_registered_loss_is_there_at_once(monkeypatch):
    from dml_nb.experiment import Recipe
    entry = LOSSES['contrastive']
    monkeypatch.setitem(LOSSES, 'another', entry)
    assert Recipe(loss='another').loss == 'another'
    with pytest.raises(ValueError, match='another'):
        Recipe(loss='none of them')
