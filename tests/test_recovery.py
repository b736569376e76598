"""Training killed at random moments, also while a checkpoint is written, ends with the same weights
as training that nobody disturbed."""
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fastai.callback.tracker import EarlyStoppingCallback, SaveModelCallback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from safetensors.torch import load_file, save_file
from torch import nn

from dml_nb.data import load_data
from dml_nb.learner import metric_dataloaders, metric_learner, shift_images
from dml_nb.losses import MultiSimilarity, SemiHard, Triplet
from dml_nb.recovery import Checkpoints, finished_folders, read_state, tracker_states

forked = multiprocessing.get_context('fork') if hasattr(os, 'fork') else None
needs_fork = pytest.mark.skipif(forked is None, reason='this system cannot fork')


def learner(path):
    "Dropout, a loss that draws, batches that are shifted: all that is random in one training"
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    few = load_data('digits').subset(range(400))
    dls = metric_dataloaders(few, few, 10, 5, augment=shift_images, device='cpu', path=path)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(.2))
    loss = Triplet(select=SemiHard(generator=torch.Generator().manual_seed(1)))
    return metric_learner(dls, body, loss, dim=8)


def shuffled(path):
    torch.manual_seed(0)
    few = load_data('digits').subset(range(400))
    dls = DataLoaders.from_dsets(
        few, few, bs=50, shuffle=True, num_workers=0, device='cpu', path=path)
    dls.train.rng = random.Random(5)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(.2), nn.Linear(32, 8))
    return Learner(dls, body, MultiSimilarity())


def train(make, path, folder=None, every=1, cbs=(), epochs=2):
    torch.set_num_threads(1)
    learn = make(path)
    cbs = list(cbs) + ([] if folder is None else [Checkpoints(folder, every=every)])
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(epochs, 1e-2, cbs=cbs)
    save_file({k: v.contiguous() for k, v in learn.model.state_dict().items()},
              Path(path)/'end.safetensors')
    return learn


def weights(path):
    return load_file(Path(path)/'end.safetensors')


def same(a, b):
    return a.keys() == b.keys() and all(a[k].equal(b[k]) for k in a)


def quiet(*args):
    sys.stdout = open(os.devnull, 'w')
    train(*args)


@needs_fork
@pytest.mark.long
@pytest.mark.parametrize('make', [learner, shuffled], ids=lambda make: make.__name__)
def test_killed_training_ends_with_the_same_weights(make, tmp_path):
    process = forked.Process(target=quiet, args=(make, tmp_path))      # also warms nothing up here
    begin = time.perf_counter()
    process.start()
    process.join()
    whole = time.perf_counter() - begin
    assert process.exitcode == 0
    expected = weights(tmp_path)
    (tmp_path/'end.safetensors').unlink()
    seed = time.time_ns()                               # another at each run, and said if it fails
    draw, kills, steps = random.Random(seed), 0, set()
    for attempt in range(60):
        process = forked.Process(target=quiet, args=(make, tmp_path, tmp_path/'run', 1))
        process.start()
        if kills < 8:
            process.join(draw.uniform(.2, .8 if kills == 0 else 1.2) * whole)
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        process.join()
        folders = finished_folders(tmp_path/'run')
        steps |= {int(folder.name[5:]) for folder in folders}
        for folder in folders:
            read_state(folder)                          # whatever is there is whole
        if process.exitcode == 0:
            break
    assert process.exitcode == 0 and kills and len(steps) > 1, f'seed {seed}'
    assert same(weights(tmp_path), expected), f'seed {seed}'


def test_trackers_go_on_where_they_were(tmp_path):
    "The best epoch, not the last, is loaded in the end, also when it lies before the interruption"
    class Dies(SaveModelCallback):
        order = SaveModelCallback.order + 40

        def after_epoch(self):
            if self.epoch == 2:
                raise KeyboardInterrupt

        def after_fit(self):
            pass

    def best():
        return SaveModelCallback(monitor='recall@1', fname='best')

    (tmp_path/'a').mkdir()
    (tmp_path/'b').mkdir()
    undisturbed = train(learner, tmp_path/'a', cbs=[best()], epochs=4)
    with pytest.raises(KeyboardInterrupt):
        train(learner, tmp_path/'b', tmp_path/'run', 5, [best(), Dies('recall@1')], epochs=4)
    resumed = train(learner, tmp_path/'b', tmp_path/'run', 5, [best()], epochs=4)
    assert same(weights(tmp_path/'a'), weights(tmp_path/'b'))
    assert resumed.recorder.values == undisturbed.recorder.values


@pytest.mark.long
def test_workers_read_the_same_batches(tmp_path):
    def make(path):
        torch.manual_seed(0)
        few = load_data('digits').subset(range(400))
        dls = metric_dataloaders(few, few, 10, 5, device='cpu', path=path, num_workers=1)
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(.2))
        return metric_learner(dls, body, MultiSimilarity(), dim=8)

    class Dies(SaveModelCallback):
        order = 99

        def after_batch(self):
            if self.training and self.train_iter == 5:
                raise KeyboardInterrupt

        def after_epoch(self):
            pass

        after_fit = after_epoch

    (tmp_path/'a').mkdir()
    train(make, tmp_path/'a', epochs=1)
    with pytest.raises(KeyboardInterrupt):
        train(make, tmp_path/'a', tmp_path/'run', 2, [Dies('recall@1')], epochs=1)
    expected = weights(tmp_path/'a')
    train(make, tmp_path/'a', tmp_path/'run', 2, epochs=1)
    assert same(weights(tmp_path/'a'), expected)


def test_a_search_for_a_rate_writes_nothing(tmp_path):
    learn = learner(tmp_path)
    learn.add_cb(Checkpoints(tmp_path/'run', every=1))
    with learn.no_bar(), learn.no_logging():
        learn.lr_find(num_it=12, show_plot=False)
        learn.get_preds()
    assert not (tmp_path/'run').exists()


@pytest.mark.parametrize('damage', ['cut', 'edit', 'pickle', 'manifest'])
def test_a_damaged_checkpoint_is_refused_by_name(damage, tmp_path):
    train(learner, tmp_path, tmp_path/'run', 4, epochs=1)
    newest = finished_folders(tmp_path/'run')[-1]
    file, = newest.glob('*.safetensors')
    data = file.read_bytes()
    if damage == 'cut':
        file.write_bytes(data[:-3])
    elif damage == 'edit':
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == 'pickle':
        torch.save({'model': torch.zeros(3)}, file)
    else:
        file = newest/'index.json'
        file.write_text(file.read_text().replace('"done": true', '"done": false'))
    with pytest.raises(ValueError, match=f'{file.name}.*remove .*{newest.name}'):
        train(learner, tmp_path, tmp_path/'run', 4, epochs=1)


def test_the_last_few_are_kept(tmp_path):
    learn = learner(tmp_path)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(2, 1e-2, cbs=[Checkpoints(tmp_path/'run', every=3, keep=2)])
    kept = [int(folder.name[5:]) for folder in finished_folders(tmp_path/'run')]
    total = learn.train_iter
    assert kept == sorted({total - total % 3 if total % 3 else total - 3, total})


def test_patience_goes_on_where_it_was():
    stopper = EarlyStoppingCallback(patience=3)
    stopper.best, stopper.new_best, stopper.wait = .5, False, 2
    found = tracker_states(SimpleNamespace(cbs=[stopper]))
    assert found == {stopper.name: dict(best=.5, new_best=False, wait=2)}
