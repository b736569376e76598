"""What training promises where a page cannot show it: with worker processes, other versions, and a
disk that is full."""
import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.progress import ProgressCallback
from fastai.callback.schedule import SchedLin
from fastai.learner import Learner
from fastai.optimizer import SGD
from fastai.vision.data import ImageDataLoaders
from PIL import Image
from torch import nn

from dml_nb.experiments import Recipe, compare, run, run_many, store, sweep, trial
from dml_nb.experiments.recipe import class_count, make_loss
from dml_nb.training import MultiSimilarityCallback
from dml_nb.proof import test_same as same
from dml_nb.data import ImageSet, load_data, split_by_class
from dml_nb.training import (
    create_embedder, load_embedder, metric_dataloaders, metric_learner, save_embedder)
from dml_nb.data import shift_images
from dml_nb.losses import MultiSimilarity, Triplet
from dml_nb.losses.catalogue import LOSSES

pytestmark = pytest.mark.usefixtures('one_thread')
#: Why a test is skipped.
needs_peers = 'pytorch-metric-learning is not installed (extra baselines)'


@pytest.fixture(scope='module')
def parts():
    digits = load_data('digits')
    return [digits.subset(part) for part in split_by_class(digits.labels)]


def loaders(parts, **kwargs):
    return metric_dataloaders(*parts, 5, 8, augment=shift_images, device='cpu', **kwargs)


def test_workers_that_fetch_ahead_change_nothing(parts):
    alone, fetching = loaders(parts), loaders(parts, num_workers=2)
    expected = [x for x, _ in alone.train]
    found = []
    for x, _ in fetching.train:
        found.append(x)
        if len(found) == 3:
            break
    assert fetching.train.sampler.position == 3, 'the place counts what was trained on'
    resumed = loaders(parts, num_workers=2)
    resumed.train.sampler.load_state_dict(fetching.train.sampler.state_dict())
    found += [x for x, _ in resumed.train]
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize('facts', ['versions', 'machine'])
def test_other_versions_and_machines_are_other_runs(facts, monkeypatch):
    recipe = Recipe()
    key = store.run_key(recipe, 'data')
    now = getattr(store, facts)()
    monkeypatch.setattr(store, facts, lambda: dict(now))
    assert store.run_key(recipe, 'data') == key
    name = 'torch' if facts == 'versions' else 'cpu'
    monkeypatch.setattr(store, facts, lambda: now | {name: 'another'})
    assert store.run_key(recipe, 'data') != key


def test_the_hash_of_the_code_covers_all_that_trains(monkeypatch):
    "And not what only makes recipes, or reads results"
    code_hash = store.code_hash.__wrapped__                 # reads anew
    imported, read = code_hash.__globals__['imported_modules'], set()

    def imported_by(tree, module, package=False):
        read.add(module.removeprefix('dml_nb.'))
        return imported(tree, module, package)

    monkeypatch.setitem(code_hash.__globals__, 'imported_modules', imported_by)
    code_hash()
    assert read >= {
        'experiments.recipe', 'experiments.store', 'experiments.trial', 'training.learner',
        'training.callbacks', 'training.methods', 'training.memory', 'data.samplers',
        'data.noise', 'weighting', 'evaluation.ranks', 'evaluation.retrieval', 'losses.dro',
        'losses.catalogue', 'losses.triplet', 'transport'}
    assert not read & {'experiments.sweeps', 'experiments.compare', 'experiments.report', 'cli'}


@pytest.mark.long
def test_the_code_is_read_before_it_can_be_edited():
    "With the modules that train, not with the first run"
    asked = 'from dml_nb.experiments import store; print(store.code_hash.cache_info().currsize)'
    run = subprocess.run([sys.executable, '-c', asked], capture_output=True, text=True)
    assert run.stdout.strip() == '1', run.stderr


def test_all_recipes_are_checked_before_the_first_training(parts, monkeypatch, tmp_path):
    def trained(*args):
        raise AssertionError('a training began')
    monkeypatch.setattr(trial, 'run_on', trained)
    fits, misfits = Recipe(), Recipe(split='class', classes=6)
    with pytest.raises(ValueError, match='at most 5'):
        compare.run_all([fits, fits, misfits], load_data('digits'), tmp_path)


def test_a_full_disk_leaves_the_saved_embedder(tmp_path, monkeypatch):
    old = create_embedder(dim=4, channels=1, seed=0)
    save_embedder(old, tmp_path/'net')

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='safetensors.*No space left'):
        save_embedder(create_embedder(dim=4, channels=1, seed=1), tmp_path/'net')
    monkeypatch.undo()
    assert not list((tmp_path/'net').glob('.*')) and len(list((tmp_path/'net').iterdir())) == 2
    found = load_embedder(tmp_path/'net').state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in old.state_dict().items())


def test_training_reaches_the_last_batch_of_every_epoch_with_workers(parts, tmp_path):
    learn = metric_learner(loaders(parts, num_workers=2, path=tmp_path), 'small_convnet', dim=8)
    learn.remove_cb(ProgressCallback)
    with learn.no_logging():
        learn.fit(2)
    assert learn.dls.train.sampler.epoch == 2
    assert len(learn.recorder.losses) == 2 * len(learn.dls.train.sampler)


def folder_of_noise(folder, count=24):
    "Pictures of two classes, as fastai reads them"
    for i in range(count):
        path = folder/('seven' if i % 2 else 'two')/f'{i}.png'
        path.parent.mkdir(exist_ok=True)
        noise = np.random.default_rng(i).random((8, 8, 3)) * 255
        Image.fromarray(noise.astype(np.uint8)).save(path)
    return ImageDataLoaders.from_folder(folder, valid_pct=.5, seed=0, bs=6, num_workers=0)


def quietly(learn, *args, **kwargs):
    learn.remove_cb(ProgressCallback)
    with learn.no_logging():
        learn.fit(*args, **kwargs)
    return learn


@pytest.mark.parametrize('name', LOSSES)
def test_a_plain_learner_trains_with_every_loss(name, tmp_path):
    settings = dict(k=8) if 'top_k' in name else {}
    loss_func = LOSSES[name].for_data(8, 4, **settings)
    before = repr(loss_func)
    net = create_embedder(dim=4, size=8, seed=0)
    first = net.head.weight.detach().clone()
    learn = quietly(Learner(folder_of_noise(tmp_path), net, loss_func=loss_func), 1, 1e-3)
    assert np.isfinite(learn.recorder.values[-1]).all() and np.isfinite(learn.validate()).all()
    assert not torch.equal(net.head.weight, first)
    z, labels, losses = learn.get_preds(with_loss=True)
    assert z.shape == (12, 4) and losses.shape == labels.shape == (12,) and losses.isfinite().all()
    assert repr(learn.loss_func) == before


def test_a_scheduled_term_begins_each_training_with_its_own_weight(tmp_path):
    falling = MultiSimilarityCallback(schedule=SchedLin(1, 0))
    loss = Triplet() + .5 * MultiSimilarity()
    net = create_embedder(dim=4, size=8, seed=0)
    learn = Learner(folder_of_noise(tmp_path), net, loss_func=loss, cbs=falling)
    for _ in range(2):
        quietly(learn, 2)
    same(falling.series('weight'), np.array([.25, 0., .25, 0.]))


class BFloat16(MixedPrecision):
    "fastai's mixed precision, with autocast for the CPU"

    def __init__(self):
        super().__init__('bf16')

    def before_fit(self):
        super().before_fit()
        self.autocast = torch.autocast('cpu', torch.bfloat16)


def gradient(loss_func, parts, cbs=()):
    "What the weights of the head change by in one step of plain gradient descent"
    dls = loaders(parts)
    learn = metric_learner(dls, 'small_convnet', loss_func, 8, opt_func=SGD, cbs=cbs, wd=0.)
    first = learn.model.head.weight.detach().clone()
    batch = dls.train.one_batch()
    learn.dls.loaders[0] = [batch]
    torch.manual_seed(0)                                    # of random selections
    quietly(learn, 1, 1.)
    return learn.model.head.weight.detach() - first


def of_seed_0(entry, **settings):
    "A loss of the table, with the same first proxies each time"
    torch.manual_seed(0)
    return entry.for_data(10, 8, **settings)


@pytest.mark.filterwarnings('ignore:User provided device_type', 'ignore:torch.cuda.amp')
@pytest.mark.parametrize('name', LOSSES)
def test_bfloat16_keeps_the_direction_of_a_step(name, parts):
    settings = dict(k=40) if 'top_k' in name else {}
    half, full = (
        gradient(of_seed_0(LOSSES[name], **settings), parts, cbs) for cbs in ([BFloat16()], []))
    assert half.isfinite().all()
    alike = torch.nn.functional.cosine_similarity(half.flatten(), full.flatten(), dim=0)
    assert alike > .9


def test_a_search_for_a_rate_within_a_cycle_leaves_its_place(parts):
    dls = loaders(parts)
    learn = metric_learner(dls, 'small_convnet', dim=8)
    sampler = dls.train.sampler
    sampler.load_state_dict(sampler.state_dict() | dict(epoch=2, position=3))
    expected, batches_left = sampler.state_dict(), len(dls.train)
    with learn.no_bar():
        learn.lr_find(num_it=20, show_plot=False)
    assert sampler.state_dict() == expected and len(dls.train) == batches_left
    assert batches_left == len(sampler) - 3


@pytest.mark.long
def test_a_script_trains_searches_for_a_rate_shows_and_saves(tmp_path):
    script = tmp_path/'train.py'
    script.write_text(textwrap.dedent('''
        import warnings
        from fastai.learner import load_learner
        from dml_nb.data import load_data, split_by_class
        from dml_nb.training import load_embedder, metric_dataloaders, metric_learner, save_embedder
        from dml_nb.losses import Triplet

        if __name__ == '__main__':
            digits = load_data('digits')
            train, valid = (digits.subset(part) for part in split_by_class(digits.labels))
            dls = metric_dataloaders(train, valid, 5, 6, num_workers=1)
            learn = metric_learner(dls, 'small_convnet', Triplet(.2), dim=8)
            rate = learn.lr_find(num_it=20, show_plot=False).valley
            learn.fit_one_cycle(1, slice(rate / 10, rate))
            learn.show_results().savefig('found.png')
            z, _ = learn.embed()
            learn.export('learner.pkl')
            save_embedder(learn.model, 'net')
            again = load_embedder('net')(valid.images()).detach()
            assert (again - z).abs().max() < 1e-5
            warnings.simplefilter('ignore')
            assert (load_learner('learner.pkl').embed(valid)[0] - z).abs().max() < 1e-5
            print('all', len(z))
    '''))
    root = str(Path(__file__).resolve().parents[1])
    environment = os.environ | dict(PYTHONPATH=root, MPLBACKEND='agg', OMP_NUM_THREADS='1')
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == 'all 896' and (tmp_path/'found.png').stat().st_size > 0


@pytest.mark.parametrize('loss, options', [
    ('pml:SoftTripleLoss', dict(centers_per_class=2)),
    ('pml:NormalizedSoftmaxLoss', {}),
    ('pml:P2SGradLoss', {}),
    ('pml:TripletMarginLoss', dict(miner='pml:TripletMarginMiner', miner_options=dict(margin=.3))),
    ('multi_similarity', dict(epsilon=None, miner='pml:MultiSimilarityMiner')),
])
def test_recipes_with_losses_and_miners_from_elsewhere(loss, options):
    pytest.importorskip('pytorch_metric_learning', reason=needs_peers)
    digits = load_data('digits')
    recipe = Recipe(loss, options, epochs=1, dim=8, split='class', classes=5)
    first, again = (run(recipe, digits, device='cpu') for _ in range(2))
    del first['seconds'], again['seconds']
    assert first == again and first['device'] == 'cpu'
    assert first['trained'] != first['untrained']


@pytest.mark.parametrize('part, fields, seeds, grid', [
    ('input', dict(frozen=True, body_width=8, split='class'), 2, {}),
    ('pixels', dict(measures=['class_mean']), 1, dict(noise=[[], ['symmetric', .7]])),
])
def test_runs_that_share_what_they_read_find_what_each_finds_alone(
        part, fields, seeds, grid, tmp_path):
    "Features of a body that each seed draws anew; what is learned from pixels with wrong labels"
    recipes = sweep(Recipe(classes=5, steps=2, **fields), grid, seeds)
    together = run_many(recipes, tmp_path, workers=1, progress=False)
    alone = [run(recipe, device='cpu') for recipe in recipes]
    for each in (*together, *alone):
        del each['seconds']
    assert together == alone
    assert together[0][part] != together[1][part]


def test_the_unlabelled_are_no_class():
    "Neither for how many classes there are, nor for the share of them that validates"
    some = load_data('digits').subset(range(60))
    unlabelled = ImageSet(some.images(range(60)).numpy(), np.where(some.labels < 3, -1, some.labels))
    assert class_count(some) == 10 and class_count(unlabelled) == 7


def test_what_a_recipe_says_of_another_librarys_loss_is_what_it_gets():
    "Numbers that are filled in give way to those that are stated, and a miner gets its own options"
    pytest.importorskip('pytorch_metric_learning', reason=needs_peers)
    stated = make_loss('pml:SoftTripleLoss', dict(num_classes=9, embedding_size=5), 4, 8).loss
    assert stated.num_classes == 9 and stated.fc.shape[0] == 5
    filled = make_loss('pml:SoftTripleLoss', {}, 4, 8).loss
    assert filled.num_classes == 4 and filled.fc.shape[0] == 8
    mined = make_loss('pml:TripletMarginLoss', dict(miner='pml:TripletMarginMiner',
                                                    miner_options=dict(margin=.3)))
    assert mined.miner.margin == .3 and make_loss('triplet', dict(
        miner='pml:TripletMarginMiner', miner_options=dict(margin=.7))).miner.margin == .7


@pytest.mark.parametrize('name', ['SoftTripleLoss', 'SphereFaceLoss', 'ProxyAnchorLoss'])
def test_class_weights_are_trained_for_the_classes_that_are_there(name, parts):
    peers = pytest.importorskip('pytorch_metric_learning.losses', reason=needs_peers)
    train, valid = parts
    gaps = train.subset(train.labels != 1)                  # classes 0, 2, 3, 4 have weights 0 to 3
    loss_func = getattr(peers, name)(num_classes=4, embedding_size=8)
    before = {key: value.clone() for key, value in loss_func.state_dict().items()}
    dls = metric_dataloaders(gaps, valid, 4, 6, device='cpu')
    learn = quietly(metric_learner(dls, 'small_convnet', loss_func, 8), 1, 1e-3)
    assert learn.recorder.values[-1][1] == 0, 'of unseen classes it knows nothing'
    assert all(not torch.equal(value, before[key]) for key, value in loss_func.state_dict().items())
    learn.freeze()
    assert all(p.requires_grad for p in loss_func.parameters()), 'they train with the head'
    with pytest.raises(ValueError, match='num_classes: expected at least the 5'):
        metric_learner(loaders(parts), 'small_convnet', loss_func, 8)


def test_without_the_other_library_a_recipe_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pytorch_metric_learning.losses', None)
    with pytest.raises(ValueError, match='pip install'):
        Recipe('pml:SoftTripleLoss')


def test_options_of_the_embedder_are_passed_on(parts, monkeypatch):
    from dml_nb.training import learner
    given = {}

    def create(arch, dim, channels, **options):
        given.update(options)
        return create_embedder(arch, dim, channels)
    monkeypatch.setattr(learner, 'create_embedder', create)
    dls = loaders(parts)
    metric_learner(dls, 'small_convnet', dim=8)
    assert given == dict(size=8, seed=0)
    metric_learner(dls, 'small_convnet', dim=8, weights='DEFAULT', embedder=dict(pooling='max'))
    assert given == dict(size=8, seed=0, weights='DEFAULT', pooling='max')
    finished = create_embedder(dim=8, channels=1, size=8)
    with pytest.raises(ValueError, match='finished Embedder'):
        metric_learner(dls, finished, weights='DEFAULT')
    assert metric_learner(dls, finished).model is finished


def test_files_are_brought_to_both_sides_of_the_pictures_of_training(tmp_path):
    "As for people, who are taller than wide"
    pixels = np.random.default_rng(0).integers(0, 256, (16, 1, 32, 16), dtype=np.uint8)
    people = ImageSet(pixels, np.arange(16) // 4)
    dls = metric_dataloaders(people, people, 4, 4, device='cpu')
    learn = metric_learner(dls, 'small_convnet', dim=8, seed=0)
    files = [tmp_path/f'{i}.png' for i in range(16)]
    for file, picture in zip(files, pixels[:, 0]):
        Image.fromarray(picture).save(file)
    z, _ = learn.embed()
    same(learn.model.embed(files), z, atol=1e-6)
    same(load_embedder(save_embedder(learn.model, tmp_path/'net')).embed(files), z, atol=1e-6)
    flat = metric_learner(dls, lambda channels: nn.Flatten(), dim=8, seed=0)
    assert flat.model.head.in_features == 32 * 16 and flat.embed()[0].shape == (16, 8)
    with pytest.raises(ValueError, match='size: expected one side'):
        metric_learner(dls, 'vit_b_16', dim=8)              # before the first batch


def test_an_unfinished_number_stops_training_and_names_the_item(parts):
    train, valid = parts

    def spoil(x, generator):
        x = x.clone()
        x[3] = torch.inf
        return x
    dls = metric_dataloaders(train, valid, 5, 6, augment=spoil, device='cpu')
    learn = metric_learner(dls, 'small_convnet', dim=8)
    items = dls.train.sampler.cycle()[0]
    said = '30 of 30 embeddings are not finite.*batch 0'
    with pytest.raises(FloatingPointError, match=said) as stopped:
        quietly(learn, 1)
    assert str(items[:8])[:-1] in str(stopped.value)          # batch norm spread it to all of them
