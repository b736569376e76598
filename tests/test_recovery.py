"""Training killed at random moments, also while a checkpoint is written, ends with the same weights
as training that nobody disturbed."""
import gc
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fastai.callback.core import Callback
from fastai.callback.tracker import EarlyStoppingCallback, SaveModelCallback
from fastai.data.core import DataLoaders, TfmdDL
from fastai.learner import Learner
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dml_nb.support import storage
from dml_nb.training import recovery
from dml_nb.support.storage import write_atomically
from dml_nb.data import load_data
from dml_nb.training import distributed, metric_dataloaders, metric_learner
from dml_nb.data import shift_images
from dml_nb.losses import MultiSimilarity, SemiHard, Triplet
from dml_nb.training import Checkpoints, CrossBatchMemory
from dml_nb.training.recovery import finished_folders, read_state, remove_folder, tracker_states

served = multiprocessing.get_context('forkserver') if hasattr(os, 'fork') else None
needs_fork = pytest.mark.skipif(served is None, reason='this system cannot fork')


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
    process = served.Process(target=quiet, args=(make, tmp_path))      # also warms nothing up here
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
        process = served.Process(target=quiet, args=(make, tmp_path, tmp_path/'run', 1))
        process.start()
        if kills < 8:
            process.join(draw.uniform(.2, 1.2) * whole)
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        process.join()
        folders = finished_folders(tmp_path/'run')
        steps |= {int(folder.name[5:]) for folder in folders}
        for folder in folders:
            read_state(folder)                          # whatever is there is whole
        if process.exitcode == 0 and kills:
            break
        if process.exitcode == 0:                       # it was too fast: anew, and earlier
            shutil.rmtree(tmp_path/'run')
            whole *= .7
    assert process.exitcode == 0 and kills and len(steps) > 1, f'seed {seed}'
    assert same(weights(tmp_path), expected), f'seed {seed}'


def test_trackers_go_on_where_they_were(tmp_path):
    """The best epoch, not the last, is loaded in the end, also when it lies before the
    interruption, and patience counts no epoch twice"""
    class Dies(SaveModelCallback):
        order = SaveModelCallback.order + 40

        def after_epoch(self):
            if self.epoch == 2:
                raise KeyboardInterrupt

        def after_fit(self):
            pass

    def watching():
        best = SaveModelCallback(monitor='recall@1', fname='best')
        # no epoch is better by 9 than the first: it waits three epochs, one less than it would
        patient = EarlyStoppingCallback(monitor='recall@1', min_delta=9., patience=4)
        return [best, patient]

    (tmp_path/'a').mkdir()
    (tmp_path/'b').mkdir()
    undisturbed = train(learner, tmp_path/'a', cbs=watching(), epochs=4)
    with pytest.raises(KeyboardInterrupt):
        train(learner, tmp_path/'b', tmp_path/'run', 5, [*watching(), Dies('recall@1')], epochs=4)
    resumed = train(learner, tmp_path/'b', tmp_path/'run', 5, watching(), epochs=4)
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


def test_a_checkpoint_whose_removal_was_cut_off_is_none(tmp_path, monkeypatch):
    train(learner, tmp_path, tmp_path/'run', 4, epochs=1)
    *before, newest = finished_folders(tmp_path/'run')

    def cut_off(*given, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(recovery.shutil, 'rmtree', cut_off)
        with pytest.raises(KeyboardInterrupt):
            remove_folder(newest)
    assert before and finished_folders(tmp_path/'run') == before and not newest.exists()


def test_patience_goes_on_where_it_was():
    stopper = EarlyStoppingCallback(patience=3)
    stopper.best, stopper.new_best, stopper.wait = .5, False, 2
    found = tracker_states(SimpleNamespace(cbs=[stopper]))
    assert found == {stopper.name: dict(best=.5, new_best=False, wait=2)}


# Several processes. Each rank draws its own numbers: dropout from torch, noise from NumPy and Python.

class Noise(Callback):
    "Numbers of this rank, of all its generators, in every batch"
    def before_batch(self):
        if self.training:
            self.learn.xb = (self.x + .1 * np.random.rand() + .1 * random.random(),)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(.2),
                         nn.Linear(32, 8))


def by_hand(path, rank, world):
    "DistributedDataParallel given to the Learner, shards of 60 and 40 rows a batch"
    net = DistributedDataParallel(network())
    torch.manual_seed(rank)
    rows, bs = (range(240), 60) if rank == 0 else (range(240, 400), 40)
    digits = load_data('digits')
    dls = DataLoaders(TfmdDL(digits.subset(rows), bs=bs, shuffle=True, num_workers=0),
                      TfmdDL(digits.subset(range(100)), bs=50, num_workers=0),
                      path=path, device='cpu')
    dls.train.rng = random.Random(rank)
    memory = CrossBatchMemory(MultiSimilarity(), size=150)
    return Learner(dls, net, distributed(memory), cbs=Noise()), nullcontext()


def by_three(path, rank, world):
    "Sums of three depend on their order, which DistributedDataParallel then keeps"
    net = DistributedDataParallel(network(), find_unused_parameters=True)
    torch.manual_seed(rank)
    few = load_data('digits').subset(range(450))
    dls = metric_dataloaders(few, few, 5, 5, device='cpu', path=path, rank=rank, world=world)
    return Learner(dls, net, distributed(MultiSimilarity()), cbs=Noise()), nullcontext()


def shards(path, rank, world):
    "fastai's context around shards of our sampler, a loss that draws"
    from fastai.distributed import DistributedTrainer

    few = load_data('digits').subset(range(400))
    dls = metric_dataloaders(few, few, 5, 5, augment=shift_images, device='cpu', path=path,
                             rank=rank, world=world)
    loss = distributed(Triplet(select=SemiHard(generator=torch.Generator().manual_seed(1))))
    learn = metric_learner(dls, network(), loss, dim=8, cbs=Noise())
    torch.manual_seed(rank)
    DistributedTrainer._wrap_dl = lambda self, dl: dl   # the loaders are shards already
    return learn, learn.distrib_ctx(sync_bn=False, cpu=True)


def split(path, rank, world):
    "fastai's context and its own splitting of a loader, and a loss that each rank has for itself"
    from fastai.distributed import DistributedDL

    def on_cpu(self, numbers, rank):
        numbers = torch.tensor(numbers)
        dist.broadcast(numbers, rank)
        return numbers.tolist()

    DistributedDL._broadcast = on_cpu                   # fastai's asks for a GPU
    learn = shuffled(path)
    learn.model, learn.loss_func = network(), Triplet(
        select=SemiHard(generator=torch.Generator().manual_seed(rank)))
    learn.add_cb(Noise())
    torch.manual_seed(rank)
    return learn, learn.distrib_ctx(sync_bn=False, cpu=True)


def one_of_several(rank, world, make, path, store, folder, every, keep, dies):
    "What one rank does; an error is written down"
    sys.stdout = open(os.devnull, 'w')
    sys.stderr = open(path/f'{rank}.log', 'w')
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world),
                      MASTER_ADDR='127.0.0.1', MASTER_PORT='0')     # accelerate asks for them
    np.random.seed(rank)
    random.seed(rank)
    dist.init_process_group('gloo', init_method=f'file://{store}', rank=rank, world_size=world,
                            timeout=timedelta(seconds=60))
    if dies is not None:
        die_writing(*dies)
    learn, context = make(path, rank, world)
    cbs = [] if folder is None else [Checkpoints(folder, every=every[rank], keep=keep)]
    try:
        with context, learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(2, 1e-2, cbs=cbs)
    except Exception as error:
        (path/f'{rank}.error').write_text(f'{type(error).__name__}: {error}')
        raise
    state = learn.model.state_dict() | {'losses': torch.stack(list(learn.recorder.losses))}
    save_file({k: v.contiguous() for k, v in state.items()}, path/f'end{rank}.safetensors')
    dist.barrier()
    del learn, context, cbs, state
    gc.collect()                                        # a network left holds the group's threads
    dist.destroy_process_group()


def die_writing(step, name, count, part):
    """SIGKILL when a file whose name has `name` in it is written in this step for the count-th
    time: in the middle of it for part 'half', after it for 'whole'"""
    seen = []

    def deadly(path, data):
        if path.parent.name == f'step-{step:08d}' and name in path.name:
            seen.append(path)
            if len(seen) == count:
                die_in(path, data)
        write_atomically(path, data)

    def die_in(path, data):
        if part == 'half':
            path.with_name(f'.{path.name}.{os.getpid()}').write_bytes(data[:len(data) // 2])
        else:
            write_atomically(path, data)
        os.kill(os.getpid(), signal.SIGKILL)

    recovery.write_atomically = storage.write_atomically = deadly


class Processes:
    "Ranks that train together"
    def __init__(self, make, path, folder=None, every=(1, 1, 1), keep=3, dies=None, world=2):
        for file in path.glob('*.error'):
            file.unlink()
        store = path/f'store{time.time_ns()}'
        self.ranks = [served.Process(target=one_of_several, args=(
            rank, world, make, path, store, folder, every, keep, dies)) for rank in range(world)]
        for process in self.ranks:
            process.start()

    def wait(self):
        "Exit codes; a rank that waits for one that was killed gets an error of gloo's"
        for process in self.ranks:
            process.join(500)                           # against hanging
            if process.exitcode is None:
                process.kill()
                process.join()
        return [process.exitcode for process in self.ranks]


def ends(path):
    return [load_file(file) for file in sorted(path.glob('end*.safetensors'))]


def undisturbed(make, path):
    path.mkdir()
    assert Processes(make, path).wait() == [0, 0], (path/'0.log').read_text()[-3000:]
    first, second = ends(path)
    for name in first:
        if 'running' not in name and name != 'losses':
            assert first[name].equal(second[name]), name
    return [first, second]


def check_whole(folder):
    for step in finished_folders(folder):
        for rank in (0, 1):
            read_state(step, rank, 2)


def check_ends(path, expected, say=''):
    for found, wanted in zip(ends(path), expected, strict=True):
        assert same(found, wanted), say


@needs_fork
@pytest.mark.long
@pytest.mark.parametrize('make', [by_hand, shards, split], ids=lambda make: make.__name__)
def test_killed_ranks_end_with_the_same_weights(make, tmp_path):
    if make is not by_hand:
        pytest.importorskip('accelerate', reason='fastai trains on several processes with it')
    warm = served.Process(target=int)                   # the server has read its modules by its end
    warm.start()
    warm.join()
    begin = time.perf_counter()
    expected = undisturbed(make, tmp_path/'whole')
    whole = time.perf_counter() - begin
    path = tmp_path/'killed'
    path.mkdir()
    seed = time.time_ns()
    draw, kills, steps = random.Random(seed), 0, set()
    for attempt in range(60):
        processes = Processes(make, path, path/'run')
        if kills < 6:
            processes.ranks[0].join(draw.uniform(.4, 1.2) * whole)
            for rank in draw.choice([[0, 1], [1, 0], [0], [1]]):
                if processes.ranks[rank].exitcode is None:
                    os.kill(processes.ranks[rank].pid, signal.SIGKILL)
        codes = processes.wait()
        kills += -signal.SIGKILL in codes
        steps |= {int(folder.name[5:]) for folder in finished_folders(path/'run')}
        check_whole(path/'run')
        if codes == [0, 0] and kills:
            break
        if codes == [0, 0]:                             # they were too fast: anew, and earlier
            shutil.rmtree(path/'run')
            whole *= .7
    assert codes == [0, 0] and kills and len(steps) > 1, f'seed {seed}'
    check_ends(path, expected, f'seed {seed}')


@pytest.fixture(scope='module')
def calm(tmp_path_factory):
    "Where each rank of an undisturbed training ends, of 8 steps"
    return undisturbed(by_hand, tmp_path_factory.mktemp('calm')/'whole')


@needs_fork
@pytest.mark.long
@pytest.mark.parametrize('dies, newest', [
    ((5, 'rank-1', 1, 'half'), 4), ((5, 'rank-1', 1, 'whole'), 4),
    ((5, 'tensors', 1, 'half'), 4), ((5, 'tensors', 1, 'whole'), 4),
    ((5, 'index.json', 1, 'half'), 4), ((5, 'index.json', 1, 'whole'), 5),
    ((8, 'rank-1', 2, 'whole'), 8), ((8, 'index.json', 2, 'half'), 8),
], ids=str)
def test_killed_while_it_writes(dies, newest, calm, tmp_path):
    "One rank dies between any two files; the only other checkpoint is that of the step before"
    run = tmp_path/'run'
    codes = Processes(by_hand, tmp_path, run, keep=1, dies=dies).wait()
    assert -signal.SIGKILL in codes and 0 not in codes
    assert int(finished_folders(run)[-1].name[5:]) == newest
    check_whole(run)
    assert Processes(by_hand, tmp_path, run, keep=1).wait() == [0, 0]
    check_ends(tmp_path, calm)
    folder, = run.iterdir()                             # and nothing that was left half done
    assert len([file for file in folder.iterdir() if file.name != '.lock']) == 3


@pytest.fixture(scope='module')
def written(calm, tmp_path_factory):
    "The checkpoints of two processes"
    path = tmp_path_factory.mktemp('written')
    assert Processes(by_hand, path, path/'run').wait() == [0, 0]
    check_ends(path, calm)
    return path/'run'


def said(path):
    return [(path/f'{rank}.error').read_text() for rank in (0, 1)]


@needs_fork
@pytest.mark.long
def test_three_ranks_go_on_too(tmp_path):
    (tmp_path/'whole').mkdir()
    assert Processes(by_three, tmp_path/'whole', world=3).wait() == [0, 0, 0]
    dies = (5, 'rank-2', 1, 'half')
    assert -signal.SIGKILL in Processes(
        by_three, tmp_path, tmp_path/'run', dies=dies, world=3).wait()
    assert Processes(by_three, tmp_path, tmp_path/'run', world=3).wait() == [0, 0, 0]
    check_ends(tmp_path, ends(tmp_path/'whole'))


@needs_fork
@pytest.mark.long
@pytest.mark.parametrize('damage', ['cut', 'edit', 'missing', 'common'])
def test_a_damaged_part_is_refused_by_all(damage, calm, written, tmp_path):
    run = tmp_path/'run'
    shutil.copytree(written, run)
    newest = finished_folders(run)[-1]
    file, = newest.glob('*.tensors.safetensors' if damage == 'common' else 'rank-1.*')
    data = file.read_bytes()
    if damage == 'missing':
        file.unlink()
    else:
        file.write_bytes(data[:-3] if damage == 'cut' else data[:-1] + bytes([data[-1] ^ 1]))
    assert 0 not in Processes(by_hand, tmp_path, run).wait()
    where = 'ranks 0, 1 of 2' if damage == 'common' else 'rank 1 of 2'
    for error in said(tmp_path):
        assert error.startswith('ValueError') and file.name in error and where in error
        assert f'remove {newest}' in error
    shutil.rmtree(newest)
    assert Processes(by_hand, tmp_path, run).wait() == [0, 0]
    check_ends(tmp_path, calm)


@needs_fork
@pytest.mark.long
def test_as_many_processes_as_wrote_are_wanted(written, tmp_path):
    with pytest.raises(ValueError, match='processes: expected 2, as many as wrote .*, got 1; start 2'):
        train(shuffled, tmp_path, written)
    train(shuffled, tmp_path, tmp_path/'alone', every=4)
    assert 0 not in Processes(by_hand, tmp_path, tmp_path/'alone').wait()
    for error in said(tmp_path):
        assert 'processes: expected 1' in error and 'got 2; start 1' in error


@needs_fork
@pytest.mark.long
def test_ranks_that_would_write_at_other_steps_are_refused(tmp_path):
    assert 0 not in Processes(by_hand, tmp_path, tmp_path/'run', every=(2, 3)).wait()
    for error in said(tmp_path):
        assert 'every=2' in error and 'every=3' in error
    assert not (tmp_path/'run').exists()


@needs_fork
@pytest.mark.long
def test_what_ranks_share_is_written_once(written):
    folder = finished_folders(written)[-1]
    common, = folder.glob('*.tensors.safetensors')
    own, = folder.glob('rank-1.*')
    of_all, of_one = load_file(common), load_file(own)
    assert '.parts.model.1.weight' in of_all and '.random.torch' in of_one
    shared = '.parts.optimiser', '.parts.loss', '.parts.model.1', '.recorder'
    assert not [name for name in of_one if name.startswith(shared)]


def test_processes_without_a_group_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(ValueError, match='expected a process group of 2, got none'):
        train(learner, tmp_path, tmp_path/'run')
    assert not (tmp_path/'run').exists()
