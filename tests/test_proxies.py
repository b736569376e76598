"""Proxies in training: their classes, their learning rate, a kill, several processes."""
import os
import signal

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback
from fastai.callback.schedule import fit_one_cycle  # noqa: F401, gives Learners the method
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dml_nb import losses
from dml_nb.experiments import Recipe, run
from dml_nb.experiments.recipe import make_loss
from dml_nb.data import load_data, split_by_class, split_by_image
from dml_nb.training import distributed, metric_dataloaders, metric_learner
from dml_nb.losses import margins, proxies
from dml_nb.losses.multisimilarity import MultiSimilarity
from dml_nb.training import Checkpoints, CrossBatchMemory
from dml_nb.training.recovery import finished_folders

KINDS = ['ProxyNCA', 'NormalizedSoftmax', 'CosFace', 'ArcFace', 'SubCenterArcFace', 'SoftTriple',
         'ProxyAnchor']


def make(kind, classes, dim, **options):
    if kind == 'MultiSimilarity':
        return proxies.Proxies(MultiSimilarity(), classes, dim, centers=2, anchors='proxies')
    if kind == 'sum':
        return proxies.ArcFace(classes, dim) + .5 * MultiSimilarity()
    return getattr(proxies, kind)(classes, dim, **options)


def test_a_loss_on_proxies_learns_its_own_numbers_too():
    "A margin loss with a boundary for each class is asked by its own `forward`"
    torch.manual_seed(0)
    loss, z = proxies.Proxies(losses.MarginLoss(classes=4), 4, 6), torch.randn(8, 6)
    y = torch.arange(8) // 2
    loss(z, y).backward()
    alone = losses.MarginLoss(classes=4)
    alone(z, y, loss.weight.detach(), torch.arange(4)).backward()
    assert alone.boundaries.grad.abs().max() > .01
    torch.testing.assert_close(loss.loss.boundaries.grad, alone.boundaries.grad)


def learner(kind='ArcFace', split=split_by_class, classes=5, seed=0, cbs=(), **options):
    digits = load_data('digits')
    train, valid = [digits.subset(part) for part in
                    (split(digits.labels) if split is split_by_class else
                     split(digits.labels, .2, 0))]
    torch.manual_seed(seed)
    dls = metric_dataloaders(train, valid, 5, 6, device='cpu', seed=seed)
    loss = make(kind, classes, 16)
    learn = metric_learner(dls, 'small_convnet', loss, 16, seed=seed, cbs=cbs, **options)
    return learn.remove_cb(ProgressCallback)


def fit(learn, epochs=1, lr=1e-3):
    with learn.no_logging():
        learn.fit_one_cycle(epochs, lr)
    return learn


@pytest.mark.usefixtures('one_thread')
@pytest.mark.parametrize('kind', KINDS)
def test_they_train_on_classes_of_any_number(kind):
    learn = learner(kind)
    before = learn.loss_func.weight.detach().clone()
    fit(learn)
    assert ((learn.loss_func.weight - before).abs().sum(1) > 0).all()
    valid_loss, recall = learn.recorder.values[-1][1:3]
    assert valid_loss == 0 and recall > .5, 'unseen classes are charged nothing'
    assert len(learn.get_preds(with_loss=True)[2]) == len(learn.dls.valid_ds)


@pytest.mark.usefixtures('one_thread')
def test_a_sum_trains():
    learn = learner('sum')
    arc = learn.loss_func.losses[0]
    before = arc.weight.detach().clone()
    fit(learn)
    assert arc.class_numbers.tolist() == [0, 1, 2, 3, 4] and not torch.equal(arc.weight, before)
    assert len(learn.get_preds(with_loss=True)[2]) == len(learn.dls.valid_ds)


@pytest.mark.usefixtures('one_thread')
def test_they_learn_the_digits():
    learn = fit(learner('ArcFace', split_by_image, 10, loss_lr=10.), 2)
    z, labels = learn.embed()
    nearest = (z @ nn.functional.normalize(learn.loss_func.weight).detach().T).argmax(1)
    assert (nearest == labels).double().mean() > .9
    assert 0 < learn.recorder.values[-1][1] < learn.recorder.values[0][1]


def test_class_numbers_are_met_and_travel():
    digits = load_data('digits')
    odd = digits.subset(digits.labels % 2 == 1)
    dls = metric_dataloaders(odd, odd, 5, 4, device='cpu')
    loss = proxies.ProxyAnchor(6, 16)
    metric_learner(dls, 'small_convnet', loss, 16)
    found = loss.rows_of([9, 1, 0, 5, -1], 5, 'cpu')
    assert found.tolist() == [4, 0, -1, 2, -1]
    other = proxies.ProxyAnchor(6, 16)
    other.load_state_dict(loss.state_dict())
    z, labels = torch.randn(8, 16), torch.tensor([1, 3, 5, 7, 9, 9, 0, -1])
    assert other(z, labels) == loss(z, labels) > 0
    with pytest.raises(ValueError, match='classes: expected at least the 5 classes of training'):
        metric_learner(dls, 'small_convnet', proxies.ArcFace(4, 16), 16)


@pytest.mark.usefixtures('one_thread')
def test_a_learning_rate_of_their_own():
    class Rates(Callback):
        def before_fit(self):
            self.found = []

        def after_step(self):
            self.found.append([hyper['lr'] for hyper in self.opt.hypers])

    learn = learner(loss_lr=50., cbs=Rates)
    fit(learn, 1, slice(1e-5, 1e-3))
    for body, head, of_loss in learn.rates.found:
        assert of_loss == pytest.approx(50 * head) and head == pytest.approx(100 * body, rel=1e-3)
    assert max(rate for *_, rate in learn.rates.found) == pytest.approx(.05, rel=.01)
    learn.freeze()
    filters = [p for p in learn.model.body.parameters() if p.ndim == 4]
    assert learn.loss_func.weight.requires_grad and not any(p.requires_grad for p in filters)
    with pytest.raises(ValueError, match='loss_lr'):
        learner(loss_lr=0.)


class Killed(Callback):
    "Ends the process at a step, as kill -9 does"
    order = 95

    def __init__(self, step):
        self.step = step

    def after_batch(self):
        if self.training and self.train_iter == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train_to_the_end(folder, step):
    torch.set_num_threads(1)
    cbs = [Checkpoints(folder, every=4)] + ([Killed(step)] if step else [])
    learn = fit(learner('ProxyAnchor', loss_lr=20., cbs=cbs), 2)
    state = {'loss': learn.loss_func.state_dict(), 'model': learn.model.state_dict(),
             'moments': [dict(learn.opt.state[p]) for p in learn.opt.param_lists[-1]]}
    torch.save(state, folder/'end.pt')


def in_a_process(folder, step=None):
    folder.mkdir(exist_ok=True)
    process = mp.get_context('spawn').Process(target=train_to_the_end, args=(folder, step))
    process.start()
    process.join(500)                                   # against hanging
    return process.exitcode


@pytest.mark.long
def test_a_killed_training_goes_on_with_its_proxies(tmp_path):
    assert in_a_process(tmp_path/'whole') == 0
    assert in_a_process(tmp_path/'cut', 27) == -signal.SIGKILL
    assert finished_folders(tmp_path/'cut') and not (tmp_path/'cut'/'end.pt').exists()
    assert in_a_process(tmp_path/'cut') == 0
    whole, again = [torch.load(tmp_path/name/'end.pt') for name in ('whole', 'cut')]
    assert set(whole['loss']) == {'weight', 'class_numbers'}
    for part in ('loss', 'model'):
        assert all(torch.equal(whole[part][key], again[part][key]) for key in whole[part]), part
    assert torch.equal(whole['moments'][0]['sqr_avg'], again['moments'][0]['sqr_avg'])


def check_on_a_rank(rank, kind):
    "Rows on two ranks, some of them unlabelled or of no known class"
    g = torch.Generator().manual_seed(0)
    x = torch.randn(19, 5, generator=g, dtype=torch.float64)
    labels = torch.randint(-1, 8, (19,), generator=g)
    torch.manual_seed(1)
    net, loss = nn.Linear(5, 8).double(), make(kind, 7, 8).double()
    if kind == 'SoftTriple':
        loss.tau = .2
    value = loss(net(x), labels)
    value.backward()
    learned = [*net.parameters(), *loss.parameters()]
    wanted = [p.grad.clone() for p in learned]
    for p in learned:
        p.grad = None
    rows = slice(0, 13) if rank == 0 else slice(13, None)
    apart = DistributedDataParallel(net)
    found = distributed(loss)(apart(x[rows]), labels[rows])
    found.backward()
    torch.testing.assert_close(found, value, rtol=1e-10, atol=1e-12)
    for p, right in zip(learned, wanted):
        torch.testing.assert_close(p.grad, right, rtol=1e-9, atol=1e-12, msg=kind)
    both = [torch.empty_like(p) for _ in range(2)]
    dist.all_gather(both, p.grad)
    assert torch.equal(*both), f'{kind}: the proxies of the ranks would part'


def on_a_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', f'file://{folder}/meet', rank=rank, world_size=2)
    try:
        for kind in [*KINDS, 'MultiSimilarity', 'sum']:
            check_on_a_rank(rank, kind)
    finally:
        dist.destroy_process_group()


@pytest.mark.long
def test_two_processes_give_the_gradients_of_one(tmp_path):
    mp.spawn(on_a_rank, (tmp_path,), nprocs=2)


@pytest.mark.usefixtures('one_thread')
def test_distributed_proxies_meet_their_classes():
    digits = load_data('digits')
    even = digits.subset(digits.labels % 2 == 0)
    dls = metric_dataloaders(even, even, 5, 4, device='cpu')
    loss = distributed(proxies.ArcFace(5, 16))
    learn = metric_learner(dls, 'small_convnet', loss, 16).remove_cb(ProgressCallback)
    assert loss.class_numbers.tolist() == [0, 2, 4, 6, 8]
    before = loss.weight.detach().clone()
    fit(learn)
    assert not torch.equal(loss.weight, before)


@pytest.mark.usefixtures('one_thread')
def test_recipes_fill_in_classes_and_dimension():
    digits = load_data('digits')
    shared = dict(epochs=1, dim=8, split='class', classes=5)
    slow, fast, again = [
        run(Recipe('arcface', dict(scale=16., loss_lr=rate), **shared), digits, device='cpu')
        for rate in (1., 30., 30.)]
    assert fast['trained'] == again['trained'] != slow['trained'] != slow['untrained']
    assert fast['untrained'] == slow['untrained']
    with pytest.raises(ValueError, match='loss_lr'):
        Recipe('arcface', dict(loss_lr=0.))


@pytest.mark.usefixtures('one_thread')
def test_boundaries_are_learnt_for_classes_of_any_number():
    digits = load_data('digits')
    late, early = (digits.subset(part) for part in (digits.labels >= 5, digits.labels < 5))
    dls = metric_dataloaders(late, early, 5, 4, device='cpu')
    loss = losses.MarginLoss(classes=5)
    learn = metric_learner(dls, 'small_convnet', loss, 16, loss_lr=10., wd=0.)
    fit(learn)
    assert loss.class_numbers.tolist() == [5, 6, 7, 8, 9]
    assert ((loss.boundaries - 1.2).abs() > 1e-3).all()
    unseen = losses.MarginLoss()
    z, labels = learn.embed()
    assert (labels < 5).all() and loss(z, labels).isclose(unseen(z, labels))
    assert len(learn.get_preds(with_loss=True)[2]) == len(early)
    with pytest.raises(ValueError, match='classes: expected at least the 5 classes of training'):
        metric_learner(dls, 'small_convnet', losses.MarginLoss(classes=2), 16)
    for recipe in ('margin_loss', dict(classes=5)), ('arcface', dict(classes=7)):
        assert make_loss(*recipe, 5, 16).classes == recipe[1]['classes']


def test_boundaries_in_blocks_are_not_made_at_once():
    loss, sizes = losses.MarginLoss(classes=3, block=4), []
    z, labels = torch.randn(12, 8), torch.arange(12) % 4                # 3 is not known
    charge = margins.charge

    def watched(S, *args):
        sizes.append(len(S))
        return charge(S, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(margins, 'charge', watched)
        found = loss(z, labels)
    assert max(sizes) == 4 and found.isclose(losses.MarginLoss(classes=3)(z, labels))


def test_a_memory_is_refused():
    with pytest.raises(ValueError, match='got ArcFace'):
        CrossBatchMemory(proxies.ArcFace(5, 8) + losses.InfoNCE(), 100)
    with pytest.raises(ValueError, match='got ArcFace'):
        CrossBatchMemory(proxies.ArcFace(5, 8), 100)
