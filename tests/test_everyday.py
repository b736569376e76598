"From pictures to a search, where settings are other than the page's."
import inspect
import json
import os
import shutil
import subprocess
import sys
import time
import unicodedata
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fastai.callback.core import Callback
from fastai.learner import Recorder
from PIL import Image

from dml_nb.search import choices, everyday, folders
from dml_nb.support.storage import one_writer
from dml_nb.data import ImageSet
from dml_nb.data.pixels import KeptPixels
from dml_nb.data.transforms import shift_images
from dml_nb.evaluation import evaluate
from dml_nb.training import create_embedder, load_embedder, save_embedder
from dml_nb.search import index_folder, load_pictures, search_folder, train_embedder
from dml_nb.search.card import add_evaluation
from dml_nb.search.everyday import careful_learner
from dml_nb.search.folders import embed_readable, search_page
from dml_nb.search.pictures import held_back_of, hold_back, trained_on
from dml_nb.search import EmbeddingIndex
from dml_nb.search.index import _INDEX
from dml_nb.training.learner import MetricLearner
from dml_nb.losses import Contrastive, MultiSimilarity, ProxyAnchor
from dml_nb.weighting import from_function

pytestmark = pytest.mark.usefixtures('one_thread')


@pytest.fixture(scope='module')
def vectors():
    "Ten classes of five vectors"
    draw = np.random.default_rng(0)
    return ImageSet(draw.normal(size=(50, 6)).astype('float32'), np.arange(50) % 10)


def test_what_was_held_back_is_found_again(vectors, tmp_path):
    settings = dict(held_out=.4, seed=3)
    train_embedder(vectors, tmp_path, epochs=1, classes=4, per_class=2, **settings)
    judges = hold_back(vectors, *settings.values())[1]
    assert len(judges) == 20 and judges.sha256() != hold_back(vectors, .4, 0)[1].sha256()
    assert held_back_of(tmp_path, vectors).sha256() == judges.sha256()


def test_it_is_found_in_other_sets_of_the_same_pictures(vectors, tmp_path):
    "More pictures, fewer, in another order and in groups, of classes and of pictures held back"
    new = vectors.source[np.arange(50)][:10] + 1
    for name, count in (('class', 10), ('image', 3)):
        known = vectors.subset(vectors.labels < count)
        record = train_embedder(known, tmp_path/name, epochs=1, classes=2, per_class=2, held_out=.4)
        assert record['settings']['held_back'] == name
        train, judges, _ = hold_back(known, .4)
        more = ImageSet(torch.cat([known.source[known.index].flip(0), new]),
                        np.append(known.labels[::-1], np.arange(10) % count))
        more.groups = np.arange(len(more)).astype(str)
        held, seen = held_back_of(tmp_path/name, more), trained_on(tmp_path/name, more)
        assert seen.sum() == len(train) and not trained_on(tmp_path/name, held).any()
        of_new = sum(label in judges.labels for label in np.arange(10) % count)
        assert len(held) == len(judges) + (of_new if name == 'class' else 10)
        assert {*judges.prints()} <= {*held.prints()}
        with pytest.raises(ValueError, match='got others'):
            held_back_of(tmp_path/name, train)
    (tmp_path/'image'/'trained.npy').write_bytes(b'x')
    with pytest.raises(ValueError, match='trained.npy: expected fingerprints'):
        held_back_of(tmp_path/'image', more)


def test_a_training_is_judged_as_it_is_evaluated(tmp_path):
    "Pictures of one group are no answers: not before it, not after an epoch, not in `evaluate`"
    draw = np.random.default_rng(0)
    shots = np.repeat(draw.normal(size=(60, 6)), 3, 0) + .01 * draw.normal(size=(180, 6))
    images = ImageSet(shots.astype('float32'), np.arange(180) // 3 % 10,
                      groups=[f'{i // 3}' for i in range(180)])
    record = train_embedder(images, tmp_path, epochs=1, classes=4, per_class=2, dim=4)
    judges = hold_back(images)[1]
    z = load_embedder(tmp_path/'embedder').embed(judges, progress=False)
    groups = np.unique(judges.groups, return_inverse=True)[1]
    in_groups, alone = (evaluate(z, judges.labels, groups=each) for each in (groups, None))
    assert record['best']['recall@1'] == pytest.approx(in_groups['recall@1'])
    assert in_groups['recall@1'] < alone['recall@1'] - .2 and record['before']['recall@1'] < .9


def test_batches_follow_the_seed(vectors, tmp_path):
    def first_batches(seed):
        embedder = create_embedder('identity', 8, 6, None, 0, None)
        learn = careful_learner(
            vectors, vectors, embedder, MultiSimilarity(), tmp_path, {}, 4, 2, 3, seed)
        return [labels.tolist() for _, labels in learn.dls.train]

    assert first_batches(1) == first_batches(1) != first_batches(2)


def test_as_many_answers_as_asked_for(tmp_path):
    for i in range(6):
        path = tmp_path/'photos'/f'{i}.png'
        path.parent.mkdir(exist_ok=True)
        Image.new('L', (12, 12), 40 * i).save(path)
    outside = tmp_path/'outside.png'
    Image.new('L', (12, 12), 100).save(outside)
    embedder = create_embedder('small_convnet', 8, 1, 12, 0, None)
    index_folder(embedder, tmp_path/'photos', tmp_path/'search')
    answers = search_folder(tmp_path/'search', [outside, tmp_path/'photos'/'2.png'], k=4)
    assert [len(answer['found']) for answer in answers] == [4, 4]


def test_names_that_are_no_utf8_and_two_spellings_of_a_class(tmp_path):
    "Indexed, searched and written into a page; the folder itself has such a name, too"
    root = os.fsencode(tmp_path) + b'/caf\xe9'
    composed, other = (unicodedata.normalize(form, 'né').encode() for form in ('NFC', 'NFD'))
    for i, name in enumerate([composed + b'/1.png', other + b'/2.png', b'a/n\xff.png']):
        path = root + b'/' + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as file:
            Image.new('L', (12, 12), 70 * i).save(file, 'png')
    with open(root + b'/a/broken\xff.png', 'wb') as file:
        file.write(b'no picture')
    embedder = create_embedder('small_convnet', 8, 1, 12, 0, None)
    with pytest.warns(UserWarning, match=r'caf.udce9: 3 folders .* 2 classes of them: names that'):
        found = index_folder(embedder, os.fsdecode(root), tmp_path/'search')
    assert found['pictures'] == 3 and len(found['skipped']) == 1
    answers = search_folder(tmp_path/'search', os.fsdecode(root + b'/a/n\xff.png'))
    assert [found['label'] for found in answers[0]['found']] == [composed.decode()] * 2
    search_page(answers, tmp_path/'page.html')
    search_page(answers, tmp_path/'page.html')              # one page replaces another
    assert 'n?.png' in (tmp_path/'page.html').read_text(encoding='utf-8')
    photo = tmp_path/'photo.png'
    Image.new('L', (12, 12)).save(photo)
    before = photo.read_bytes()
    with pytest.raises(ValueError, match='photo.png, which is a file of another kind'):
        search_page(answers, photo)
    assert photo.read_bytes() == before


def all_of(function, **given):
    "Its arguments, checked to be all that it takes and none of them at its default"
    parameters = inspect.signature(function).parameters
    assert set(given) == set(parameters)
    for name, parameter in parameters.items():
        assert given[name] != parameter.default, name
    return given


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "Ten classes of five pictures in colour, wider than high"
    root = tmp_path_factory.mktemp('everyday')/'photos'
    draw = np.random.default_rng(0)
    for i in range(50):
        path = root/f'{i % 10}'/f'{i}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (20, 30, 3), 'uint8')).save(path)
    return root


def test_pictures_are_read_as_asked_for(folder, tmp_path):
    twice = folder.parent/'twice'
    for i in range(10):
        shutil.copytree(folder/f'{i}', twice/f'{i % 2}'/f'{i}')
    told, kept = [], KeptPixels(tmp_path)
    asked = all_of(load_pictures, data=twice, size=(16, 12), fit='pad', mode='L',
                   tell=lambda *counts: told.append(counts), on_error='later', kept=kept, rule={},
                   group='folder', levels_then='folders')
    asked |= asked.pop('rule') | dict(depth=2)
    images = load_pictures(**asked)
    assert len(images.classes) == 10 and images.classes[0] == '0/0'
    assert images.above == [['0'] * 5 + ['1'] * 5]
    assert told == [] and images.source.kept is kept and len(set(images.groups)) == 10
    asked |= dict(data=folder, depth=1, on_error='skip', kept=None, levels_then=None)
    images = load_pictures(**asked)
    assert told == [(i + 1, 50) for i in range(50)]
    assert images[0][0].shape == (1, 16, 12)
    usual = dict(size=None, fit='squash', mode=None)
    shapes = dict(size=(1, 128, 128), fit=(1, 16, 12), mode=(3, 16, 12))
    for name, shape in shapes.items():
        other = load_pictures(**dict(asked, **{name: usual[name]}))
        assert other[0][0].shape == shape and other.sha256() != images.sha256()


@pytest.mark.parametrize('classes, how', [(10, 'class'), (3, 'image')])
def test_what_is_held_back_follows_share_and_seed(classes, how, tmp_path):
    draw = np.random.default_rng(0)
    images = ImageSet(draw.normal(size=(60, 6)).astype('float32'), np.arange(60) % classes)
    train, valid, why = hold_back(**all_of(hold_back, images=images, share=.4, seed=3))
    assert (len(train), len(valid), why) == (36, 24, how)
    assert len(hold_back(images, .2, 3)[1]) == 12
    assert valid.sha256() != hold_back(images, .4, 0)[1].sha256()
    data = dict(name=images.name, sha256=images.sha256())
    settings = dict(data=data, held_out=.4, seed=3)
    everyday.write_record(tmp_path/'training.json', dict(settings=settings))
    assert held_back_of(tmp_path, images).sha256() == valid.sha256()


@pytest.fixture
def learners(monkeypatch):
    "What the trainings of a test are made of, as it is before the first step"
    def made(train, valid, embedder, loss, *more):
        parts = [{name: value.clone() for name, value in part.state_dict().items()}
                 for part in (embedder, loss)]
        seed = torch.initial_seed()
        learn = careful_learner(train, valid, embedder, loss, *more)
        found.append(SimpleNamespace(learn=learn, parts=parts, seed=seed))
        return learn

    def fit(learn, epochs, lr):
        found[-1].fit = epochs, lr
        fit_one_cycle(learn, epochs, lr)

    found, fit_one_cycle = [], MetricLearner.fit_one_cycle
    monkeypatch.setattr(everyday, 'careful_learner', made)
    monkeypatch.setattr(MetricLearner, 'fit_one_cycle', fit)
    return found


@pytest.fixture
def logs(monkeypatch):
    "The logs that are begun, in the place of fastai's for TensorBoard, which is not installed"
    class TensorBoardCallback(Callback):
        order = Recorder.order + 1

        def __init__(self, log_dir, trace_model, log_preds):
            self.log_dir, self.others, self.found = log_dir, (trace_model, log_preds), []
            self.writer = SimpleNamespace(close=lambda: self.found.append('closed'))
            begun.append(self)

        def after_batch(self):
            if self.training:
                self.found.append((self.train_iter, float(self.smooth_loss)))

    begun, name = [], 'fastai.callback.tensorboard'
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(TensorBoardCallback=TensorBoardCallback))
    return begun


def one_of(callbacks, kind):
    return next(callback for callback in callbacks if type(callback) is kind)


def test_every_setting_reaches_the_training(folder, tmp_path, learners, logs):
    "On the first call, and on the one that goes on after a stop"
    def tell(what, facts):
        said.append((what, facts))
        if len(said) == 32:
            raise KeyboardInterrupt

    def loss(classes, dim):
        return ProxyAnchor(classes, dim, alpha=16)

    said, images = [], load_pictures(folder, (16, 12), 'pad', 'L')
    settings = all_of(
        train_embedder, images=images, out=tmp_path, loss=loss, body='lenet', weights='none',
        dim=7, epochs=5, patience=6, classes=2, per_class=2, lr=.02, held_out=.4, seed=5,
        fresh=True, device='cpu', workers=1, augment='shift', freeze=2, log='tensorboard',
        command='dml train photos', tell=tell, coarse=.3)
    with pytest.raises(KeyboardInterrupt):
        train_embedder(**settings)
    record = train_embedder(**settings | dict(fresh=False))
    train, valid, _ = hold_back(images, .4, 5)
    embedder = create_embedder('lenet', 7, 1, (16, 12), 5, fit='pad')
    untrained = [part.state_dict() for part in (embedder, everyday.loss_for(loss, 6, 7, 5))]
    data = dict(name=images.name, sha256=images.sha256())
    assert len(learners) == 2
    for found in learners:
        dls, learn = found.learn.dls, found.learn
        sampler = dls.train.sampler
        assert (sampler.classes, sampler.per_class, sampler.seed) == (2, 2, 5)
        assert dls.train.dataset.sha256() == train.sha256()
        assert dls.valid.dataset.sha256() == valid.sha256()
        for part, wanted in zip(found.parts, untrained):
            assert part.keys() == wanted.keys()
            assert all(torch.equal(part[name], wanted[name]) for name in wanted)
        assert learn.model.config == embedder.config and learn.loss_func.alpha == 16
        assert found.fit == (5, .02) and found.seed == 5
        assert one_of(learn.cbs, everyday.StopEarly).patience == 6
        assert one_of(learn.cbs, choices.FreezeBody).epochs == 2
        assert dls.train.augment.func is shift_images and dls.train.augment.keywords == dict(pixels=1)
        assert dls.device == torch.device('cpu')
        assert [dl.fake_l.num_workers for dl in dls.loaders] == [1, 1]
        facts = one_of(learn.cbs, everyday.KeepBest).facts
        assert facts['data'] == data and facts['held_back'] == 'class' and '16' in facts['loss']
    begun = [facts for what, facts in said if what == 'begin']
    assert len(begun) == 2 and begun[0] == begun[1]
    assert begun[0].items() >= dict(train=30, known=6, valid=20, valid_classes=4).items()
    named = dict(body='lenet', weights=None, dim=7, epochs=5, patience=6, classes=2, per_class=2,
                 lr=.02, held_out=.4, held_back='class', seed=5, data=data, device='cpu', workers=1,
                 augment='shift', freeze=2)
    assert record['settings'].items() >= named.items() and record['finished']
    assert [log.log_dir for log in logs] == [tmp_path/'logs'] * 2
    assert 'dml train photos' in (tmp_path/'README.md').read_text()
    later = [facts['done'] for what, facts in said[32:] if what == 'batch']
    assert later == [step / 9 for step in range(28, 46)]    # it went on, nine steps an epoch
    kept = load_embedder(tmp_path/'embedder')
    assert kept.facts['reached']['epoch'] == record['best']['epoch'] and kept.fit == 'pad'


@pytest.mark.parametrize('weights, given, lr', [
    ('none', None, 3e-3), ('imagenet', 'imagenet', 3e-4), ('DEFAULT', 'DEFAULT', 3e-4),
    ('mine.pth', 'mine.pth', 3e-4)])
@pytest.mark.parametrize('dim', [None, 9])
def test_weights_and_dimension_reach_the_network(
        weights, given, lr, dim, vectors, tmp_path, monkeypatch):
    def instead(*given, **named):
        seen.update(signature.bind(*given, **named).arguments)
        return create_embedder('identity', 8, 6, None, 0)

    def stop(what, facts):
        begun.update(facts)
        raise KeyboardInterrupt

    seen, begun, signature = {}, {}, inspect.signature(create_embedder)
    monkeypatch.setattr(everyday, 'create_embedder', instead)
    with pytest.raises(KeyboardInterrupt):
        train_embedder(vectors, tmp_path, body='resnet18', weights=weights, dim=dim, seed=2,
                       tell=stop)
    wanted = dict(arch='resnet18', dim=dim or 128, channels=6, size=None, seed=2, weights=given,
                  fit='cut', batch_norm=True)
    assert seen == wanted | ({} if dim or given is None else {'head': None})
    assert (begun['weights'], begun['lr']) == (given, lr)


@pytest.fixture(scope='module')
def small(tmp_path_factory, folder):
    "What all trainings below share, and one of them that was never stopped"
    settings = dict(images=load_pictures(folder, (12, 12)), body='lenet', weights='none', epochs=3,
                    classes=2, per_class=2, freeze=1)
    out = tmp_path_factory.mktemp('whole')
    return settings, out, train_embedder(**settings, out=out)


def stop_in_second(what, facts):
    if what == 'batch' and facts['done'] > 1.5:
        raise KeyboardInterrupt


@pytest.mark.parametrize('now', [dict(), dict(workers=2), dict(device='cpu')])
def test_a_stopped_training_goes_on_with_other_workers_and_device(now, small, tmp_path):
    settings, whole, record = small
    with pytest.raises(KeyboardInterrupt):
        train_embedder(**settings, out=tmp_path, tell=stop_in_second)
    again = train_embedder(**settings, out=tmp_path, **now)
    assert again['curve'] == record['curve'] and again['embedder'] == record['embedder']
    assert again['settings'] == record['settings'] | now
    assert (tmp_path/'curves.png').read_bytes() == (whole/'curves.png').read_bytes()


@pytest.mark.parametrize('now, said', [
    (dict(augment='none'), "augment 'auto' there, 'none' now"), (dict(freeze=2), 'freeze 1 there, 2'),
    (dict(freeze=0), 'freeze 1 there, 0 now')])
def test_another_augmentation_or_freezing_is_another_training(now, said, small, tmp_path):
    settings, whole, _ = small
    with pytest.raises(ValueError, match=said):
        train_embedder(**settings | now, out=whole)


def test_a_record_of_before_there_were_these_settings_goes_on(small, tmp_path):
    settings, whole, record = small
    settings = settings | dict(freeze=0, out=tmp_path)
    record = train_embedder(**settings)
    for name in ('augment', 'freeze', 'workers'):
        del record['settings'][name]
    (tmp_path/'training.json').write_text(json.dumps(record))
    assert train_embedder(**settings) == record


@pytest.mark.parametrize('wrong, said', [
    (dict(device='gpu'), "device: expected cpu, cuda, cuda:1 or mps, got 'gpu'"),
    (dict(workers=-1), 'workers: expected an integer from 0 up'),
    (dict(augment='flip'), "augment: expected 'auto' or 'none' for vectors, got 'flip'"),
    (dict(augment='wild'), "augment: expected 'auto' or"), (dict(freeze=1.5), 'freeze: expected an'),
    (dict(freeze=1), r'freeze: expected 0 for a body that has nothing to learn \(identity\), got 1'),
    (dict(log='wand'), "log: expected 'tensorboard' or 'wandb'")])
def test_a_wrong_setting_is_said_before_anything_is_written(wrong, said, vectors, tmp_path):
    with pytest.raises(ValueError, match=said):
        train_embedder(vectors, tmp_path/'out', **wrong)
    assert not (tmp_path/'out').exists()


def test_a_frozen_body_is_as_it_came_and_has_a_head(folder, tmp_path, monkeypatch):
    "Also where weights would make the features the embedding"
    torch.save(create_embedder('lenet', 7, 3, 12, 3).body.state_dict(), tmp_path/'lenet.pth')
    images = load_pictures(folder, (12, 12))
    given = dict(body='lenet', weights=str(tmp_path/'lenet.pth'), epochs=2, classes=2, per_class=2)
    train_embedder(images, tmp_path/'model', **given, freeze=2)
    kept = load_embedder(tmp_path/'model'/'embedder')
    before = everyday.new_embedder(images, 'lenet', given['weights'], freeze=2)
    assert kept.dim == before.dim == 128
    for name, value in before.state_dict().items():
        assert torch.equal(value, kept.state_dict()[name]) == name.startswith('body.'), name


def test_a_log_is_closed_and_goes_on_in_its_folder(small, tmp_path, logs):
    settings, _, _ = small
    with pytest.raises(KeyboardInterrupt):
        train_embedder(**settings, out=tmp_path, log='tensorboard', tell=stop_in_second)
    train_embedder(**settings, out=tmp_path, log='tensorboard')
    steps = [[each[0] for each in log.found if each != 'closed'] for log in logs]
    assert [log.found[-1] for log in logs] == ['closed'] * 2 and logs[0].others == (False, False)
    assert steps[0] == [*range(1, len(steps[0]) + 1)] and steps[1][-1] == steps[1][0] + len(steps[1]) - 1
    assert {log.log_dir for log in logs} == {tmp_path/'logs'}


def test_wandb_is_begun_with_the_settings_and_ended(small, tmp_path, monkeypatch):
    class Run:
        def __enter__(self):
            done.append('begun')

        def __exit__(self, *error):
            done.append('ended')

    def init(**given):
        done.append(given)
        return Run()

    class WandbCallback(Callback):
        def __init__(self, log_preds):
            done.append(log_preds)

    done, settings = [], small[0]
    monkeypatch.setitem(sys.modules, 'wandb', SimpleNamespace(init=init))
    monkeypatch.setitem(
        sys.modules, 'fastai.callback.wandb', SimpleNamespace(WandbCallback=WandbCallback))
    record = train_embedder(**settings, out=tmp_path/'mine', log='wandb')
    given, *rest = done
    assert rest == ['begun', False, 'ended'] and given == dict(
        project='dml_nb', name='mine', dir=str(tmp_path/'mine'), config=record['settings'])


def test_a_card_says_what_is_there_and_goes_with_its_model(small, tmp_path):
    settings, _, _ = small
    record = train_embedder(**settings, out=tmp_path/'a model')
    text = (tmp_path/'a model'/'README.md').read_text()
    best = record['best']
    for words in ('# a model', '40 pictures of 8 classes', '(1, 128)', "load_embedder('a model/embedder')",
                  f"| after epoch {best['epoch']}, which is kept | {100 * best['recall@1']:.1f} |",
                  'in the first epoch |', '![Loss of each step', "dml index 'a model' photos"):
        assert words in text, words
    add_evaluation(tmp_path/'a model', dict(
        data='x', part='all', pictures=3, measures={'map@r': .5}, intervals={'map@r': (.4, .6)}))
    assert '40.0 to 60.0' in (tmp_path/'a model'/'README.md').read_text()
    train_embedder(**settings, out=tmp_path/'a model')
    assert '40.0 to 60.0' in (tmp_path/'a model'/'README.md').read_text()
    train_embedder(**settings, out=tmp_path/'a model', fresh=True)
    assert '40.0 to 60.0' not in (tmp_path/'a model'/'README.md').read_text()


def test_fresh_forgets_what_is_there(vectors, tmp_path):
    def stop(what, facts):
        raise KeyboardInterrupt

    settings = dict(images=vectors, out=tmp_path, classes=4, per_class=2, epochs=1)
    assert train_embedder(**settings)['finished'] and (tmp_path/'embedder').is_dir()
    log = tmp_path/'logs'/'events.out.tfevents.1.host'
    for folder in (tmp_path/'checkpoints', log.parent):
        folder.mkdir()
    log.touch()
    with pytest.raises(KeyboardInterrupt):
        train_embedder(**settings, fresh=True, tell=stop)
    assert not log.exists()
    assert not (tmp_path/'embedder'/'embedder.json').exists()
    assert not (tmp_path/'checkpoints').exists()
    assert len(train_embedder(**settings)['curve']) == 1


def test_folders_of_others_stay(vectors, tmp_path):
    "A project has a folder of that name often enough"
    others = [tmp_path/'checkpoints'/'mine.pt', tmp_path/'checkpoints'/'step-1000'/'mine.bin',
              tmp_path/'embedder'/'notes.txt', tmp_path/'logs'/'mine.txt']
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('mine')
    for fresh in (True, False):
        train_small(vectors, tmp_path, fresh=fresh)
        assert all(path.read_text() == 'mine' for path in others)
    assert sorted(tmp_path.glob('checkpoints/*')) == [others[0], others[1].parent]


def test_an_index_is_as_asked_for_and_tells(folder, tmp_path):
    told, groups = [], tmp_path/'groups'
    for i in range(10):
        shutil.copytree(folder/f'{i}', groups/f'{i % 2}'/f'{i}')
    embedder = create_embedder('small_convnet', 8, 3, 12, 0, None)
    kept = KeptPixels(tmp_path/'pixels')
    time.sleep(.2)                          # what has only just been written is not kept
    asked = all_of(index_folder, embedder=embedder, folder=groups, out=tmp_path, kept=kept,
                   kind='hnsw', tell=lambda *done: told.append(done), depth=2, columns={},
                   images=folder, fresh=True, multi_label='|', levels='folders')
    with pytest.raises(TypeError, match='expected an option of folder'):
        index_folder(**asked)
    index_folder(**asked | dict(columns=None, images=None, multi_label=None))
    assert len(kept.new) == 50
    index = EmbeddingIndex.open(tmp_path)
    assert index.kind == 'hnsw' and told == [(50, 50)]
    assert {fact['label'] for fact in index.metadata()} == {f'{i % 2}/{i}' for i in range(10)}
    assert all(fact['above'] == [fact['label'][0]] for fact in index.metadata())


def test_files_are_embedded_as_many_at_once_as_asked_for(folder, tmp_path):
    embedder = create_embedder('small_convnet', 8, 3, 12, 0, None)
    files = sorted(folder.rglob('*.png'))[:6]
    (tmp_path/'broken.png').write_bytes(b'no picture')
    given = files[:3] + [tmp_path/'broken.png'] + files[3:]
    sizes, told, kept = [], [], KeptPixels(tmp_path/'pixels')
    time.sleep(.2)                          # what has only just been written is not kept
    embedder.body.register_forward_pre_hook(lambda body, x: sizes.append(len(x[0])))
    z, fine, skipped = embed_readable(**all_of(
        embed_readable, embedder=embedder, files=given, bs=2,
        tell=lambda *done: told.append(done), kept=kept))
    assert sizes == [2, 1, 2, 1] and told == [(2, 7), (4, 7), (6, 7), (7, 7)]
    assert fine == files and list(skipped) == [tmp_path/'broken.png'] and len(kept.new) == 6
    assert torch.allclose(z, embedder.embed(files, 2, progress=False))


@pytest.fixture
def groups(tmp_path):
    "Two groups of four classes of two pictures"
    draw = np.random.default_rng(0)
    for i in range(16):
        path = tmp_path/'photos'/f'group {i % 2}'/f'class {i % 8}'/f'{i}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (16, 16), 'uint8')).save(path)
    return tmp_path/'photos'


def test_what_a_depth_merges_or_leaves_out_is_said(groups):
    with pytest.warns(UserWarning, match='8 folders hold pictures; depth 1 makes 2 classes of them'):
        assert load_pictures(groups, 16, depth=1).classes == ['group 0', 'group 1']
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        images = load_pictures(groups, 16)
        assert load_pictures(groups, 16, depth=2).sha256() == images.sha256()
    assert len(images.classes) == 8 and images.classes[0] == 'group 0/class 0'
    for where in ('group 0', ''):
        shutil.copy(groups/'group 0'/'class 0'/'0.png', groups/where/'high.png')
    with pytest.warns(UserWarning, match='2 pictures lie above .*, group 0/high.png first') as said:
        assert len(load_pictures(groups, 16, depth=2)) == 16
    assert len(said) == 2 and 'leaves 1 out' in str(said[0].message)
    with pytest.raises(TypeError, match='depth: expected an option of digits'):
        load_pictures('digits', depth=2)


def test_the_depth_is_kept_with_the_training_and_the_network(groups, tmp_path):
    settings = dict(body='lenet', weights='none', epochs=1, classes=2, per_class=2, held_out=.4)
    images = load_pictures(groups, (16, 16), mode='L', depth=2)
    record = train_embedder(images, tmp_path/'model', **settings)
    assert record['settings']['depth'] == 2
    embedder = load_embedder(tmp_path/'model'/'embedder')
    assert embedder.facts['depth'] == 2
    shutil.copytree(groups/'group 0'/'class 0', groups/'group 0'/'class 0'/'deeper')
    shutil.copy(groups/'group 0'/'class 0'/'0.png', groups/'group 0'/'high.png')
    with pytest.warns(UserWarning, match='get no label, 1 in all'):
        index_folder(embedder, groups, tmp_path/'index')
    facts = EmbeddingIndex.open(tmp_path/'index').metadata()
    labels = {fact['path']: fact['label'] for fact in facts}
    assert labels['group 0/class 0/deeper/0.png'] == labels['group 0/class 0/0.png']
    assert set(labels.values()) == {*images.classes, ''}
    with pytest.warns(UserWarning):
        shallow = load_pictures(groups, (16, 16), mode='L', depth=1)
    with pytest.raises(ValueError, match='depth 2 there, 1 now'):
        train_embedder(shallow, tmp_path/'model', **settings)


def test_a_record_of_before_there_was_a_depth_goes_on(vectors, tmp_path):
    settings = dict(out=tmp_path/'model', epochs=1, classes=4, per_class=2)
    record = train_embedder(vectors, **settings)
    assert not {'depth', 'columns'} & set(record['settings'])
    (tmp_path/'model'/'training.json').write_text(json.dumps(record))
    vectors = vectors.subset(range(len(vectors)))
    for depth in (1, None):                                 # of folders; of what has none
        vectors.depth = depth
        assert train_embedder(vectors, **settings) == record
    vectors.depth = 2
    with pytest.raises(ValueError, match='with depth 1 there, 2 now'):
        train_embedder(vectors, **settings)
    vectors.depth = None
    record['settings']['depth'] = 1                         # as was once written for all data
    (tmp_path/'model'/'training.json').write_text(json.dumps(record))
    assert train_embedder(vectors, **settings) == record


def models():
    "Two networks of the same shape that place the same pictures elsewhere"
    return [create_embedder('small_convnet', 8, 3, 12, seed, None) for seed in (0, 1)]


def best_answers(out, folder):
    "How alike each picture is to itself, as the search sees it"
    index, embedder, root = folders.open_search(out)
    files = [root/fact['path'] for fact in index.metadata()]
    assert len(files) == 50 and root == folder.resolve()
    return index.search(embedder.embed(files, progress=False), 1)[0]


@pytest.mark.parametrize('stop', [KeyboardInterrupt, OSError])
def test_an_index_that_is_stopped_at_any_write_is_the_old_one(stop, folder, tmp_path, failing_write):
    "Never rows of one network beside the other: then the best similarities are about .5"
    old, new = models()
    done = []
    for failing in range(6):
        index_folder(old, folder, tmp_path)
        try:
            with failing_write(failing, stop(28, 'no space left')):
                done.append(index_folder(new, folder, tmp_path)['pictures'])
        except stop:
            assert folders.open_search(tmp_path)[1].sha256() == old.sha256()
        assert best_answers(tmp_path, folder).min() > .9999
    assert done == [50]                                 # five files, the sixth write never came
    assert folders.open_search(tmp_path)[1].sha256() == new.sha256()
    assert len(list(tmp_path.iterdir())) == 5


def test_rows_beside_the_network_of_others_are_refused(folder, tmp_path):
    for name, embedder in zip('ab', models()):
        index_folder(embedder, folder, tmp_path/name)
    facts, contents = _INDEX.read(tmp_path/'a')
    role = 'weights-of-embedder.safetensors'
    other = {role: _INDEX.read(tmp_path/'b')[1][role]}
    _INDEX.write(tmp_path/'a', facts, contents | other)
    with pytest.raises(ValueError, match='embedder: expected the one with hash'):
        search_folder(tmp_path/'a', folder/'0'/'0.png')
    same_weights = create_embedder('small_convnet', 8, 3, 16, 0, None)      # of larger pictures
    changed = facts['pictures'] | dict(network=same_weights.config)
    _INDEX.write(tmp_path/'a', facts | dict(pictures=changed), contents)
    with pytest.raises(ValueError, match='embedder: expected the one with hash'):
        search_folder(tmp_path/'a', folder/'0'/'0.png')
    without = {name: data for name, data in contents.items() if name != role}
    _INDEX.write(tmp_path/'a', facts, without)
    with pytest.raises(ValueError, match='an index with its embedder, got one without'):
        search_folder(tmp_path/'a', folder/'0'/'0.png')


def test_an_index_that_is_opened_changed_and_saved_keeps_its_network(folder, tmp_path):
    index_folder(models()[0], folder, tmp_path)
    index = EmbeddingIndex.open(tmp_path)
    index.remove(range(10))
    index.save(tmp_path)
    assert len(search_folder(tmp_path, folder/'0'/'0.png', k=50)[0]['found']) >= 39


@pytest.mark.long
def test_one_writer_at_a_time(vectors, folder, tmp_path):
    "In another process, as two commands are; the lock ends with it, also if it is killed"
    held = ('import sys, time; from dml_nb.support.storage import one_writer\n'
            'with one_writer(sys.argv[1]): print("held", flush=True); time.sleep(600)')
    embedder = models()[0]
    index_folder(embedder, folder, tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    other = subprocess.Popen([sys.executable, '-c', held, str(tmp_path), 'a b'],
                             stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == 'held\n'
        for write in (lambda: index_folder(embedder, folder, tmp_path),
                      lambda: train_embedder(vectors, tmp_path, fresh=True),
                      lambda: EmbeddingIndex(3).save(tmp_path),
                      lambda: save_embedder(embedder, tmp_path)):
            with pytest.raises(BlockingIOError) as refused:
                write()
            assert f'got process {other.pid} (' in str(refused.value)
            assert "'a b'" in str(refused.value) and '\n' not in str(refused.value)
        assert best_answers(tmp_path, folder).min() > .9999         # who reads is not kept waiting
    finally:
        other.kill()
        other.communicate()
    with one_writer(tmp_path):
        index_folder(embedder, folder, tmp_path)
    assert {path.name.partition('.')[2] for path in tmp_path.iterdir()} == {
        name.partition('.')[2] for name in before}


def train_small(vectors, out, **more):
    return train_embedder(vectors, out, classes=4, per_class=2, **dict(epochs=1) | more)


def test_a_finished_training_without_its_network_is_no_success(vectors, tmp_path):
    record = train_small(vectors, tmp_path/'a')
    train_small(vectors, tmp_path/'b', seed=1)
    embedder = tmp_path/'a'/'embedder'
    kept = shutil.copytree(embedder, tmp_path/'kept')
    shutil.rmtree(embedder)
    with pytest.raises(ValueError, match='a/embedder: .*found none; --fresh .* begins'):
        train_small(vectors, tmp_path/'a')
    shutil.copytree(tmp_path/'b'/'embedder', embedder)
    with pytest.raises(ValueError, match='the network of .*training.json, got another'):
        train_small(vectors, tmp_path/'a')
    shutil.rmtree(embedder)
    shutil.copytree(kept, embedder)
    assert train_small(vectors, tmp_path/'a')['embedder'] == record['embedder']
    next(embedder.glob('*.safetensors')).write_bytes(b'')
    with pytest.raises(ValueError, match='got a damaged or edited one.* --fresh'):
        train_small(vectors, tmp_path/'a')
    train_small(vectors, tmp_path/'a', fresh=True)
    assert load_embedder(embedder).sha256() == record['embedder']


def stops_at(count):
    "A `tell` that stops the training after so many of its steps"
    def tell(what, facts):
        steps.append(what)
        if steps.count('batch') == count:
            raise KeyboardInterrupt

    steps = []
    return tell


def test_each_code_that_trained_is_recorded_once(vectors, tmp_path, monkeypatch):
    def codes_after(code, steps):
        monkeypatch.setattr(everyday, 'code_hash', lambda: code)
        with pytest.raises(KeyboardInterrupt), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always')
            train_small(vectors, tmp_path, epochs=60, patience=60, tell=stops_at(steps))
        assert ['other code' in str(each.message) for each in said] == [True]
        return json.loads((tmp_path/'training.json').read_text())['code'].split(', ')[1:]

    with pytest.raises(KeyboardInterrupt):
        train_small(vectors, tmp_path, epochs=60, patience=60, tell=stops_at(30))
    found = [codes_after(code, 30) for code in ('b', 'c', 'b')]
    assert found == [['b'], ['b', 'c'], ['b', 'c']]


def test_a_training_that_lost_its_best_network_on_the_way_is_no_success(vectors, tmp_path):
    settings = dict(epochs=20, patience=20)
    with pytest.raises(KeyboardInterrupt):
        train_small(vectors, tmp_path, tell=stops_at(60), **settings)
    assert (tmp_path/'checkpoints').is_dir() and (tmp_path/'embedder').is_dir()
    shutil.rmtree(tmp_path/'embedder')
    with pytest.raises(ValueError, match='the best network so far, found none; --fresh'):
        train_small(vectors, tmp_path, **settings)


def test_what_a_stopped_fresh_start_left_counts_for_nothing(vectors, tmp_path, monkeypatch):
    "It is stopped after the record has gone and before the rest has"
    def stop(*given, **named):
        raise KeyboardInterrupt

    settings = dict(epochs=9, patience=9)
    with pytest.raises(KeyboardInterrupt):
        train_small(vectors, tmp_path, tell=stops_at(40), **settings)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, 'rmtree', stop)
        with pytest.raises(KeyboardInterrupt):
            train_small(vectors, tmp_path, fresh=True, **settings)
    assert list((tmp_path/'checkpoints').iterdir())
    seen = []

    def tell(what, facts):
        seen.append((what, facts))
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_small(vectors, tmp_path, tell=tell, **settings)
    assert seen[1][1]['done'] < .5                      # from the first step
    assert not (tmp_path/'embedder'/'embedder.json').exists()


class Scaled(torch.nn.Module):
    "A loss of somebody's own, which does not print its setting"
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.loss = MultiSimilarity()

    def forward(self, z, labels):
        return self.scale * self.loss(z, labels)


@pytest.mark.parametrize('losses', [
    (from_function(lambda S, pos, neg: (S * neg).sum(1) - (S * pos).sum(1)),
     from_function(lambda S, pos, neg: (S * neg).sum(1) - 5 * (S * pos).sum(1))),
    (Scaled(1.), Scaled(2.)),
    (Contrastive(), Contrastive(normalize=False)),
], ids=['function', 'module', 'normalize'])
def test_losses_that_print_the_same_are_not_the_same_training(losses, vectors, tmp_path):
    settings = dict(out=tmp_path, epochs=1, classes=4, per_class=2)
    record = train_embedder(vectors, loss=losses[0], **settings)
    again = train_embedder(vectors, loss=losses[0], **settings)
    assert again['embedder'] == record['embedder']
    with pytest.raises(ValueError, match='holds one with loss'):
        train_embedder(vectors, loss=losses[1], **settings)


def test_a_damaged_record_is_named_when_it_should_say_what_was_held_back(vectors, tmp_path):
    for text in ('{}', '[', '[]', '{"settings": {"data": 3}}'):
        (tmp_path/'training.json').write_text(text)
        with pytest.raises(ValueError, match='training.json: expected a record of training'):
            held_back_of(tmp_path, vectors)
