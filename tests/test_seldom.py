"""What one call with a small batch in double precision never reaches: second calls, settings
assigned later, two draws in one sum, chunks, float32 limits, and checks that must look at
everything."""
import pytest
import torch

from dml_nb.proof import check_weights, test_same as same
from dml_nb.core import similarities, unit
from dml_nb.training.distribution import share_of_gradient
from dml_nb.losses import (
    DRO, Angular, ClassDiscrepancy, DistanceWeighted, MarginLoss, MultiSimilarity, RandomTriplets,
    SemiHard, Triplet)
from dml_nb.losses.dro import MarginPair
from dml_nb.losses.uncertainty import TopK, VariancePenalty
from dml_nb.transport import EnergyDistance, Wasserstein
from dml_nb.engine.inputs import make_batch
from dml_nb.weighting import PairLoss


def rows(n, dim=8, seed=0, dtype=torch.float64):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


z, labels = rows(24), torch.arange(24) % 6


class WritesInSurvey(PairLoss):
    "A loss that writes to what other losses read"
    statistics_passes = 1

    def gather(self, S, pairs, gathered):
        S.clamp_(min=0)
        return S.sum()

    def value_and_weights(self, S, pairs):
        return S.sum(), torch.ones_like(S)


def test_gather_may_not_write_to_similarities():
    with pytest.raises(RuntimeError, match='gather wrote to it'):
        WritesInSurvey()(z, labels)


def test_two_selections_in_a_sum_draw_for_themselves():
    def two():
        return [Triplet(select=RandomTriplets(torch.Generator().manual_seed(seed)))
                for seed in (0, 1)]

    first, second = two()
    expected = sum(form.pair_weights(z, labels) for form in two())
    same((first + second).pair_weights(z, labels), expected)


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_items_keep_the_reduction(reduction):
    form = Triplet(reduction=reduction)
    expected = form(z, labels)
    form.reduction = 'none'
    same(form(z, labels), expected.expand(24))


def test_items_of_a_loss_with_learnt_boundaries():
    form = MarginLoss(classes=6).double()
    expected = form(z, labels)
    form.reduction = 'none'
    same(form(z, labels), expected.expand(24))


def test_a_selection_in_many_chunks_is_semi_hard():
    crowd, y = rows(600, dtype=torch.float32), torch.arange(600) // 3
    a, p, n = SemiHard(.2, torch.Generator().manual_seed(1))(crowd, y)
    S = similarities(crowd)
    assert len(a) > 2**17 // 600                        # more than one chunk holds
    assert (S[a, n] <= S[a, p]).all() and (S[a, n] > S[a, p] - .1 - 1e-6).all()


def test_negatives_that_are_all_far_are_drawn_from():
    "Two classes on opposite sides of the sphere"
    classes = labels % 2
    sides = torch.eye(8, dtype=torch.float64)[0] * (1 - 2 * classes[:, None]) + .01 * z
    miner = DistanceWeighted(generator=torch.Generator().manual_seed(1), dim=8)
    _, p, a2, n = miner(sides, classes)
    assert (similarities(sides)[a2, n] < -.9).all() and len(p) == 24 * 11
    assert set(a2.tolist()) == set(range(24)) and (classes[a2] != classes[n]).all()
    assert len(set(n.tolist())) > 12


@pytest.mark.parametrize('setting, value', [
    ('sample', 0), ('sample', 2.5), ('uncertainty', VariancePenalty(1.))])
def test_sampling_checks_what_was_set_later(setting, value):
    form = DRO(MarginPair(), TopK(20), sample=9)
    setattr(form, setting, value)
    with pytest.raises(ValueError, match='sample: expected'):
        form(z, labels)


def test_the_error_is_that_of_the_last_batch():
    form, fresh = (ClassDiscrepancy(Wasserstein(2.5e-3, sweeps=4)) for _ in range(2))
    form(z, labels)
    alike = z[:1].expand(24, -1)
    form(alike, labels)
    fresh(alike, labels)
    assert form.error == fresh.error


def test_the_error_of_a_share_is_that_of_the_last_batch():
    form = ClassDiscrepancy(Wasserstein(2.5e-3, sweeps=4))
    batch = make_batch(form, 24, 24, torch.device('cpu'), labels)
    spread = unit(z)
    for x in (spread, spread[:1].expand(24, -1)):       # the second one is solved exactly
        share_of_gradient(form, x, x, batch, True, True, 1, 2)
    assert form.error < 1e-9


@pytest.mark.parametrize('route', ['block', 'value'])
def test_a_route_to_nan_is_no_agreement(route):
    class WrongInBlocks(PairLoss):
        def value_and_weights(self, S, pairs):
            P, N = pairs.split(S)
            N = N.nan_to_num(neginf=0.)
            value, W = N.square().sum(), pairs.weights(torch.zeros_like(P), 2 * N)
            if len(S) == pairs.batch.size:
                return value, W
            return (value, W * torch.nan) if route == 'block' else (value * torch.nan, W)

    def definition(S, y):
        known = (y[:, None] != y) & (y[:, None] >= 0) & (y >= 0)
        return S[known].square().sum()

    with pytest.raises(AssertionError, match='block=1'):
        check_weights(WrongInBlocks(), definition)


@pytest.mark.parametrize('alpha', [71., 75., 80.])
def test_angular_keeps_its_digits_at_wide_angles(alpha):
    S = torch.tensor([[1., -1., 1., -1.], [-1., 1., -1., 1.]] * 2)
    exact = Angular(alpha).from_similarity(S.double(), [0, 0, 1, 2])[0].float()
    same(Angular(alpha).from_similarity(S, [0, 0, 1, 2])[0], exact, rtol=1e-5, atol=0.)


def test_distances_of_far_points_keep_their_digits():
    far = 10 + 1e-3 * rows(40), 10 + 1e-3 * rows(40, seed=1)
    exact = EnergyDistance()(*far).float()
    same(EnergyDistance()(*(t.float() for t in far)), exact, rtol=1e-2, atol=0.)


def test_a_sum_leaves_its_terms_as_they_were():
    first, second = Triplet(), MultiSimilarity()
    alone = [form(z, labels) for form in (first, second)]
    same((first + second)(z, labels), sum(alone))
    for form, value in zip((first, second), alone):
        same(form(z, labels), value)


def test_a_sum_is_cut_where_every_term_may_be():
    classes = ClassDiscrepancy(Wasserstein(.05))
    whole, cut = Triplet() + classes, Triplet(block=3) + classes
    same(cut.pair_weights(z, labels), whole.pair_weights(z, labels))
    same(cut(z, labels), whole(z, labels))
