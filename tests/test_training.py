"""What training promises where a page cannot show it: with worker processes, other versions, and a
disk that is full."""
import errno
import os

import pytest
import torch
from fastai.callback.progress import ProgressCallback

from dml_nb import experiment
from dml_nb.data import load_data, split_by_class
from dml_nb.embedding import create_embedder, load_embedder, save_embedder
from dml_nb.learner import metric_dataloaders, metric_learner, shift_images


@pytest.fixture(autouse=True)
def one_thread():
    "Pictures this small gain nothing from a second thread"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
    recipe = experiment.Recipe()
    key = experiment.run_key(recipe, 'data')
    now = getattr(experiment, facts)()
    monkeypatch.setattr(experiment, facts, lambda: dict(now))
    assert experiment.run_key(recipe, 'data') == key
    name = 'torch' if facts == 'versions' else 'cpu'
    monkeypatch.setattr(experiment, facts, lambda: now | {name: 'another'})
    assert experiment.run_key(recipe, 'data') != key


def test_all_recipes_are_checked_before_the_first_training(parts, monkeypatch, tmp_path):
    def trained(*args):
        raise AssertionError('a training began')
    monkeypatch.setattr(experiment, 'run', trained)
    fits, misfits = experiment.Recipe(), experiment.Recipe(split='class', classes=6)
    with pytest.raises(ValueError, match='at most 5'):
        experiment.run_all([fits, fits, misfits], load_data('digits'), tmp_path)


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
