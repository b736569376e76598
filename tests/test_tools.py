"What `bash tools/gpu.sh` runs, tried without a GPU; and which losses make a host wait for one."
import csv
import io
import json
import subprocess
import sys
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import Image
from test_compile import has_compiler
from test_cuda import WAITS
from test_pages import root
from torch._subclasses.fake_tensor import (
    DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchvision.models import squeezenet1_1

from dml_nb.losses import DROTopK, MultiSimilarity, Triplet
from dml_nb.losses.catalogue import LOSSES, Entry

sys.path.insert(0, str(root/'tools'))
import finetune_squeezenet                                              # noqa: E402
import gpu                                                              # noqa: E402


needs_fake_gpu = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split('.')[:2])) < (2, 10) and not torch.cuda.is_available(),
    reason='torch 2.9 asks for a real GPU where a gradient is asked of a tensor of a fake one')


class CopyFromHost(Exception):
    "A tensor of the host went into an operation."


class NoHost(TorchDispatchMode):
    "Refuses tensors of the host."
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        if any(t.device.type == 'cpu' for t in tensors):
            raise CopyFromHost(str(func))
        return out


def waits(loss, **options):
    "Whether a call on a GPU needs its host: tried on tensors that have a device and no content"
    with FakeTensorMode():
        z = torch.empty(24, 8, device='cuda', requires_grad=True)
        index = torch.empty(24, dtype=torch.long, device='cuda')
        options = {name: value(index) for name, value in options.items()}
        if isinstance(loss, Entry):
            with torch.device('cuda'):                      # proxies, too
                loss = loss.for_data(4, 8)
        try:
            with NoHost():
                loss(z, **options or dict(labels=index))
        except (CopyFromHost, DataDependentOutputException, DynamicOutputShapeException):
            return True
    return False


@needs_fake_gpu
def test_what_waits_is_noticed():
    assert waits(lambda z, labels: z.sum().item())
    assert waits(lambda z, labels: z[labels > 0])
    assert waits(lambda z, labels: torch.tensor([1.], device='cuda') * z)
    assert waits(lambda z, labels: z.new_tensor(1.))
    assert not waits(lambda z, labels: torch.where(labels[:, None] > 0, z, 2.).sum())


@needs_fake_gpu
def test_which_losses_wait_for_a_gpu():
    assert {name for name in LOSSES if waits(LOSSES[name])} == set(WAITS)


@needs_fake_gpu
@pytest.mark.parametrize('loss', [MultiSimilarity(), Triplet(), DROTopK(8)], ids=repr)
def test_explicit_pairs_do_not_wait_and_triplets_do(loss):
    assert not waits(loss, tuples=lambda index: [index] * 4)
    assert waits(loss, tuples=lambda index: [index] * 3)
    assert not waits(loss, labels=lambda index: index[:, None] == index)


@pytest.fixture
def data(tmp_path, monkeypatch):
    "A folder of data with made-up weights and 8 classes × 32 pictures, each class of one colour"
    random = np.random.default_rng(0)
    folder = tmp_path/'data'
    monkeypatch.setenv('DML_NB_DATA', str(folder))
    for part in ('weights', 'cub-50'):
        (folder/part).mkdir(parents=True)
    with torch.random.fork_rng():
        weights = squeezenet1_1().features.state_dict()
    arrays = {f'features.{name}': value.numpy() for name, value in weights.items()}
    np.savez(folder/'weights'/'squeezenet1_1_features.npz', **arrays)
    rows = [('file', 'class_id', 'class_name', 'split')]
    with ZipFile(folder/'cub-50'/'images.zip', 'w') as archive:
        for k in range(8):
            colour = random.integers(256, size=3)
            for i in range(32):
                pixels = (colour + random.integers(-9, 10, (20, 24, 3))).clip(0, 255)
                content = io.BytesIO()
                Image.fromarray(pixels.astype('uint8')).save(content, 'PNG')
                archive.writestr(f'images/{k}/{i}.png', content.getvalue())
                rows.append((f'{k}/{i}.png', k + 1, f'class {k}', 'train' if k < 4 else 'test'))
    with open(folder/'cub-50'/'labels.csv', 'w', newline='') as file:
        csv.writer(file).writerows(rows)
    return folder


def small(step, folder):
    "A step of tools/gpu.py without a GPU: what it wrote"
    gpu.main([step, '--device', 'cpu', '--small', '--folder', str(folder/'new')])
    path = folder/'new'/f'gpu_{step}.json'
    return json.loads(path.read_text()) if path.exists() else None


@needs_fake_gpu
@pytest.mark.parametrize('name, operator', [
    ('multi_similarity', 'product'), ('triplet_discrepancy', 'value_and_gradients')])
def test_one_graph_on_a_gpu_has_our_products(name, operator):
    "A compiled graph cannot switch TF32 off; the operator in it can. Traced, but not run."
    names = set()

    def backend(module, inputs):
        names.update(str(node.target) for node in module.graph.nodes)
        return module

    torch.compiler.reset()
    with FakeTensorMode():
        z = torch.empty(24, 8, device='cuda', requires_grad=True)
        labels = torch.empty(24, dtype=torch.long, device='cuda')
        loss = torch.compile(LOSSES[name](), fullgraph=True, backend=backend)
        assert loss(z, labels).device.type == 'cuda'
    assert f'dml_nb.{operator}.default' in names


@pytest.mark.parametrize('step', ['speed', 'blocks', 'resnet'])
def test_measured_steps(step, tmp_path, one_thread):
    found = small(step, tmp_path)
    assert found['device'] == 'cpu' and found['what'] and found['rows']


@pytest.mark.long
@pytest.mark.skipif(not has_compiler, reason='no C++ compiler for torch.compile')
def test_compiled_step(tmp_path, one_thread):
    rows = small('compiled', tmp_path)['rows']
    assert {row['loss'] for row in rows} == set(gpu.TIMED)
    rows += small('small', tmp_path)['rows']
    assert all(row['compiled']['milliseconds'] is not None for row in rows)


def test_a_step_that_is_stopped_keeps_its_rows(tmp_path, monkeypatch):
    def stopped(device, small):
        yield dict(B=1)
        raise KeyboardInterrupt

    monkeypatch.setitem(gpu.MEASURED, 'speed', stopped)
    with pytest.raises(KeyboardInterrupt):
        small('speed', tmp_path)
    assert json.loads((tmp_path/'new'/'gpu_speed.json').read_text())['rows'] == [dict(B=1)]


def test_fine_tuning_on_packed_pictures(data, tmp_path, monkeypatch, capsys, one_thread):
    finetune_squeezenet.main(['--pack', str(tmp_path/'packed'), '--sets', 'cub-50'])
    monkeypatch.setenv('DML_NB_DATA', str(tmp_path/'packed'))
    found = small('finetune', tmp_path)
    assert 'cars196-train-crops/images.zip is missing' in capsys.readouterr().out
    row, = found['rows']
    assert row['set'] == 'cub-50' and 0 <= row['map@r'] <= 1
    assert 'WebP' in found['settings']['pictures']
    original = finetune_squeezenet.halves('cub-50', found['settings'])[0]
    monkeypatch.setenv('DML_NB_DATA', str(data))
    packed = finetune_squeezenet.halves('cub-50', found['settings'])[0]
    assert packed.labels.tolist() == original.labels.tolist()
    assert (packed.images() - original.images()).abs().mean() < .02


def test_omniglot_step(data, tmp_path, one_thread):
    folder = data/'omniglot'
    folder.mkdir()
    (folder/'alphabets.csv').write_text('part,alphabet,a,b,characters\n' +
                                        'background,A,0,0,10\nevaluation,B,0,0,10\n')
    strokes = np.random.default_rng(0).random((10, 1, 105, 105)) > .1
    for part in ('background', 'evaluation'):
        np.savez(folder/f'images_{part}.npz', images=strokes.repeat(20, 1))
    row, = small('omniglot', tmp_path)['rows']
    assert row['trained']['recall@1'] == 1. and row['seconds'] > 0


def test_what_is_missing_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('DML_NB_DATA', str(tmp_path))
    assert small('finetune', tmp_path) is None and small('omniglot', tmp_path) is None
    said = capsys.readouterr().out
    assert said.count('nothing was trained') == 2
    for name in ('weights/squeezenet1_1', 'cub-50', 'cars196-train-crops', 'omniglot'):
        assert name in said and str(tmp_path) in said
    monkeypatch.setitem(sys.modules, 'dml_nb.training.learner', None)
    assert small('finetune', tmp_path) is None
    assert 'fastai cannot be imported' in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason='would start all of it')
def test_without_a_gpu_it_says_so():
    command = ['env', f'PYTHON={sys.executable}', 'bash', root/'tools'/'gpu.sh']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == 'no GPU that torch can use: nothing to do\n'


def test_all_steps_together_end_within_25_minutes():
    lines = (root/'tools'/'gpu.sh').read_text().splitlines()
    limits = {line.split()[2]: int(line.split()[1]) for line in lines if line.startswith('step ')}
    assert set(limits) == {'tests', 'finetune', *gpu.MEASURED} and sum(limits.values()) < 1500
