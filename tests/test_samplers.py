"The batch sampler's promises, for data sets that hypothesis makes up."
import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_nb.data import ClassBatchSampler

steady = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def cases(draw):
    "Settings of a sampler, but for its rank: sizes of classes, batches and shares that fit."
    counts = draw(st.lists(st.integers(1, 13), min_size=1, max_size=12))
    unlabelled = draw(st.integers(0, 20))
    seed = draw(st.integers(0, 10))
    rng = np.random.default_rng(seed)
    names = rng.choice(100, len(counts), replace=False)
    labels = rng.permutation(np.r_[np.repeat(names, counts), np.full(unlabelled, -1)])
    means = rng.integers(0, 4, size=(len(counts), 2)) if draw(st.booleans()) else None
    return dict(
        labels=labels, classes=draw(st.integers(1, len(counts))), per_class=draw(st.integers(1, 5)),
        seed=seed, world=draw(st.integers(1, 4)), means=means,
        unlabelled_per_batch=draw(st.integers(0, unlabelled)))


def all_ranks(case, epoch=0):
    "One sampler for each rank, at the beginning of an epoch."
    ranks = [ClassBatchSampler(rank=r, **case) for r in range(case['world'])]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    return ranks


@steady
@given(cases(), st.integers(0, 3))
def test_a_cycle_shows_every_image_as_rarely_as_can_be(case, epoch):
    labels, P, M, W = (case[key] for key in ('labels', 'classes', 'per_class', 'world'))
    ranks = all_ranks(case, epoch)
    shares = [list(sampler) for sampler in ranks]
    assert len({len(share) for share in shares}) == 1          # as many batches for each rank
    assert [len(sampler) for sampler in ranks] == [len(share) for share in shares]
    batches = sum(shares, [])

    counts = np.bincount(labels[labels >= 0], minlength=100)
    groups = -(-counts // M)
    T = max(-(-groups.sum() // P), groups.max())
    assert len(batches) == -(-T // W) * W                       # Eq. (1): the shortest cycle

    for batch in batches:
        assert all(type(i) is int for i in batch)
        assert len(batch) == ranks[0].batch_size == P * M + case['unlabelled_per_batch']
        inside = labels[batch[:P * M]].reshape(P, M)
        assert (inside == inside[:, :1]).all() and (inside >= 0).all()
        assert len(set(inside[:, 0])) == P                      # a class once a batch
        for group, label in zip(np.reshape(batch[:P * M], (P, M)), inside[:, 0]):
            assert len(set(group)) == min(M, counts[label])     # its images all different
        rest = batch[P * M:]
        assert (labels[rest] == -1).all() and len(set(rest)) == len(rest)

    shown = np.bincount(np.concatenate(batches), minlength=len(labels))
    assert shown[labels >= 0].min() >= 1                        # every image
    assert shown[labels >= 0].sum() - (labels >= 0).sum() == ranks[0].repeats
    for label in range(-1, 100):
        if (labels == label).any():
            assert np.ptp(shown[labels == label]) <= 1


@steady
@given(cases(), st.integers(1, 6))
def test_unlabelled_images_take_turns_across_cycles(case, epochs):
    sampler = ClassBatchSampler(**case | dict(world=1))
    labels, total = case['labels'], np.zeros(len(case['labels']), dtype=int)
    for _ in range(epochs):
        total += np.bincount(np.concatenate(list(sampler)), minlength=len(labels))
        if (labels < 0).any():
            assert np.ptp(total[labels < 0]) <= 1
    assert total[labels < 0].sum() == epochs * len(sampler) * case['unlabelled_per_batch']


@steady
@given(cases(), st.integers(0, 40), st.booleans())
def test_a_stop_anywhere_changes_nothing(case, stop, new_means):
    "A state that went through JSON and another rank: the same batches to come, and the next epoch."
    whole, before, other, after = (ClassBatchSampler(rank=r, **case)
                                   for r in (0, 0, case['world'] - 1, 0))

    def begin(sampler):
        "The first batches of a cycle; means that come then have to wait for the next"
        iterator = iter(sampler)
        batches = [next(iterator) for _ in range(stop % len(sampler))]
        if new_means:
            sampler.set_means(-np.arange(2. * len(sampler.present)).reshape(-1, 2))
        return batches, iterator

    done, to_come = begin(whole)
    done = done + list(to_come) + list(whole)
    half, _ = begin(before)
    state = json.loads(json.dumps(before.state_dict()))
    other.load_state_dict(state)
    assert json.loads(json.dumps(other.state_dict())) == state
    after.load_state_dict(other.state_dict())
    assert half + list(after) + list(after) == done
    assert after.epoch == 2 and after.position == 0


@steady
@given(cases(), st.integers(0, 40))
def test_what_was_trained_on_counts_not_what_was_fetched(case, trained):
    ahead, after = ClassBatchSampler(**case), ClassBatchSampler(**case)
    plan = ahead.cycle()
    trained %= len(plan)
    fetched = iter(ahead)
    for _ in range(trained + 1):
        next(fetched)
    after.load_state_dict(ahead.state_dict(position=trained))
    assert list(after) == plan[trained:]


@steady
@given(cases())
def test_a_cycle_begins_with_a_class_and_its_nearest(case):
    "Before any class is urgent or used up, by the words of the definition; ties may go either way."
    if case['means'] is None:
        case['means'] = np.eye(len(set(case['labels']) - {-1}))
    sampler = ClassBatchSampler(**case | dict(world=1, per_class=1))
    if sampler.counts.max() == len(sampler): return             # an urgent class from the start
    first = sampler.labels[sampler.cycle()[0][:sampler.classes]]
    places = np.searchsorted(sampler.present, first)
    far = ((sampler.means - sampler.means[places[0]])**2).sum(1)
    assert sorted(far[places]) == sorted(far)[:sampler.classes]


def test_means_change_who_meets_and_nothing_else():
    labels = np.repeat(np.arange(9), 8)
    line = np.arange(9.)[:, None]
    sampler = ClassBatchSampler(labels, classes=3, per_class=2, means=line)
    at_random = ClassBatchSampler(labels, classes=3, per_class=2)
    assert len(sampler) == len(at_random) and sampler.repeats == at_random.repeats == 0

    def spread(s):
        return np.mean([np.ptp(labels[batch]) for batch in s.cycle()])
    assert spread(sampler) < .7 * spread(at_random)
    sampler.set_means(None)
    assert sampler.cycle() == at_random.cycle()


def test_the_first_epoch_is_epoch_0():
    labels = np.repeat(np.arange(7), 5)                         # an odd number of classes
    sampler = ClassBatchSampler(labels, classes=2, per_class=2)
    assert sampler.epoch == sampler.position == 0
    assert sampler.state_dict()['epoch'] == sampler.state_dict()['position'] == 0
    first, second = list(sampler), list(sampler)
    assert sampler.epoch == 2 and first != second
    assert sorted({i for batch in first for i in batch}) == list(range(35))
    sampler.set_epoch(0)
    assert list(sampler) == first == ClassBatchSampler(labels, classes=2, per_class=2).cycle()


@pytest.mark.parametrize('C', [1, 3, 5, 7, 9])
@pytest.mark.parametrize('P', [1, 2, 3])
def test_an_odd_number_of_classes(C, P):
    if P > C: return
    sampler = ClassBatchSampler(np.repeat(np.arange(C), 4), classes=P, per_class=2)
    batches = sampler.cycle()
    assert len(batches) == max(-(-2 * C // P), 2)
    assert set(np.concatenate(batches)) == set(range(4 * C))


signed = np.random.default_rng(0).permutation(np.repeat([-1, 0, 1, 2, 5], 6))
plain = np.where(signed < 0, 3, signed)


def kinds():
    "Every way to write integers down"
    for dtype in ('i1', 'i2', 'i4', 'i8', '>i2', '>i4', '>i8'):
        yield dtype, signed, signed.astype(dtype)
    for dtype in ('u1', 'u2', 'u4', 'u8', '>u2', '>u8'):
        yield dtype, plain, plain.astype(dtype)
    read_only = signed.copy()
    read_only.flags.writeable = False
    yield 'read-only', signed, read_only
    yield 'reversed', signed, signed[::-1].copy()[::-1]
    yield 'strided', signed, np.repeat(signed, 2)[::2]
    yield 'objects', signed, signed.astype(object)
    yield 'list', signed, signed.tolist()
    yield 'tuple of numpy integers', signed, tuple(signed)
    yield 'tensor', signed, torch.from_numpy(signed)
    yield 'bytes in a tensor', plain, torch.from_numpy(plain).to(torch.uint8)
    yield 'Series', signed, pd.Series(signed, index=np.arange(len(signed))[::-1])
    yield 'unsigned Series', plain, pd.Series(plain, dtype='uint32')


@pytest.mark.parametrize('values, labels', [k[1:] for k in kinds()], ids=[k[0] for k in kinds()])
def test_labels_of_any_integer_kind(values, labels):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        sampler = ClassBatchSampler(labels, classes=2, per_class=3)
    expected = ClassBatchSampler(values, classes=2, per_class=3)
    assert sampler.labels.tolist() == values.tolist()
    assert sampler.cycle() == expected.cycle() and sampler.state_dict() == expected.state_dict()


@pytest.mark.parametrize('labels', [
    np.array([0, 1, 2**63], dtype=np.uint64), np.array([0, 1, 2**64 - 1], dtype=np.uint64),
    np.array([0, 1, 2**63], dtype=object), [0, 1, 2**70], [0., 1.], [True, False], ['a', 'b'],
    np.array([0, .5], dtype=object), [-2, 0, 1], [[0, 1], [1, 0]]], ids=repr)
def test_labels_that_are_no_classes_are_refused(labels):
    with pytest.raises((TypeError, ValueError), match='labels: expected'):
        ClassBatchSampler(labels, classes=1, per_class=1)


@pytest.mark.parametrize('form', [np.asarray, torch.as_tensor], ids=['array', 'tensor'])
def test_labels_and_means_are_its_own(form):
    labels = form(np.repeat(np.arange(20), 6))
    means = form(np.random.default_rng(0).normal(size=(20, 2)))
    sampler = ClassBatchSampler(labels, classes=4, per_class=3, means=means)
    state, batches = sampler.state_dict(), sampler.cycle()
    labels[:] = 0
    means[:] = 0
    assert sampler.state_dict() == state and sampler.cycle() == batches


def test_seed_and_epoch_shuffle_everything():
    labels = np.r_[np.repeat(np.arange(4), 12), np.full(24, -1)]
    first, again, other = (ClassBatchSampler(labels, classes=4, per_class=3, seed=seed,
                                             unlabelled_per_batch=6) for seed in (0, 0, 1))
    assert len(first) == 4                                      # 4 × 6 places for 24 unlabelled

    def company(batches):
        "Who stands beside whom: the groups of classes, and the unlabelled of a batch"
        groups = {frozenset(b[i:i + 3]) for b in batches for i in range(0, 12, 3)}
        return groups, {frozenset(b[12:]) for b in batches}
    assert first.cycle() == again.cycle()
    again.set_epoch(1)
    for one, another in ((first, again), (first, other)):
        for groups, same in zip(company(one.cycle()), company(another.cycle())):
            assert groups != same


def test_ranks_take_turns():
    "Batches that are trained on at the same time stand side by side in the plan of one process."
    labels = np.repeat(np.arange(6), 8)
    plan = ClassBatchSampler(labels, classes=3, per_class=4).cycle()
    shares = [ClassBatchSampler(labels, classes=3, per_class=4, rank=r, world=2).cycle()
              for r in (0, 1)]
    assert len(plan) == 4 and shares == [plan[0::2], plan[1::2]]


def test_repeats_go_to_whom_was_shown_least():
    labels = np.repeat(np.arange(5), [40, 4, 4, 8, 8])
    sampler = ClassBatchSampler(labels, classes=3, per_class=4)
    shown = np.bincount(np.concatenate(sampler.cycle()), minlength=len(labels))
    times = np.array([shown[labels == c].mean() for c in range(5)])
    assert len(sampler) == 10 and times[0] == 1
    assert np.ptp(times[1:]) <= 1                               # one group of a small class


def test_a_resumed_loop_that_is_left_and_new_means():
    labels = np.repeat(np.arange(6), 8)
    sampler = ClassBatchSampler(labels, classes=2, per_class=2)
    plan = sampler.cycle()
    sampler.load_state_dict(sampler.state_dict(position=3))
    loop = iter(sampler)
    assert [next(loop), next(loop)] == plan[3:5]
    assert sampler.state_dict()['position'] == 5
    assert next(iter(sampler)) == plan[0]                       # left early: the cycle anew
    means = np.arange(6.)[:, None]
    sampler.set_means(means)
    assert sampler.means is None and sampler.cycle() == plan    # not within a cycle
    assert list(sampler) == plan and (sampler.means == means).all()


def test_a_setting_that_is_changed_counts():
    sampler = ClassBatchSampler(np.repeat(np.arange(6), 8), classes=2, per_class=4)
    assert len(sampler) == 6 and sampler.batch_size == 8
    sampler.classes, sampler.world = 3, 3
    assert len(sampler) == 2 and sampler.batch_size == 12
    assert [len(batch) for batch in sampler] == [12, 12]


@pytest.mark.parametrize('bad', [
    dict(classes=0), dict(classes=True), dict(classes=4), dict(per_class=0), dict(per_class=1.5),
    dict(seed=-1), dict(rank=1), dict(rank=-1), dict(world=0), dict(unlabelled_per_batch=3),
    dict(unlabelled_per_batch=-1), dict(means=[[1.]] * 2), dict(means=[1., 2., 3.]),
    dict(means=[[1.], [2.], [np.inf]]), dict(means=np.empty((3, 0)))], ids=repr)
def test_impossible_settings_are_refused(bad):
    name = next(iter(bad))
    with pytest.raises(ValueError, match=f'^{name}: expected .*got'):
        ClassBatchSampler([0, 0, 1, 1, 2, 2, -1, -1], **dict(classes=2, per_class=2) | bad)


@pytest.mark.parametrize('change', [
    dict(seed=1), dict(classes=3), dict(per_class=1), dict(world=2), dict(unlabelled_per_batch=1),
    dict(labels=[0, 0, 1, 1, 2, 2, 3, -1])], ids=repr)
def test_a_state_of_another_sampler_is_refused(change):
    usual = dict(labels=[0, 0, 1, 1, 2, 2, -1, -1], classes=2, per_class=2)
    sampler = ClassBatchSampler(**usual)
    other = ClassBatchSampler(**usual | change)
    next(iter(other))
    before = sampler.state_dict()
    with pytest.raises(ValueError, match=f'{next(iter(change))} differ'):
        sampler.load_state_dict(other.state_dict())
    assert sampler.state_dict() == before


@pytest.mark.parametrize('bad', [
    dict(position=-1), dict(position=9), dict(position=1.5), dict(epoch=-1), dict(means=[[1.]]),
    dict(next_means=[[np.nan]] * 3)], ids=repr)
def test_a_state_that_is_no_place_is_refused(bad):
    sampler = ClassBatchSampler([0, 0, 1, 1, 2, 2], classes=2, per_class=2)
    before = sampler.state_dict()
    with pytest.raises(ValueError, match='expected'):
        sampler.load_state_dict(before | bad)
    assert sampler.state_dict() == before
    with pytest.raises(ValueError, match='position: expected'):
        sampler.state_dict(position=len(sampler) + 1)


def test_a_state_that_does_not_fit_changes_nothing():
    sampler = ClassBatchSampler(torch.arange(40) % 10, 4, 2)
    before = sampler.state_dict()
    with pytest.raises(ValueError, match='means'):
        sampler.load_state_dict(before | dict(epoch=3, position=1, means=[[0.]]))
    assert sampler.state_dict() == before
