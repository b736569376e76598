"""What embedders promise where a page cannot show it: downloads, a package that may be missing, a
process that is killed, fastai's optimisers, and files that somebody else wrote."""
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from fastai.callback.progress import ProgressCallback
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from dml_nb.support import storage
from dml_nb.training import embedding, features, networks
from dml_nb.proof import test_same as same
from dml_nb.data import ImageSet, load_data, split_by_image
from dml_nb.data.images import ImageFiles, _Transformed
from dml_nb.training import (
    Embedder, Features, create_embedder, load_embedder, metric_dataloaders, metric_learner,
    save_embedder)

pytestmark = pytest.mark.usefixtures('one_thread')
folder_of_weights = Path(os.environ.get('DML_NB_DATA', '/nowhere'))/'weights'
with_weights = pytest.mark.skipif(
    not folder_of_weights.is_dir(), reason='DML_NB_DATA holds no weights')


def whole_network(arch, **options):
    torch.manual_seed(5)
    return torchvision.models.get_model(arch, weights=None, **options).eval()


# Weights

@pytest.mark.parametrize('ending', ['.pth', '.safetensors', '.npz'])
def test_weights_come_from_every_kind_of_file(ending, tmp_path):
    network = whole_network('resnet18')
    state = network.state_dict()
    file = tmp_path/f'x{ending}'
    if ending == '.pth':
        torch.save({'state_dict': {f'module.{name}': x for name, x in state.items()}}, file)
    elif ending == '.npz':
        np.savez(file, **{name: x.numpy() for name, x in state.items()})
    else:
        save_file(state, file)
    embedder = create_embedder('resnet18', weights=file, head=None, size=64).eval()
    x = torch.rand(2, 3, 64, 64)
    mean, std = torch.tensor([[.485, .456, .406], [.229, .224, .225]])[:, None, :, None, None]
    with torch.no_grad():
        network.fc = nn.Identity()
        expected = network((x - mean) / std)
        same(embedder.features(x), expected, rtol=1e-4, atol=1e-5)
    assert embedder.dim == 512


def test_default_weights_are_torchvisions(monkeypatch):
    network = whole_network('googlenet', aux_logits=True, init_weights=False)
    asked = []

    def download(url, *args, **kwargs):
        asked.append(url)
        return network.state_dict()
    monkeypatch.setattr('torchvision.models._api.load_state_dict_from_url', download)
    embedder = create_embedder('googlenet', weights='DEFAULT', head=None).eval()
    assert 'googlenet' in asked[0] and embedder.size == 224
    network.transform_input = True                  # as torchvision's weights want it
    network.fc = nn.Identity()
    x = torch.rand(1, 3, 64, 64)
    mean, std = torch.tensor([[.485, .456, .406], [.229, .224, .225]])[:, None, :, None, None]
    with torch.no_grad():
        found, expected = embedder.features(x), network((x - mean) / std)
    scale = expected.abs().max()                    # fresh weights give small numbers
    same(found / scale, expected / scale, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('arch, weights', [
    ('small_convnet', 'DEFAULT'), ('small_convnet', 'imagenet'), ('timm:resnet18', 'imagenet'),
    ('resnet18', True), ('resnet18', 'IMAGENET1K_V1'), (nn.Flatten(), 'DEFAULT')])
def test_weights_that_there_are_not(arch, weights):
    with pytest.raises(ValueError, match='weights: expected None.*got'):
        create_embedder(arch, weights=weights)


def test_a_failed_download_is_said(monkeypatch):
    def download(*args, **kwargs):
        raise fault
    monkeypatch.setattr('torchvision.models._api.load_state_dict_from_url', download)
    for fault in (OSError('no network'), RuntimeError('no network, other bytes')):
        with pytest.raises(OSError, match='resnet18.*could not be downloaded .no network.*'
                                          '--weights FILE .*--weights none'):
            create_embedder('resnet18', weights='DEFAULT')


def test_a_transformer_takes_weights_of_another_side():
    small = dict(patch_size=16, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8)
    torch.manual_seed(0)
    network = torchvision.models.VisionTransformer(image_size=64, **small).eval()
    state = network.state_dict()
    body = networks.ClassToken(network)
    network.heads = nn.Identity()
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        same(body(x), network(x))
    for side in (64, 96):
        other = torchvision.models.VisionTransformer(image_size=side, **small)
        part = networks.ClassToken(other).eval()
        plan = dict(folded=False, arch='vit_b_16', size=side)
        embedding.fill_body(other, part, state, plan, 'x')
        assert part(torch.rand(1, 3, side, side)).shape == (1, 8)
        same(part.conv_proj.weight, body.conv_proj.weight)
        if side == 64:
            with torch.no_grad():
                same(part(x), body(x))


def test_an_own_network_takes_its_own_names(tmp_path):
    given = networks.lenet(1)
    torch.save(given.state_dict(), tmp_path/'mine.pt')
    for arch in ('lenet', networks.lenet, networks.lenet(1)):
        embedder = create_embedder(arch, 8, 1, weights=tmp_path/'mine.pt')
        same(dict(embedder.body.state_dict()), dict(given.state_dict()))
    with pytest.raises(ValueError, match='it lacks'):
        create_embedder('vgg9', 8, 1, weights=tmp_path/'mine.pt')
    torch.save(given.state_dict() | dict(more=torch.zeros(2)), tmp_path/'more.pt')
    with pytest.raises(ValueError, match='it also has more'):
        create_embedder('lenet', 8, 1, weights=tmp_path/'more.pt')
    with pytest.raises(ValueError, match=r'of shape \(20, 3, 3, 3\)'):
        create_embedder('lenet', 8, 3, weights=tmp_path/'mine.pt')


def test_a_pickle_is_not_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.system, (f'touch {tmp_path}/sprung',))
    (tmp_path/'x.pth').write_bytes(pickle.dumps(Trap()))
    torch.save(dict(a=Trap()), tmp_path/'y.pth')
    np.savez(tmp_path/'z.npz', a=np.array([Trap()], dtype=object))
    for name in ('x.pth', 'y.pth', 'z.npz'):
        with pytest.raises(ValueError, match='expected tensors under names'):
            create_embedder('resnet18', weights=tmp_path/name)
    assert not (tmp_path/'sprung').exists()


@with_weights
@pytest.mark.parametrize('arch, mean', [('squeezenet1_1', .485), ('mobilenet_v2', .5)])
def test_local_weights_see_grey_pictures_as_equal_colours(arch, mean):
    embedder = create_embedder(arch, channels=1, weights='imagenet', head=None, size=64)
    colour = create_embedder(arch, channels=3, weights='imagenet', head=None, size=64)
    assert abs(float(embedder.body.mean[0]) - mean) < 1e-6
    x = torch.rand(2, 1, 64, 64)
    same(embedder.embed(x), colour.embed(x.expand(-1, 3, -1, -1)))
    assert create_embedder(arch, weights='imagenet').size == 224


@with_weights
def test_a_folded_network_is_saved_and_loaded(tmp_path):
    embedder = create_embedder('mobilenet_v2', 8, weights='imagenet', size=48, seed=0)
    x = torch.rand(2, 3, 48, 48)
    again = load_embedder(save_embedder(embedder, tmp_path/'net'))
    assert torch.equal(again.embed(x), embedder.embed(x))
    assert not [m for m in again.body.modules() if isinstance(m, nn.BatchNorm2d)]


# timm, by a stand-in, because it is an extra

def stand_in(names):
    "A module with as much of timm as is used"
    def create_model(name, num_classes, in_chans, pretrained=False, global_pool='avg'):
        assert num_classes == 0
        if pretrained and name == 'absent':
            raise RuntimeError('no hub')
        layers = [nn.Conv2d(in_chans, 6, 3, 4)]
        if global_pool:
            layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        model = nn.Sequential(*layers)
        if pretrained:
            nn.init.ones_(model[0].weight)
        model.pretrained_cfg = dict(classifier='fc')
        return model
    timm = ModuleType('timm')
    timm.is_model = names.__contains__
    timm.list_models = lambda pattern: names
    timm.create_model = create_model
    timm.get_pretrained_cfg = lambda name: SimpleNamespace(
        mean=(.1, .2, .3), std=(.5, .5, .5), input_size=(3, 40, 40))
    return timm


def test_a_network_of_timm(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'timm', stand_in(['tiny', 'absent']))
    embedder = create_embedder('timm:tiny', 4, weights='DEFAULT', seed=0)
    assert embedder.size == 40
    assert embedder.body.mean.flatten().tolist() == pytest.approx([.1, .2, .3])
    assert torch.equal(embedder.body.network[0].weight, torch.ones(6, 3, 3, 3))
    x = torch.rand(2, 3, 40, 40)
    again = load_embedder(save_embedder(embedder, tmp_path/'net'))
    assert torch.equal(again.embed(x), embedder.embed(x))
    fresh = create_embedder('timm:tiny', 4, channels=2, pooling='max')
    assert not isinstance(fresh.body, networks.NormalizedBody)
    assert fresh(torch.rand(2, 2, 40, 40)).shape == (2, 4)
    file = tmp_path/'tiny.pth'
    state = {'0.weight': torch.full((6, 3, 3, 3), 2.), '0.bias': torch.zeros(6)}
    torch.save(state | {'fc.weight': torch.zeros(7, 6)}, file)
    filled = create_embedder('timm:tiny', 4, weights=file)
    assert filled.body.network[0].weight.detach().min() == 2.
    with pytest.raises(ValueError, match="got 'timm:tony'; it has tiny"):
        create_embedder('timm:tony')
    with pytest.raises(OSError, match='could not be downloaded .no hub'):
        create_embedder('timm:absent', weights='DEFAULT')


def test_missing_timm_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, 'timm', None)
    with pytest.raises(ImportError, match=r"expected the extra timm.*'dml_nb\[timm\]'"):
        create_embedder('timm:resnet18')


def test_the_real_timm():
    timm = pytest.importorskip('timm')
    for name in ('resnet18', 'vit_tiny_patch16_224', 'swin_tiny_patch4_window7_224'):
        model = timm.create_model(name, pretrained=False, num_classes=0).eval()
        embedder = create_embedder(f'timm:{name}', 4, head=None, size=224).eval()
        embedder.body.load_state_dict(model.state_dict())
        x = torch.rand(1, 3, 224, 224)
        with torch.no_grad():
            same(embedder.features(x), model(x))
    gem = create_embedder('timm:resnet18', 4, pooling='gem', size=64).eval()
    assert gem(torch.rand(1, 3, 64, 64)).shape == (1, 4)


# Frozen parts under fastai

@pytest.mark.parametrize('part', ['frozen', 'frozen_batch_norm'])
def test_frozen_parts_outlast_a_learner(part, tmp_path):
    digits = load_data('digits')
    sets = [digits.subset(indices) for indices in split_by_image(digits.labels)]
    model = create_embedder(dim=8, channels=1, size=8, seed=0, **{part: True})
    before = {name: x.clone() for name, x in model.state_dict().items()}
    dls = metric_dataloaders(*sets, 5, 8, device='cpu', path=tmp_path)
    learn = metric_learner(dls, model, wd=.1)
    learn.remove_cb(ProgressCallback)
    learn.unfreeze()                                # fastai asks for every gradient
    with learn.no_logging():
        learn.fit(1, 1e-2)
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    convolutions = {name for name in before if before[name].ndim == 4}
    head = {'head.weight', 'head.bias'}
    assert changed == (head if part == 'frozen' else head | convolutions)
    assert model.train() is model and not model.body[1].training and model.head.training


def test_frozen_parts_inside_a_larger_network():
    model = create_embedder(dim=8, channels=1, size=8, frozen=True)
    larger = nn.ModuleDict(dict(a=model, b=nn.BatchNorm1d(3)))
    larger.train()
    assert larger['b'].training and model.head.training
    assert not any(m.training for m in model.body.modules())
    larger.eval().train()
    assert not any(m.training for m in model.body.modules())


# Pictures

def test_files_are_turned_upright_and_fitted_as_the_data_page_does(tmp_path):
    rng = np.random.default_rng(0)
    pixels = (rng.random((20, 30, 3)) * 255).astype(np.uint8)
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(pixels).save(tmp_path/'turned.png', exif=exif)
    (tmp_path/'deep').mkdir()
    Image.fromarray(pixels[..., 0]).save(tmp_path/'deep'/'grey.png')
    (tmp_path/'deep'/'.hidden.png').write_bytes(b'?')
    (tmp_path/'notes.txt').write_text('no picture')
    for fit in ('cut', 'squash', 'pad'):
        embedder = create_embedder(nn.Flatten(), size=(6, 8), head=None, fit=fit)
        files = [tmp_path/'deep'/'grey.png', tmp_path/'turned.png']
        expected = embedder.embed(ImageSet(ImageFiles(files, (6, 8), fit=fit), [0, 1]))
        same(embedder.embed(tmp_path), expected)
        same(embedder.embed([Image.open(file) for file in files]), expected)
        same(embedder.embed(np.array(Image.open(files[0])).astype(np.float32)[..., None] / 255),
             expected[:1])
    with_alpha = np.dstack([pixels, np.full((20, 30), 9, np.uint8)])
    embedder = create_embedder(nn.Flatten(), size=8, head=None)
    same(embedder.embed(with_alpha), embedder.embed(pixels))


def test_ambiguous_arrays():
    grey = create_embedder(nn.Flatten(), 4, 1, size=8, head=None)
    colour = create_embedder(nn.Flatten(), 4, 3, size=8, head=None)
    assert grey.embed(np.zeros((8, 8), np.uint8)).shape == (1, 64)
    assert grey.embed(np.zeros((1, 8, 8), np.uint8)).shape == (1, 64)
    assert grey.embed(np.zeros((5, 8, 8), np.uint8)).shape == (5, 64)
    assert grey.embed(np.zeros((3, 8, 8), np.uint8)).shape == (3, 64)
    assert colour.embed(np.zeros((3, 8, 8), np.uint8)).shape == (1, 192)
    assert colour.embed(np.zeros((5, 8, 8), np.uint8)).shape == (5, 192)
    assert colour.embed(np.zeros((2, 1, 8, 8), np.uint8)).shape == (2, 192)
    assert colour.embed(np.zeros((2, 9, 9, 3), np.uint8)).shape == (2, 192)
    vectors = create_embedder('identity', 4, channels=7)
    assert vectors.embed(np.zeros(7)).shape == (1, 4)
    assert vectors.embed(np.zeros((2, 7))).shape == (2, 4)
    integers = torch.zeros(2, 8, 8, dtype=torch.int64)
    several = torch.zeros(2, 2, 8, 8), integers, [None], [np.zeros((8, 8), 'uint8'), b'none']
    for place, wrong in zip((0, 0, 0, 1), several):
        with pytest.raises((ValueError, TypeError), match=rf'^images\[{place}\]: expected'):
            grey.embed(wrong)
    for wrong in (np.float32(1), None, b'none', BytesIO(b'none'), torch.full((8, 8), 2.)):
        with pytest.raises((ValueError, TypeError), match='^images: expected'):
            grey.embed(wrong)


def test_open_files_are_read_from_their_beginning_and_stay_open(tmp_path):
    embedder = create_embedder('small_convnet', 4, 3, 8, 0)
    path = tmp_path/'a.png'
    Image.fromarray(np.arange(192, dtype='uint8').reshape(8, 8, 3)).save(path)
    expected = embedder.embed(path)
    with open(path, 'rb') as file:
        file.read()                                     # as whoever has saved an upload
        found = embedder.embed([file, path, file.name, file, memoryview(path.read_bytes())])
        assert not file.closed
    torch.testing.assert_close(found, expected.expand(5, -1))
    with open(path, encoding='latin-1') as text, pytest.raises(ValueError, match='expected a pict'):
        embedder.embed(text)


def test_embedding_in_batches_leaves_the_network_alone():
    embedder = create_embedder(dim=8, channels=1, size=8, dropout=.5, seed=0)
    x = torch.rand(10, 1, 8, 8)
    before = {name: values.clone() for name, values in embedder.state_dict().items()}
    z = embedder.embed(x, bs=3, progress=False)
    same(z, embedder.embed(x, bs=10))
    same(dict(embedder.state_dict()), before)
    assert embedder.training and z.dtype == torch.float32 and z.device.type == 'cpu'
    same(embedder.double().embed(x), z)
    with pytest.raises(ValueError, match='bs: expected an integer'):
        embedder.embed(x, bs=0)


# Features

def test_features_of_transformed_pictures_are_not_confused(tmp_path):
    digits = load_data('digits').subset(range(20))
    body = create_embedder(channels=1, size=8, seed=0)
    pixels = (digits.images() * 16).round().byte()
    cases = [digits, ImageSet(pixels, digits.labels), ImageSet(pixels.float() / 255, digits.labels)]
    for turn in (lambda x: x.flip(-1), lambda x: x.flip(-2)):
        turned = digits.subset(range(20))
        turned.source = _Transformed(digits.source, turn)
        cases.append(turned)
    keys = [Features.key(body, images) for images in cases]
    assert len(set(keys)) == len(cases)
    folded = [create_embedder(channels=1, size=8, seed=0, normalize=n) for n in (
        ([.5], [.5]), ([.4], [.5]))]
    assert Features.key(folded[0], digits) != Features.key(folded[1], digits)
    gem = create_embedder('resnet18', channels=1, pooling='gem', seed=0)
    average = create_embedder('resnet18', channels=1, seed=0)
    before = Features.key(gem, digits)
    assert before != Features.key(average, digits)
    with torch.no_grad():
        gem.pool.p.fill_(4.)
    assert before != Features.key(gem, digits)


def test_features_keep_what_the_set_says(tmp_path):
    digits = load_data('digits').subset(range(20))
    images = ImageSet(digits.images(), digits.labels, digits.classes, camera=np.arange(20),
                      split=np.array(['train', 'test'] * 10))
    features = Features(create_embedder(channels=1, size=8, seed=0), images, tmp_path)
    part = features.subset(features.split == 'test')
    assert part[0][0].shape == (512,) and part.camera.tolist() == list(range(1, 20, 2))
    assert features.classes == digits.classes and (features.labels == digits.labels).all()


KILLED = """
import sys, torch
torch.set_num_threads(1)
from dml_nb.data import load_data
from dml_nb.training import Features, create_embedder, save_embedder
digits = load_data('digits').subset(range(64))
for seed in range(10**6):
    embedder = create_embedder('lenet', 16, 1, size=8, seed=seed)
    save_embedder(embedder, sys.argv[1] + '/net', seed=seed)
    Features(embedder, digits, sys.argv[1] + '/features', progress=False)
    print('all is there', flush=True)
"""


@pytest.mark.parametrize('what', ['code_hash', 'versions'])
def test_features_of_other_code_are_computed_anew(what, tmp_path, monkeypatch):
    embedder, images = create_embedder(dim=4, channels=1, size=8, seed=0), load_data('digits')

    def file():
        return Features(embedder, images.subset(range(9)), tmp_path, progress=False).file

    kept = file()
    assert file() == kept
    other = dict(code_hash='another', versions=features.versions() | dict(timm='another'))
    monkeypatch.setattr(features, what, lambda *module: other[what])
    assert file() != kept and len(list(tmp_path.iterdir())) == 2


@pytest.mark.long
def test_killed_at_any_moment_files_are_whole_or_absent(tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(6):
        run = subprocess.Popen([sys.executable, '-c', KILLED, tmp_path], stdout=subprocess.PIPE)
        assert run.stdout.readline() == b'all is there\n'
        time.sleep(rng.random())
        run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
        found = load_embedder(tmp_path/'net')
        expected = create_embedder('lenet', 16, 1, size=8, seed=found.facts['seed'])
        same(dict(found.state_dict()), dict(expected.state_dict()))
    files = list((tmp_path/'features').glob('*.features.safetensors'))
    assert files
    for file in files:
        assert features.read_features(file).shape == (64, 500)


# Files

@pytest.mark.parametrize('writes', [0, 1])
def test_stopped_between_two_files_the_old_embedder_is_there(writes, tmp_path, monkeypatch):
    old, new = (create_embedder(dim=4, channels=1, size=8, seed=seed) for seed in (0, 1))
    save_embedder(old, tmp_path/'net')
    write, done = storage.write_atomically, []

    def stopped(*args):
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(write(*args))
    monkeypatch.setattr(storage, 'write_atomically', stopped)
    with pytest.raises(KeyboardInterrupt):
        save_embedder(new, tmp_path/'net')
    found = load_embedder(tmp_path/'net')
    same(dict(found.state_dict()), dict(old.state_dict()))


@pytest.fixture
def saved(tmp_path):
    return save_embedder(create_embedder(dim=4, channels=1, size=8, seed=0), tmp_path/'net')


def rewrite(folder, change):
    "Edit the description and put right hashes on it, as a clever enemy does"
    file = folder/'embedder.json'
    facts = json.loads(file.read_text())
    facts.pop('sha256')
    change(facts)
    facts['sha256'] = storage.hash_of(facts)
    file.write_text(json.dumps(facts))


def test_a_clever_enemy_reaches_no_file_outside(saved, tmp_path):
    weights = next(saved.glob('*.safetensors'))
    weights.rename(tmp_path/'outside.safetensors')
    rewrite(saved, lambda facts: facts['files']['weights.safetensors'].update(
        name='../outside.safetensors'))
    with pytest.raises(ValueError, match='expected the name of a file in the same folder'):
        load_embedder(saved)


def test_a_pickle_with_right_hashes_is_refused(saved, tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.system, (f'touch {tmp_path}/sprung',))
    data = pickle.dumps(Trap())
    next(saved.glob('*.safetensors')).write_bytes(data)
    rewrite(saved, lambda facts: facts['files']['weights.safetensors'].update(
        size=len(data), sha256=storage.hash_of(data)))
    with pytest.raises(ValueError, match='expected weights that fit'):
        load_embedder(saved)
    assert not (tmp_path/'sprung').exists()


@pytest.mark.parametrize('key, value', [
    ('dim', 5), ('head', 'mlp'), ('arch', 'lenet'), ('arch', 'nothing'), ('batch_norm', True)])
def test_a_description_that_does_not_fit_is_refused(saved, key, value):
    rewrite(saved, lambda facts: facts['network'].update({key: value}))
    with pytest.raises(ValueError, match='that fit this body|arch: expected one of'):
        load_embedder(saved)


def test_facts_with_numbers_as_keys_are_no_damage(tmp_path):
    net = create_embedder(dim=4, channels=1, size=8, seed=0)
    again = load_embedder(save_embedder(net, tmp_path/'net', counts={10: 1, 2: 3}))
    assert again.facts == dict(counts={'10': 1, '2': 3})


def test_another_format_is_refused(saved):
    rewrite(saved, lambda facts: facts.update(format='dml_nb embedder 9'))
    with pytest.raises(ValueError, match="the format 'dml_nb embedder 3', got .*; train it again"):
        load_embedder(saved)


def test_every_byte_matters(saved):
    file = next(saved.glob('*.safetensors'))
    whole = file.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 20):
        hit = bytearray(whole)
        hit[place] ^= 1
        file.write_bytes(hit)
        with pytest.raises(ValueError, match='got a damaged'):
            load_embedder(saved)


def test_only_weights_that_it_wrote_are_replaced(saved):
    "Not the files of others, also if they look alike; what a killed process left goes"
    theirs = {'mine.safetensors', '0123456789abcdef.safetensors', 'mine.weights.safetensors',
              '0123456789abcdef.features.safetensors', '.embedder.json.bak'}
    litter = {'0123456789abcdef.weights.safetensors', '.embedder.json.12',
              '.0123456789abcdef.weights.safetensors.12'}
    for name in theirs | litter:
        (saved/name).write_bytes(b'?')
    old = {path.name for path in saved.iterdir()}
    save_embedder(create_embedder(dim=4, channels=1, size=8, seed=1), saved)
    new = {path.name for path in saved.iterdir()}
    assert theirs <= new and not litter & new and len(new) == len(theirs) + 2
    assert len(old - new - litter) == 1 and load_embedder(saved).dim == 4


def test_embedders_made_by_hand_keep_working(tmp_path):
    hand_made = Embedder(networks.small_convnet(), 4, 512).eval()
    x = torch.rand(2, 1, 8, 8)
    save_embedder(hand_made, tmp_path/'net')
    again = load_embedder(tmp_path/'net', networks.small_convnet())
    assert torch.equal(again(x), hand_made(x))
    same(hand_made.embed(x), hand_made(x))
