"""Sources of pictures: official layouts, tables and archives with every fault, and workers.

Small data are made on the spot. The grey of each picture says which class it is of, so that a wrong
label cannot hide."""

import gzip, io, os, pickle, shutil, stat, struct, subprocess, sys, tracemalloc, unicodedata, warnings
import zipfile
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image
from scipy.io import savemat
from torch.utils.data import DataLoader

from dml_nb.data import (
    ImageSet, crop_and_flip, load_data, noisy_images, read_image, split_by_class, split_by_image,
    symmetric_noise, turn_classes)
from dml_nb.data.benchmarks import (
    _by_number, _cars196_index, _cars_parts, _cars_rows, _cub200_index, _market1501_index,
    _read_pairs)
from dml_nb.data.images import ImageFiles, _upright_sides
from dml_nb.data.readers import leave_out_broken
from dml_nb.data.transforms import center_crop

lists = Path(os.environ.get('DML_NB_DATA', '/nowhere'))/'index-files'
with_lists = pytest.mark.skipif(not lists.is_dir(), reason='DML_NB_DATA holds no index-files')
quick = settings(
    derandomize=True,
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def paint(path, grey, size=(4, 4)):
    "A picture of one grey"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', size, (grey,) * 3).save(path, quality=100)
    return path


def greys(images):
    "The grey of each picture"
    return [round(float(images[i][0].mean() * 255)) for i in range(len(images))]


def refused(call, *parts):
    "The call raises one of the three kinds of errors, says what was expected, and names the culprit"
    with pytest.raises((ValueError, FileNotFoundError, TypeError)) as caught:
        call()
    said = str(caught.value)
    assert type(caught.value) in (ValueError, FileNotFoundError, TypeError), repr(caught.value)
    assert 'expected' in said and all(part in said for part in parts), said
    return said


# ---------------------------------------------------------------- labels, splits, turned classes

integers = {
    'uint8': np.array([0, 1, 2, 1], np.uint8),
    'uint16': np.array([0, 1, 2, 1], np.uint16),
    'uint64': np.array([0, 1, 2, 1], np.uint64),
    'big-endian': np.array([0, 1, 2, 1], '>i4'),
    'reversed': np.array([1, 2, 1, 0])[::-1],
    'objects': np.array([0, 1, 2, 1], object),
    'series': pd.Series([0, 1, 2, 1], index=[7, 5, 3, 1]),
    'list': [0, 1, 2, 1],
    'numpy integers': [np.int32(0), np.int64(1), np.uint8(2), 1],
    'tensor': torch.tensor([0, 1, 2, 1], dtype=torch.int16),
    'long tensor': torch.tensor([0, 1, 2, 1]),
    'read-only': np.array([0, 1, 2, 1]),
}
integers['read-only'].flags.writeable = False


@pytest.mark.parametrize('kind', integers)
def test_labels_of_any_integers(kind):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        images = ImageSet(np.zeros((4, 2, 2)), integers[kind])
        parts = split_by_class(integers[kind])
        split_by_image(integers[kind])
    assert images.labels.tolist() == [0, 1, 2, 1] and images.labels.dtype == np.int64
    assert [part.tolist() for part in parts] == [[0, 1, 3], [2]]
    images.labels[0] = 2  # the user's own array stays as it is
    assert list(integers[kind])[0] == 0


@pytest.mark.parametrize(
    'labels', [[.0, 1.0], ['a', 'b'], [True, False], [0], [[0, 1]], [0, -2], [0, 2**64], None]
)
def test_other_labels_are_refused(labels):
    refused(lambda: ImageSet(np.zeros((2, 2, 2)), labels), 'labels')


@pytest.mark.parametrize(
    'pixels',
    [np.zeros((2, 3, 3), '>f4'), np.zeros((2, 3, 3))[:, ::-1], np.zeros((2, 3, 3), np.uint8)[::-1]],
)
def test_pixels_in_any_order_of_bytes(pixels):
    assert ImageSet(pixels, [0, 1]).images().eq(0).all()


def test_the_hash_of_data_stays_what_it_is(tmp_path):
    "Files of results hold such hashes, and a new way to hash makes strangers of all of them"
    digits = load_data('digits')
    assert digits.sha256() == '323bdfc555e9a0f79851293f069010b1850cf5c340245038b19ec7cd78ed276c'
    (tmp_path/'wide.pgm').write_bytes(b'P5 2 1 255 \x00\xff')
    (tmp_path/'tall.pgm').write_bytes(b'P5 1 2 255 \x00\xff')
    paths = [tmp_path/'wide.pgm', tmp_path/'tall.pgm']
    wanted = {
        (None, 'cut'): '43e4857c4b0b1ae9',
        (2, 'cut'): 'a7da3b5b7fa24836',
        (2, 'squash'): 'f0ad63ef2a66b5bf',
        (2, 'pad'): '8b5d9212da6a3428',
    }
    for (size, fit), start in wanted.items():
        images = ImageSet(ImageFiles(paths, size, 'L', fit), [0, 1])
        assert images.sha256().startswith(start), (size, fit)
    few = digits.subset(range(2))
    parts = few, few.transformed(lambda x: x.flip(-1)), turn_classes(few)
    assert [images.sha256()[:16] for images in parts] == [
        '8d853046512fd16b', '7c4989c7cf721fd9', 'eb1e5b662ac027e1']


def test_letters_stay_what_they_are():
    "The same pixels everywhere, by script; and no seen letter looks like an unseen one"
    letters = load_data('glyphs')
    assert letters.sha256() == 'f4799285f281763325e6afc23d5adf221bf830accc95558bc3b10d8d5d10b2ee'
    script = [unicodedata.name(name).split()[0] for name in letters.classes]
    seen = set(np.array(script)[letters.labels[letters.split == 'train']])
    unseen = set(np.array(script)[letters.labels[letters.split == 'test']])
    assert seen == {'LATIN', 'DIGIT'} and unseen == {'GREEK', 'CYRILLIC', 'ARMENIAN', 'GEORGIAN'}
    assert not set('ΑΒАВ') & set(letters.classes) and set('ABΩЖ') <= set(letters.classes)
    assert 12 <= np.bincount(letters.labels).min() <= np.bincount(letters.labels).max() == 16


def test_reading_letters_needs_no_fonts():
    code = "import sys; from dml_nb.data import load_data; load_data('glyphs')"
    code += "; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, '-c', code], check=True)


def test_another_split_or_camera_is_another_set():
    pixels = np.zeros((4, 2, 2))
    known = [dict(), dict(split=list('aabb')), dict(split=list('abab')), dict(camera=[0, 0, 1, 1])]
    assert len({ImageSet(pixels, [0, 1, 0, 1], **more).sha256() for more in known}) == 4


def test_turned_pictures_keep_their_split_and_camera():
    pixels = np.arange(3 * 4, dtype=np.uint8).reshape(3, 2, 2)
    images = ImageSet(pixels, [0, 1, 1], split=list('abc'), camera=[5, 6, 7])
    turned = turn_classes(images)
    assert turned.split.tolist() == list('abc') * 8 and turned.camera.tolist() == [5, 6, 7] * 8
    for i in range(24):
        same = torch.equal(turned[i][0].unique(), images[i % 3][0].unique())
        assert same and turned.split[i] == images.split[i % 3]


def test_held_out_pictures_depend_on_the_seed():
    labels = np.repeat(range(4), 25)
    first, second = (split_by_image(labels, .2, seed)[1] for seed in (3, 4))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, split_by_image(labels, .2, 3)[1])
    for held in (first, second):
        assert np.bincount(labels[held]).tolist() == [5] * 4


@pytest.mark.parametrize('classes, train', [(2, 1), (3, 2), (5, 3), (196, 98), (197, 99)])
def test_the_larger_half_of_an_odd_number_of_classes_trains(classes, train):
    labels = np.tile(np.arange(classes) * 3, 2)
    parts = [set(labels[part].tolist()) for part in split_by_class(labels)]
    assert len(parts[0]) == train
    assert max(parts[0]) < min(parts[1])
    assert len(parts[1]) == classes - train


@pytest.mark.parametrize('share', [0, 1, -.1, float('nan'), True, '0.2'])
def test_shares_that_are_none(share):
    refused(lambda: split_by_image([0, 0, 1], share), 'valid_share')


def test_turned_classes_keep_the_labels_before_noise():
    digits = load_data('digits').subset(range(40))
    noisy = noisy_images(digits, symmetric_noise(10, .5), part='all', seed=1)
    assert (noisy.labels != noisy.true_labels).any()
    for some in (noisy, noisy.subset(range(5, 30))):
        turned = turn_classes(some)
        clean = ImageSet(some.images(), some.true_labels, some.classes)
        assert turned.true_labels.tolist() == turn_classes(clean).labels.tolist()
        assert turned.subset([3, 9]).true_labels.tolist() == turned.true_labels[[3, 9]].tolist()
    assert (noisy.transformed(lambda x: x).true_labels == noisy.true_labels).all()


# ---------------------------------------------------------------- one picture


@pytest.mark.parametrize('orientation', range(1, 9))
def test_pictures_are_turned_upright(tmp_path, orientation):
    upright = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    # what a camera stores so that each tag leads back to the upright picture (EXIF 2.3, table 4)
    undo = {
        1: lambda x: x,
        2: np.fliplr,
        3: lambda x: np.rot90(x, 2),
        4: np.flipud,
        5: lambda x: x.T,
        6: np.rot90,
        7: lambda x: np.rot90(x.T, 2),
        8: partial(np.rot90, k=-1),
    }
    stored = Image.fromarray(np.ascontiguousarray(undo[orientation](upright)))
    exif = Image.Exif()
    exif[274] = orientation
    stored.save(tmp_path/'x.png', exif=exif)
    found = (read_image(tmp_path/'x.png', mode='L')[0] * 255).round().byte().numpy()
    assert np.array_equal(found, upright)
    with Image.open(tmp_path/'x.png') as picture:
        assert picture.size == ((3, 2) if orientation < 5 else (2, 3))
    assert _upright_sides(tmp_path/'x.png') == (3, 2)
    files = ImageFiles([tmp_path/'x.png', paint(tmp_path/'y.png', 0, (3, 2))])
    files.check_alike()  # of one size, once upright


@pytest.mark.parametrize('size', [0, -3, 2.5, True, 'large', (4,), (4, 0), float('nan')])
def test_sizes_that_are_none(tmp_path, size):
    for c in 'ab':
        paint(tmp_path/c/'1.png', 9)
    refused(lambda: load_data(tmp_path, size=size), 'size')
    refused(lambda: load_data('omniglot', size=size), 'size')
    refused(lambda: read_image(tmp_path/'a'/'1.png', size), 'size')


# ---------------------------------------------------------------- decoded once, by one or by many


def many(folder, n=12):
    for i in range(n):
        paint(folder/'ab'[i % 2]/f'{i:02}.png', 100 + i)
    return folder


@pytest.mark.parametrize('source', ['folder', 'zip'])
@pytest.mark.parametrize(
    'workers', ['none', 'fork', pytest.param('spawn', marks=pytest.mark.long)])
def test_a_second_epoch_decodes_nothing(tmp_path, source, workers):
    many(tmp_path/'x')
    path = tmp_path/'x'
    if source == 'zip':
        path = Path(shutil.make_archive(str(path), 'zip', path))
    images = load_data(path, size=3)
    options = {} if workers == 'none' else dict(num_workers=2, multiprocessing_context=workers)
    first = torch.cat([x for x, _ in DataLoader(images, 4, **options)])
    shutil.rmtree(tmp_path)  # so nothing can be read again
    second = torch.cat([x for x, _ in DataLoader(images, 4, **options)])
    assert torch.equal(first, second) and images.source.cache.known.all()
    wanted = [100 + i for half in (0, 1) for i in range(half, 12, 2)]
    assert (second.mean((1, 2, 3)) * 255).round().int().tolist() == wanted
    assert torch.equal(images.images(), first)
    assert torch.equal(images.subset([5, 2]).images(), first[[5, 2]])


def test_memory_for_pictures_is_limited_and_said(tmp_path):
    many(tmp_path)
    needed = 12 * (1 + 3 * 3 * 3)
    assert load_data(tmp_path, size=3, cache=needed).source.cache is not None
    for images in (
        load_data(tmp_path, size=3, cache=needed - 1),
        load_data(tmp_path, size=3, cache=False),
    ):
        assert images.source.cache is None
        assert f'{needed} bytes decoded, not kept' in repr(images)
        assert images.images().shape == (12, 3, 3, 3)
    assert f'{needed} bytes kept' in repr(load_data(tmp_path, size=3))
    assert load_data(tmp_path).source.cache is None  # no size, so none is known
    refused(lambda: load_data(tmp_path, size=3, cache=-1), 'cache')


def test_a_pickle_holds_no_pixels(tmp_path):
    images = load_data(many(tmp_path), size=64)
    images.images()
    stored = pickle.dumps(images)
    assert len(stored) < 5000 and torch.equal(pickle.loads(stored).images(), images.images())


def test_workers_without_room_for_sharing_read_for_themselves(tmp_path, monkeypatch):
    images = load_data(many(tmp_path), size=3)

    def no_room(self):
        raise RuntimeError('unable to allocate shared memory')

    monkeypatch.setattr(torch.Tensor, 'share_memory_', no_room)
    loader = DataLoader(
        images, 12, num_workers=1, multiprocessing_context='spawn', collate_fn=count_items
    )
    assert list(loader) == [12] and not images.source.cache.known.any()


def count_items(items):
    return len(items)


def test_broken_pictures_are_named_or_skipped_and_counted(tmp_path):
    many(tmp_path)
    for name in ('a/00.png', 'b/11.png'):
        (tmp_path/name).write_bytes((tmp_path/name).read_bytes()[:40])
    refused(lambda: load_data(tmp_path).images(), '00.png')
    for options in ({}, {'size': 3}):
        with pytest.warns(UserWarning, match='2 of 12 pictures'):
            images = load_data(tmp_path, on_error='skip', **options)
        assert images.skipped == (str(tmp_path/'a/00.png'), str(tmp_path/'b/11.png'))
        assert '2 skipped' in repr(images)
        assert greys(images) == [102, 104, 106, 108, 110, 101, 103, 105, 107, 109]
        assert images.labels.tolist() == [0] * 5 + [1] * 5
        images.source.check_alike()  # does not read the broken ones again
    part = load_data(tmp_path, on_error='later').subset(range(2, 12))
    with pytest.warns(UserWarning, match='1 of 10 pictures'):
        part = leave_out_broken(part, {9: 'cut off'})               # its last one
    assert part.skipped == (str(tmp_path/'b/11.png'),)
    assert greys(part) == [104, 106, 108, 110, 101, 103, 105, 107, 109]
    for i in range(0, 12, 2):
        (tmp_path/f'a/{i:02}.png').write_bytes(b'')
    with pytest.warns(UserWarning):
        refused(lambda: load_data(tmp_path, on_error='skip'), "'a' has none")
    refused(lambda: load_data(tmp_path, on_error='ignore'), 'on_error')


# ---------------------------------------------------------------- names and paths


def test_a_plain_path_is_a_folder_or_a_file_by_its_ending(tmp_path, monkeypatch):
    many(tmp_path/'x')
    shutil.make_archive(str(tmp_path/'x'), 'zip', tmp_path/'x')
    np.savez(tmp_path/'x.npz', z=np.eye(3, dtype=np.float32), labels=[0, 1, 1])
    wanted = load_data(f'folder:{tmp_path}/x').sha256()
    assert load_data(tmp_path/'x').sha256() == load_data(str(tmp_path/'x')).sha256() == wanted
    assert (
        load_data(tmp_path/'x.zip').sha256()
        == load_data(f'zip:{tmp_path}/x.zip').sha256()
        == wanted
    )
    assert load_data(str(tmp_path/'x.npz')).labels.tolist() == [0, 1, 1]
    monkeypatch.chdir(tmp_path/'x')
    assert load_data('.').sha256() == load_data(Path()).sha256() == wanted
    monkeypatch.chdir(tmp_path)
    assert load_data('x').sha256() == load_data('folder:x').sha256() == wanted
    (tmp_path/'digits').mkdir()
    assert len(load_data('digits')) == 1797  # a name that is known comes first
    refused(lambda: load_data(Path('digits')), 'holds no folders')


@pytest.mark.parametrize('name', ['imagenet', '', 'digit', 'cub200 '])
def test_unknown_names(name):
    refused(lambda: load_data(name), 'possible are digits')


@pytest.mark.parametrize(
    'ask',
    [
        dict(name_or_path='folder:/nowhere/at/all'),
        dict(name_or_path=None),
        dict(name_or_path='/nowhere.csv'),
        dict(name_or_path='/nowhere.zip'),
        dict(name_or_path='digits', size=8),
        dict(name_or_path='digits:here'),
        dict(name_or_path='folder:/tmp', root='/tmp'),
        dict(name_or_path='folder', root='/tmp', download=True),
    ],
)
def test_what_cannot_be_asked(ask):
    refused(lambda: load_data(**ask))


@pytest.mark.parametrize(
    'name',
    [
        'mnist',
        'fashion_mnist',
        'cifar10',
        'cifar100',
        'stl10',
        'omniglot',
        'lfw',
        'cub200',
        'cars196',
        'sop',
        'inshop',
        'market1501',
        'cub-50',
        'cars196-train-crops',
        'orl-faces',
    ],
)
def test_missing_sets_say_what_belongs_where(tmp_path, name):
    said = refused(lambda: load_data(name, tmp_path), str(tmp_path), name, 'from', 'root=')
    assert refused(lambda: load_data(f'{name}:{tmp_path}')) == said


@pytest.mark.parametrize('name', ['cub200', 'cars196', 'sop', 'inshop', 'market1501', 'cub-50',
                                  'orl-faces', 'folder', 'zip', 'csv', 'features'])
def test_what_is_only_read_from_disk_is_not_downloaded(tmp_path, name):
    refused(lambda: load_data(name, tmp_path, download=True), name, 'only read from disk')


def test_the_nearest_layout_is_asked_for(tmp_path):
    "The error speaks of the place and the layout of which most is there"
    said = refused(lambda: load_data('omniglot', tmp_path))
    assert 'images_background, images_evaluation is' in said
    (tmp_path/'omniglot').mkdir()
    (tmp_path/'omniglot'/'images_background.npz').touch()
    said = refused(lambda: load_data('omniglot', tmp_path), f' in {tmp_path}/omniglot,')
    assert 'images_evaluation.npz, alphabets.csv is missing' in said
    (tmp_path/'devkit').mkdir()
    (tmp_path/'devkit'/'cars_test_annos_withlabels.mat').touch()
    said = refused(lambda: load_data('cars196', tmp_path), 'cars_train, cars_test is missing')
    assert f'devkit/cars_test_annos_withlabels.mat in {tmp_path},' in said


# ---------------------------------------------------------------- official layouts


def cub(folder):
    inner = folder/'CUB_200_2011'
    classes = {
        1: '001.Albatross',
        100: '100.Pelican',
        101: '101.White Pelican',
        200: '200.Yellowthroat',
    }
    rows = [(5, 1), (2, 100), (9, 101), (11, 200), (12, 1)]
    inner.mkdir(parents=True)
    (inner/'classes.txt').write_text(''.join(f'{k} {c}\n' for k, c in classes.items()))
    (inner/'images.txt').write_text(''.join(f'{i} {classes[c]}/{i}.jpg\n' for i, c in rows))
    (inner/'image_class_labels.txt').write_text(''.join(f'{i} {c}\n' for i, c in reversed(rows)))
    for i, c in rows:
        paint(inner/'images' / classes[c]/f'{i}.jpg', c)
    wanted = [(100, 'train'), (1, 'train'), (101, 'test'), (200, 'test'), (1, 'train')]
    return inner, wanted, {str(c): name for c, name in classes.items()}


def check_set(images, wanted, names):
    "Grey and split of each picture, and the name of the class that the grey says"
    assert [(g, s) for g, s in zip(greys(images), images.split)] == wanted
    assert [images.classes[y] for y in images.labels] == [names[str(g)] for g, _ in wanted]


def test_cub200(tmp_path):
    inner, wanted, names = cub(tmp_path)
    for root in (tmp_path, inner):
        check_set(load_data('cub200', root), wanted, names)
    assert load_data(f'cub200:{inner}', size=2).images().shape == (5, 3, 2, 2)
    check_faults = {
        'images.txt': [
            '5 x/1.jpg\n5 x/2.jpg\n',
            '5\n',
            'x y\n',
            '5 ../../up.jpg\n',
            '',
            '7 x/7.jpg\n',
        ],
        'image_class_labels.txt': ['5 1\n5 2\n', '5 one\n', '5 999\n', ''],
    }
    for file, contents in check_faults.items():
        before = (inner/file).read_bytes()
        for content in contents:
            (inner/file).write_text(content)
            refused(lambda: load_data('cub200', tmp_path))
        (inner/file).write_bytes(before)
    (inner/'images'/'001.Albatross'/'5.jpg').unlink()
    refused(lambda: load_data('cub200', tmp_path), '1 are missing', '5.jpg')


def cars_rows(rows, key):
    "A structured array as the devkit's"
    kinds = [('bbox_x1', object), ('class', object), (key, object)]
    return np.array([(1, c, file) for file, c in rows], dtype=kinds)


def test_cars196_devkit(tmp_path):
    train, test = [('00001.jpg', 3), ('00002.jpg', 99)], [
        ('00001.jpg', 98),
        ('00002.jpg', 196),
        ('00003.jpg', 3),
    ]
    (tmp_path/'devkit').mkdir()
    names = [f'Car {c + 1}' for c in range(196)]
    savemat(tmp_path/'devkit'/'cars_meta.mat', {'class_names': np.array(names, object)})
    savemat(
        tmp_path/'devkit'/'cars_train_annos.mat', {'annotations': cars_rows(train, 'fname')}
    )
    for part, rows in (('train', train), ('test', test)):
        for file, c in rows:
            paint(tmp_path/f'cars_{part}'/file, c)
    refused(lambda: load_data('cars196', tmp_path), 'cars_test_annos_withlabels.mat')
    wanted = [(3, 'train'), (99, 'test'), (98, 'train'), (196, 'test'), (3, 'train')]
    known = [c - 1 for c, _ in wanted]
    for place in (tmp_path, tmp_path/'devkit'):
        savemat(place/'cars_test_annos_withlabels.mat', {'annotations': cars_rows(test, 'fname')})
        files, labels, classes, split = _cars196_index(tmp_path)
        assert labels == known and split.tolist() == [s for _, s in wanted] and classes == names
        # 192 of the classes have no picture here, which is a fault; the pictures are the right ones
        assert [round(float(read_image(tmp_path / f).mean() * 255)) for f in files] == [
            g for g, _ in wanted
        ]
        refused(lambda: load_data('cars196', tmp_path), "'Car 1' has none")
        (place/'cars_test_annos_withlabels.mat').unlink()
    savemat(
        tmp_path/'devkit'/'cars_test_annos_withlabels.mat',
        {'annotations': np.array([('a', 1)], dtype=[('fname', object), ('x', object)])},
    )
    refused(lambda: load_data('cars196', tmp_path), 'class')


def test_cars196_in_one_list(tmp_path):
    rows = [(f'car_ims/{c:06}.jpg', c) for c in range(1, 197)]
    names = [f'Car {c}' for c in range(1, 197)]
    savemat(
        tmp_path/'cars_annos.mat',
        {
            'annotations': cars_rows(rows, 'relative_im_path'),
            'class_names': np.array(names, object),
        },
    )
    for file, c in rows:
        paint(tmp_path/file, c)
    wanted = [(c, 'train' if c <= 98 else 'test') for c in range(1, 197)]
    check_set(load_data('cars196', tmp_path), wanted, {str(c): f'Car {c}' for c in range(1, 197)})
    (tmp_path/'cars_annos.mat').write_bytes((tmp_path/'cars_annos.mat').read_bytes()[:500])
    refused(lambda: load_data('cars196', tmp_path), 'cars_annos.mat')


def test_sop(tmp_path):
    inner = tmp_path/'Stanford_Online_Products'
    rows = {'train': [(1, 7), (2, 10), (3, 7)], 'test': [(4, 30), (5, 31)]}
    for part, items in rows.items():
        for i, c in items:
            paint(inner/'bicycle_final'/f'{i}.JPG', c)
        lines = [f'{i} {c} 1 bicycle_final/{i}.JPG\n' for i, c in items]
        (inner/f'Ebay_{part}.txt').write_text(
            'image_id class_id super_class_id path\n' + ''.join(lines)
        )
    wanted = [(7, 'train'), (10, 'train'), (7, 'train'), (30, 'test'), (31, 'test')]
    for root in (tmp_path, inner):
        check_set(load_data('sop', root), wanted, {str(c): str(c) for c in (7, 10, 30, 31)})
    (inner/'Ebay_test.txt').write_text(
        'head\n4 30 1 bicycle_final/4.JPG\n1 31 1 bicycle_final/1.JPG\n'
    )
    refused(lambda: load_data('sop', tmp_path), 'listed twice')
    (inner/'Ebay_test.txt').write_text('head\n4 30 1\n')
    refused(lambda: load_data('sop', tmp_path), 'Ebay_test.txt, line 2')


@pytest.mark.parametrize('lists, pictures', [('Eval', 'Img'), ('.', '.')])
def test_inshop(tmp_path, lists, pictures):
    rows = [('a', 1, 'train'), ('b', 2, 'query'), ('c', 2, 'gallery'), ('d', 1, 'train')]
    for name, c, _ in rows:
        paint(tmp_path/pictures/f'img/WOMEN/Dresses/id_{c}'/f'{name}.jpg', c)
    lines = [
        f'img/WOMEN/Dresses/id_{c}/{name}.jpg   id_{c:08}   {part}\n' for name, c, part in rows
    ]
    (tmp_path/lists).mkdir(exist_ok=True)
    path = tmp_path/lists/'list_eval_partition.txt'
    path.write_text('4\nimage_name item_id evaluation_status\n' + ''.join(lines))
    wanted = [(1, 'train'), (2, 'query'), (2, 'gallery'), (1, 'train')]
    check_set(load_data('inshop', tmp_path), wanted, {'1': 'id_00000001', '2': 'id_00000002'})
    for content in (
        '5\nhead\n' + ''.join(lines),
        '1\nhead\n' + lines[0].replace('train', 'valid'),
        '',
    ):
        path.write_text(content)
        refused(lambda: load_data('inshop', tmp_path), 'list_eval_partition.txt')


def test_market1501(tmp_path):
    names = {
        'bounding_box_train': ['0002_c1s1_000451_03.jpg', '0007_c3s2_000451_01.jpg'],
        'query': ['0003_c4s1_000451_00.jpg', '1488_c1s6_023021_00.jpg.jpg'],
        'bounding_box_test': [
            '-1_c1s1_000401_03.jpg',
            '0000_c2s1_000401_03.jpg',
            '0003_c6s1_000401_03.jpg',
            '1488_c5s1_000401_03.jpg',
        ],
    }
    for folder, files in names.items():
        for file in files:
            paint(
                tmp_path/folder/file,
                int(file[:4].strip('_c')) % 200 + 10 if file[0] != '-' else 9,
            )
        (tmp_path/folder/'Thumbs.db').write_bytes(b'x')
    images = load_data('market1501', tmp_path)
    assert images.split.tolist() == [
        'train',
        'train',
        'query',
        'query',
        'junk',
        'gallery',
        'gallery',
        'gallery',
    ]
    assert images.camera.tolist() == [1, 3, 4, 1, 1, 2, 6, 5]
    people = ['?' if y < 0 else images.classes[y] for y in images.labels]
    assert people == ['0002', '0007', '0003', '1488', '?', '0000', '0003', '1488']
    assert greys(images) == [9 if p == '?' else int(p) % 200 + 10 for p in people]
    paint(tmp_path/'query'/'person.jpg', 0)
    refused(lambda: load_data('market1501', tmp_path), 'query/person.jpg')


@with_lists
def test_official_counts(tmp_path):
    labels = _by_number(lists/'CUB_200_2011'/'image_class_labels.txt')
    for name in ('classes.txt', 'image_class_labels.txt'):
        shutil.copy(lists/'CUB_200_2011'/name, tmp_path)
    (tmp_path/'images.txt').write_text('\n'.join(f'{i} {c}/{i}.jpg' for i, c in labels.items()))
    _, found, classes, split = _cub200_index(tmp_path)
    assert len(classes) == 200 and Counter(split.tolist()) == {'train': 5864, 'test': 5924}
    assert {y for y, s in zip(found, split) if s == 'train'} == set(range(100))
    names = _by_number(lists/'CUB_200_2011'/'images_first50classes.txt')
    assert all(
        classes[y] == names[i].split('/')[0] for i, y in zip(sorted(labels), found) if i in names
    )
    cars = _cars_rows(lists/'cars196'/'cars_train_annos.mat', '', 'fname')
    assert len(cars[0]) == 8144
    assert set(cars[1]) == set(range(1, 197))
    assert cars[1][:3] == [14, 3, 91]
    assert Counter(_cars_parts(*cars, range(196))[3].tolist()) == {'train': 4052, 'test': 4092}
    refused(
        lambda: _cars_rows(lists/'cars196'/'cars_test_annos.mat', '', 'fname'),
        'withlabels',
    )
    parts = {
        part: [
            row.split(',')[1]
            for row in (lists/'market1501-lists'/f'market1501_{name}.csv').read_text().split()
        ]
        for part, name in (('train', 'train'), ('query', 'query'), ('gallery', 'test'))
    }
    _, people, classes, split, camera = _market1501_index(parts)
    assert Counter(split.tolist()) == {
        'train': 12936,
        'query': 3368,
        'gallery': 15913,
        'junk': 3819,
    }
    people = np.array(people)
    assert [len(set(people[split == part])) for part in ('train', 'query', 'gallery')] == [
        751,
        750,
        751,
    ]
    assert set(camera) == set(range(1, 7)) and set(people[split == 'junk']) == {-1}
    pairs = _read_pairs(lists/'lfw'/'pairs.txt')
    assert pairs[0] == (('Abel_Pacheco', 1), ('Abel_Pacheco', 4), True, 0)
    assert len(pairs) == 6000
    assert Counter((fold, same) for *_, same, fold in pairs) == {
        (f, s): 300 for f in range(10) for s in (True, False)
    }


# ---------------------------------------------------------------- what torchvision reads


def idx(a):
    return (
        b'\0\0\x08'
        + bytes([a.ndim])
        + np.array(a.shape, '>i4').tobytes()
        + a.astype(np.uint8).tobytes()
    )


@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.parametrize(
    'name, inner', [('mnist', 'MNIST/raw'), ('fashion_mnist', 'FashionMNIST/raw')]
)
def test_idx_files(tmp_path, name, inner, zipped):
    (tmp_path/inner).mkdir(parents=True)
    for part, labels in (('train', [3, 1, 2]), ('t10k', [5, 6])):
        y = np.array(labels)
        for what, values in (
            ('images-idx3', np.ones((len(y), 6, 6)) * y[:, None, None]),
            ('labels-idx1', y),
        ):
            raw = gzip.compress(idx(values)) if zipped else idx(values)
            (tmp_path/inner/f'{part}-{what}-ubyte{".gz" if zipped else ""}').write_bytes(raw)
    for root in (tmp_path, tmp_path/inner):
        images = load_data(name, root)
        assert images.labels.tolist() == greys(images) == [3, 1, 2, 5, 6]
        assert images.split.tolist() == ['train'] * 3 + ['test'] * 2
        assert len(images.classes) == 10
    assert load_data(name, tmp_path, size=3).images().shape == (5, 1, 3, 3)
    one = tmp_path/inner/f'train-labels-idx1-ubyte{".gz" if zipped else ""}'
    other = one.with_suffix('' if zipped else '.gz')
    other.write_bytes(idx(np.array([3, 1, 2])) if zipped else gzip.compress(one.read_bytes()))
    one.unlink()  # some of them gzipped
    assert load_data(name, tmp_path).labels.tolist() == [3, 1, 2, 5, 6]
    other.rename(one.with_name('away'))
    refused(lambda: load_data(name, tmp_path), 'train-labels-idx1-ubyte.gz is missing')
    ending = '.gz' if zipped else ''
    shutil.copy(
        tmp_path/inner/f't10k-labels-idx1-ubyte{ending}',
        tmp_path/inner/f'train-labels-idx1-ubyte{ending}',
    )
    refused(lambda: load_data(name, tmp_path), 'one label for each picture')


def cifar(folder, name, fine):
    "Six pictures in the format of CIFAR; fine: {file: labels}"
    inner = folder / ('cifar-10-batches-py' if name == 'cifar10' else 'cifar-100-python')
    inner.mkdir()
    for file, labels in fine.items():
        pixels = np.repeat(np.array(labels, np.uint8)[:, None], 3072, 1)
        pixels[:, 2048:] = 7  # blue, to see that channels are in order
        key = 'labels' if name == 'cifar10' else 'fine_labels'
        entry = {'data': pixels, key: labels, 'coarse_labels': [y * 7 % 20 for y in labels]}
        (inner/file).write_bytes(pickle.dumps(entry))
    names = {
        'label_names': [f'n{k}' for k in range(10)],
        'fine_label_names': [f'f{k}' for k in range(100)],
        'coarse_label_names': [f'c{k}' for k in range(20)],
    }
    (inner / ('batches.meta' if name == 'cifar10' else 'meta')).write_bytes(pickle.dumps(names))


@pytest.mark.parametrize('name', ['cifar10', 'cifar100'])
def test_cifar(tmp_path, name, monkeypatch):
    train = [f'data_batch_{k}' for k in range(1, 6)] if name == 'cifar10' else ['train']
    test = 'test_batch' if name == 'cifar10' else 'test'
    cifar(tmp_path, name, {file: [k, k + 5] for k, file in enumerate(train)} | {test: [9, 4]})
    refused(lambda: load_data(name, tmp_path), 'the published files')  # by their hash
    import torchvision.datasets

    monkeypatch.setattr(torchvision.datasets.CIFAR10, '_check_integrity', lambda self: True)
    monkeypatch.setattr(torchvision.datasets.cifar, 'check_integrity', lambda *args: True)
    images = load_data(name, tmp_path)
    own = tmp_path / ('cifar-10-batches-py' if name == 'cifar10' else 'cifar-100-python')
    assert load_data(name, own).sha256() == images.sha256()
    wanted = [y for k in range(len(train)) for y in (k, k + 5)] + [9, 4]
    assert images.labels.tolist() == wanted
    assert images.split.tolist()[-3:] == ['train', 'test', 'test']
    assert (images.images()[:, 0, 0, 0] * 255).round().int().tolist() == wanted
    assert (images.images()[:, 2] * 255).round().eq(7).all()
    assert images.images().shape[1:] == (3, 32, 32)
    if name == 'cifar100':
        coarse = load_data(name, tmp_path, superclasses=True)
        assert coarse.classes[3] == 'c3'
        assert coarse.labels.tolist() == [y * 7 % 20 for y in wanted]


def test_stl10(tmp_path, monkeypatch):
    inner = tmp_path/'stl10_binary'
    inner.mkdir()
    for part, labels in (('train', [1, 10]), ('test', [4]), ('unlabeled', [11])):
        pixels = np.array(labels, np.uint8)[:, None].repeat(3 * 96 * 96, 1)
        (inner/f'{part}_X.bin').write_bytes(pixels.tobytes())
        if part != 'unlabeled':
            (inner/f'{part}_y.bin').write_bytes(bytes(labels))
    (inner/'class_names.txt').write_text('\n'.join(f'n{k}' for k in range(10)))
    import torchvision.datasets

    monkeypatch.setattr(torchvision.datasets.STL10, '_check_integrity', lambda self: True)
    images = load_data('stl10', tmp_path, size=32)
    assert images.images().shape == (3, 3, 32, 32) and greys(images) == [1, 10, 4]
    assert images.labels.tolist() == [0, 9, 3]
    assert images.split.tolist() == ['train', 'train', 'test']
    more = load_data('stl10', tmp_path, unlabelled=True)
    assert more.labels.tolist() == [0, 9, 3, -1]
    assert more.split[-1] == 'unlabelled'
    assert more.source.shape == (3, 96, 96)


@pytest.mark.parametrize('inner', ['.', 'omniglot-py'])
def test_omniglot_folders(tmp_path, inner):
    made = []
    for part in ('images_background', 'images_evaluation'):
        for alphabet in ('Greek', 'Latin'):
            for k in (1, 2):
                folder = tmp_path/inner/part / alphabet/f'character{k:02}'
                folder.mkdir(parents=True)
                for drawer in (1, 2):
                    ink = np.ones((105, 105), bool)
                    ink[: k * 20 + (alphabet == 'Latin') * 3] = False
                    Image.fromarray(ink).save(folder/f'{len(made):04}_{drawer:02}.png')
                made.append(f'{alphabet}/{k:02}')
    images = load_data('omniglot', tmp_path, size=21)
    assert images.classes == made and images.labels.tolist() == np.arange(8).repeat(2).tolist()
    assert images.split.tolist() == ['train'] * 8 + ['test'] * 8
    share = images.images().mean((1, 2, 3)).mul(105).round().int().tolist()
    assert share == [20, 20, 40, 40, 23, 23, 43, 43] * 2


# ---------------------------------------------------------------- faces and their pairs


def lfw(folder, pairs='2 1\nAnn 1 2\nAnn 1 Bob 1\nBob 1 3\nBob 2 Ann 2\n', inner='lfw_funneled'):
    for person, n, grey in (('Ann', 2, 10), ('Bob', 3, 20)):
        for k in range(1, n + 1):
            paint(folder/inner/person/f'{person}_{k:04}.jpg', grey + k)
    (folder/'pairs.txt').write_text(pairs)
    return folder


@pytest.mark.parametrize('inner', ['lfw_funneled', 'lfw-deepfunneled', '.'])
def test_lfw(tmp_path, inner):
    images = load_data('lfw', lfw(tmp_path, inner=inner))
    assert greys(images) == [11, 12, 21, 22, 23] and images.classes == ['Ann', 'Bob']
    assert images.pairs.tolist() == [[0, 1, 1, 0], [0, 2, 0, 0], [2, 4, 1, 1], [3, 1, 0, 1]]
    part = images.subset([4, 2, 0, 2])  # pairs follow their pictures
    assert part.pairs.tolist() == [[2, 1, 0, 0], [1, 0, 1, 1]]
    assert images.subset(images.labels == 0).pairs.tolist() == [[0, 1, 1, 0]]
    assert images.sha256() != load_data('lfw', tmp_path, pairs=None).sha256()
    (tmp_path/'pairsDevTest.txt').write_text('1\nBob\t1\t2\nAnn\t1\tBob\t3\n')
    assert load_data('lfw', tmp_path, pairs='pairsDevTest.txt').pairs.tolist() == [
        [2, 3, 1, 0],
        [0, 4, 0, 0],
    ]
    (tmp_path/inner/'Bob'/'Bob_0001.jpg').write_bytes(b'')
    with pytest.warns(UserWarning, match='1 of 5'):
        images = load_data('lfw', tmp_path, on_error='skip')
    assert images.pairs.tolist() == [[0, 1, 1, 0], [2, 1, 0, 1]]
    assert greys(images) == [11, 12, 22, 23]


@pytest.mark.parametrize(
    'pairs',
    [
        '',
        '1 1\nAnn 1 2\n',
        '1 1\nAnn 1 2\nAnn 1 2\n',
        'x\n',
        '0\n',
        '1\nAnn 1 9\nAnn 1 Bob 1\n',
        '1\nAnn 1 two\nAnn 1 Bob 1\n',
        '1\nAnn 1 Bob 1\nAnn 1 2\n',
    ],
)
def test_pairs_that_are_wrong(tmp_path, pairs):
    refused(lambda: load_data('lfw', lfw(tmp_path, pairs)), 'pairs.txt')


# ---------------------------------------------------------------- downloads


def test_a_broken_download_leaves_nothing_behind(tmp_path, monkeypatch):
    import torchvision.datasets

    def download(self):
        Path(self.raw_folder).mkdir(parents=True)
        (Path(self.raw_folder)/'train-images-idx3-ubyte').write_bytes(b'half')
        raise RuntimeError('File not found or corrupted.')

    monkeypatch.setattr(torchvision.datasets.MNIST, 'download', download)
    refused(lambda: load_data('mnist', tmp_path/'new', download=True), 'downloaded', 'corrupted')
    assert not list((tmp_path/'new').iterdir())


def test_a_whole_download_is_put_in_place(tmp_path, monkeypatch):
    import torchvision.datasets

    def download(self):
        Path(self.raw_folder).mkdir(parents=True)
        for part, n in (('train', 3), ('t10k', 2)):
            (Path(self.raw_folder)/f'{part}-images-idx3-ubyte').write_bytes(
                idx(np.zeros((n, 2, 2)))
            )
            (Path(self.raw_folder)/f'{part}-labels-idx1-ubyte').write_bytes(idx(np.arange(n)))

    monkeypatch.setattr(torchvision.datasets.MNIST, 'download', download)
    monkeypatch.setattr(torchvision.datasets.MNIST, '_check_exists', lambda self: True)
    assert load_data('mnist', tmp_path, download=True).labels.tolist() == [0, 1, 2, 0, 1]
    assert {p.name for p in tmp_path.iterdir()} == {'MNIST'}

    def never(self):
        raise AssertionError('it is there already')

    monkeypatch.setattr(torchvision.datasets.MNIST, 'download', never)
    assert len(load_data('mnist', tmp_path, download=True)) == 5


# ---------------------------------------------------------------- archives


def entries(path, *items):
    with zipfile.ZipFile(path, 'w') as archive:
        for name, content in items:
            archive.writestr(name, content)
    return path


def picture(grey):
    file = io.BytesIO()
    Image.new('L', (2, 2), grey).save(file, 'png')
    return file.getvalue()


@pytest.mark.parametrize(
    'name', ['../x.png', 'a/../../x.png', '/x.png', 'C:/x.png', '..\\x.png', 'a/..', '\\x.png']
)
def test_archives_cannot_reach_outside(tmp_path, name):
    path = entries(
        tmp_path/'x.zip', ('a/1.png', picture(1)), ('b/1.png', picture(2)), (name, picture(3))
    )
    refused(lambda: load_data(path), 'x.zip', 'leads outside')
    (tmp_path/'x.csv').write_text('file,label\na/1.png,1\nb/1.png,2\n')
    refused(lambda: load_data(tmp_path/'x.csv'), 'x.zip', 'leads outside')
    path.unlink()
    for c in 'ab':
        paint(tmp_path/c/'1.png', 1)
    (tmp_path/'x.csv').write_text(f'file,label\na/1.png,1\nb/1.png,2\n"{name}",3\n')
    refused(lambda: load_data(tmp_path/'x.csv'), 'line 4')


def test_links_in_archives_are_refused(tmp_path):
    link = zipfile.ZipInfo('a/link.png')
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = entries(tmp_path/'x.zip', ('b/1.png', picture(2)), (link, '/etc/passwd'))
    refused(lambda: load_data(path), "'a/link.png'", 'symbolic link')


def test_an_entry_given_twice_is_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        path = entries(tmp_path/'x.zip', ('a/1.png', picture(1)), ('b/1.png', picture(2)),
                       ('a/1.png', picture(3)))
    refused(lambda: load_data(path), "'a/1.png' is there 2 times")


def test_archives_in_one_folder_and_with_clutter(tmp_path):
    good = [('a/1.png', picture(1)), ('a/deep/2.png', picture(1)), ('b/1.png', picture(2))]
    clutter = [
        ('readme.txt', ''),
        ('__MACOSX/a/._1.png', ''),
        ('.x/1.png', ''),
        ('a/.1.png', ''),
        ('top.png', picture(9)),
    ]
    for path in (
        entries(tmp_path/'x.zip', *good, *clutter),
        entries(tmp_path/'y.zip', *((f'all/{n}', c) for n, c in good), *clutter[:3]),
    ):
        images = load_data(path, depth=1)
        assert images.classes == ['a', 'b']
        assert greys(images) == [1, 1, 2]
        assert images.labels.tolist() == [0, 0, 1]
        assert load_data(path).classes == ['a', 'a/deep', 'b']
    for bad in (
        entries(tmp_path/'one.zip', *good[:2]),
        entries(tmp_path/'flat.zip', ('1.png', picture(1))),
        entries(tmp_path/'none.zip'),
    ):
        refused(lambda: load_data(bad, depth=1))
    for prefix in ('', 'all/'):
        for empty in (('c/', ''), ('c/notes.txt', 'x')):
            inside = [(f'{prefix}{n}', content) for n, content in (*good, empty)]
            archive = entries(tmp_path/'empty.zip', *inside)
            refused(lambda: load_data(archive), f'{prefix}c holds')
            with pytest.warns(UserWarning, match='1 folder holds no pictures .* c first'):
                assert load_data(archive, on_error='skip', depth=1).classes == ['a', 'b']


def test_names_that_begin_with_a_dot_and_a_slash_are_read(tmp_path):
    inside = [('./', ''), ('./a/1.png', picture(1)), ('./b/', ''), ('./b/2.png', picture(2)),
              ('c//3.png', picture(3)), ('./.hidden/4.png', picture(4))]
    images = load_data(entries(tmp_path/'x.zip', *inside))
    assert images.classes == ['a', 'b', 'c'] and greys(images) == [1, 2, 3]
    (tmp_path/'x.csv').write_text('file,label\n./a/1.png,k\nb/2.png,l\n')
    assert greys(load_data(tmp_path/'x.csv')) == [1, 2]


def with_header(path, at, form, value):
    "The central directory, which says what each entry is, changed for the first of them"
    raw = bytearray(path.read_bytes())
    struct.pack_into(form, raw, raw.index(b'PK\x01\x02') + at, value)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize('at, form, value, fault', [
    (24, '<I', 2**29 + 1, 'at most 536,870,912 bytes, got 536,870,913'), (24, '<I', 100, 'CRC'),
    (10, '<H', zipfile.ZIP_LZMA, 'stored or deflated')])
def test_an_entry_is_unpacked_no_further_than_its_header_says(tmp_path, at, form, value, fault):
    with zipfile.ZipFile(tmp_path/'x.zip', 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('a/1.png', bytes(2**26))
        for name in ('a/2.png', 'b/1.png'):
            archive.writestr(name, picture(2))
    path = with_header(tmp_path/'x.zip', at, form, value)
    tracemalloc.start()
    refused(lambda: load_data(path)[0], 'x.zip', 'a/1.png', fault)
    with pytest.warns(UserWarning, match='1 of 3 pictures could not be read'):
        assert greys(load_data(path, on_error='skip')) == [2, 2]
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def spelled_twice(*names):
    "Each name in both forms that Unicode has for it"
    return [unicodedata.normalize(form, name) for name in names for form in ('NFC', 'NFD')]


@pytest.mark.parametrize('kind', ['folder', 'zip', 'csv', 'features'])
def test_two_spellings_of_a_name_are_one_class(kind, tmp_path):
    names = spelled_twice('café', 'naïve')
    assert len(set(names)) == 4
    for grey, name in enumerate(names):
        paint(tmp_path/'x'/name/'1.png', grey)
    files = '\n'.join(f'{name}/1.png,{name},{name}' for name in names)
    (tmp_path/'x'/'x.csv').write_text(f'file,label,class_name\n{files}', encoding='utf-8')
    np.savez(tmp_path/'x.npz', z=np.arange(4.)[:, None], labels=names)
    shutil.make_archive(str(tmp_path/'x'), 'zip', tmp_path/'x')
    source = dict(folder='x', zip='x.zip', csv='x/x.csv', features='x.npz')[kind]
    images = load_data(tmp_path/source)
    assert images.classes == spelled_twice('café', 'naïve')[::2]
    values = greys(images) if kind != 'features' else images.images()[:, 0].int().tolist()
    assert dict(zip(values, images.labels.tolist())) == {0: 0, 1: 0, 2: 1, 3: 1}


@pytest.mark.parametrize('file', ['x.csv', 'x.npz', 'x.npy'])
def test_a_label_that_is_too_long_names_its_file(file, tmp_path):
    labels = ['9' * 5000, '1']
    for i in range(2):
        paint(tmp_path/f'{i}.png', i)
    lines = '\n'.join(f'{i}.png,{label}' for i, label in enumerate(labels))
    (tmp_path/'x.csv').write_text(f'file,label\n{lines}')
    np.savez(tmp_path/'x.npz', z=np.eye(2), labels=labels)
    np.save(tmp_path/'x.npy', np.eye(2))
    with pytest.raises(ValueError, match=f'{file}: expected labels of at most .* has 5,000'):
        load_data(tmp_path/file)


def test_a_class_may_be_called_minus_one(tmp_path):
    for grey, name in enumerate(['-1', '-5', '3']):
        paint(tmp_path/'x'/name/'1.png', grey)
    assert load_data(tmp_path/'x').classes == ['-1', '-5', '3']
    np.savez(tmp_path/'x.npz', z=np.eye(4), labels=['-1', '', '-5', '3'])
    images = load_data(tmp_path/'x.npz')
    assert [images.classes[y] for y in images.labels[[0, 2, 3]]] == ['-1', '-5', '3']
    assert images.labels[1] == -1 and len(images.classes) == 3
    np.savez(tmp_path/'x.npz', z=np.eye(3), labels=[-1, 5, 3])
    assert load_data(tmp_path/'x.npz').labels.tolist() == [-1, 1, 0]


def test_folders_without_a_picture_are_left_out_and_named(tmp_path):
    for name in 'abcd':
        (tmp_path/name).mkdir()
    for name in 'ac':
        (tmp_path/name/'1.png').write_bytes(picture(1))
    refused(lambda: load_data(tmp_path), 'b holds no pictures')
    with pytest.warns(UserWarning, match='2 folders hold no pictures .* b first'):
        images = load_data(tmp_path, on_error='skip')
    assert images.classes == ['a', 'c'] and images.labels.tolist() == [0, 1]


def sorted_twice(root):
    "Two groups of classes, of which two have one name"
    for grey, c in enumerate(('x/a', 'x/b', 'y/a', 'y b/c'), 1):
        for inner in ('', 'older/'):
            paint(root/c/f'{inner}{grey}.png', grey)
    return ['x/a', 'x/b', 'y/a', 'y b/c']


@pytest.mark.parametrize('around', ['', 'all/'])
@pytest.mark.parametrize('kind', ['folder', 'zip'])
def test_classes_at_a_depth(kind, around, tmp_path):
    kinds, root = sorted_twice(tmp_path/'in'/around), tmp_path/'in'/around

    def load(**options):
        if kind == 'folder':
            return load_data(root, **options)
        return load_data(shutil.make_archive(str(tmp_path/'x'), 'zip', tmp_path/'in'), **options)

    images = load(depth=2)
    assert images.classes == kinds and images.depth == 2 and load().depth == 'leaf'
    right(images, dict(enumerate(kinds, 1)))
    assert load(depth=1).classes == ['x', 'y', 'y b']
    assert load().classes == [name for kind in kinds for name in (kind, f'{kind}/older')]
    paint(root/'x'/'9.png', 9)
    paint(root/'8.png', 8)
    refused(lambda: load(depth=2), '8.png lies above')
    (root/'z').mkdir()
    with pytest.warns(UserWarning) as said:
        skipping = load(depth=2, on_error='skip')
    assert skipping.sha256() == images.sha256() and skipping.classes == kinds
    said = sorted(str(warning.message).partition(': ')[2] for warning in said)
    assert said == ['1 folder holds no pictures and will not be read, z first',
                    '2 pictures lie above the folders of classes and will not be read, 8.png '
                    'first',
                    '9 folders hold pictures; depth 2 makes 4 classes of them and leaves 1 out; '
                    "--depth leaf (depth='leaf') would make 9"]
    with pytest.warns(UserWarning, match='10 pictures lie above'):
        refused(lambda: load(depth=5, on_error='skip'), 'at depth 5 per class')
    for bad in (0, 1.5, '2', True):
        refused(lambda: load(depth=bad), 'depth: expected leaf, or an integer from 1 up')


@pytest.mark.parametrize('kind', ['folder', 'zip'])
def test_pictures_beside_the_classes_are_named_where_faults_are_left_out(kind, tmp_path):
    for name in 'ab':
        paint(tmp_path/'in'/name/'1.png', 1)
    paint(tmp_path/'in'/'cover.png', 2)
    root = tmp_path/'in'
    if kind == 'zip':
        root = shutil.make_archive(str(tmp_path/'x'), 'zip', root)
    with pytest.warns(UserWarning, match='1 picture lies above .*, cover.png first'):
        images = load_data(root, on_error='skip')
    assert images.classes == ['a', 'b'] and len(images) == 2
    with pytest.warns(UserWarning, match='1 picture lies above .*, cover.png first'):
        assert len(load_data(root)) == 2


def test_a_depth_is_refused_where_it_means_nothing(tmp_path):
    paint(tmp_path/'a.png', 1)
    (tmp_path/'x.csv').write_text('file,label\na.png,1')
    for data in ('digits', tmp_path/'x.csv', 'orl-faces', 'lfw', f'features:{tmp_path}/x.npy'):
        refused(lambda: load_data(data, depth=2), 'depth: expected an option of')


def test_stand_ins(tmp_path):
    people = [(f's{k}/{n}.pgm', picture(k)) for k in range(1, 41) for n in (1, 2)]
    entries(tmp_path/'att_faces.zip', *people)
    images = load_data('orl-faces', tmp_path, size=None)
    assert images.classes == [f's{k}' for k in range(1, 41)]  # 2 before 10
    assert greys(images) == [y + 1 for y in images.labels]
    assert (images.split == np.where(images.labels < 20, 'train', 'test')).all()
    for name in ('cub-50', 'cars196-train-crops'):
        inner = tmp_path/name
        inner.mkdir()
        rows = [(10, 'Z', 'test'), (2, 'b', 'train'), (10, 'Z', 'test'), (1, 'c', 'train')]
        entries(
            inner/'images.zip',
            *((f'images/{i}.jpg', picture(c)) for i, (c, _, _) in enumerate(rows)),
        )
        lines = [f'{i}.jpg,{c},{n},{s}' for i, (c, n, s) in enumerate(rows)]
        (inner/'labels.csv').write_text('\n'.join(['file,class_id,class_name,split', *lines]))
        images = load_data(name, tmp_path)
        assert images.classes == ['c', 'b', 'Z'] and images.labels.tolist() == [2, 1, 2, 0]
        assert greys(images) == [10, 2, 10, 1]
        assert images.split.tolist() == [s for _, _, s in rows]
        assert repr(images).startswith(f'ImageSet {name}:')
        (inner/'labels.csv').write_text(
            '\n'.join(['file,class_id,class_name,split', *lines]).replace('10,Z', '10,b', 1)
        )
        refused(lambda: load_data(name, tmp_path), 'one class_name')


# ---------------------------------------------------------------- anything at all

names = (
    st.text(alphabet='abXY019-_ é.', min_size=1, max_size=5)
    .map(str.strip)
    .filter(lambda s: s and not s.startswith('.') and s != '-1' and not s.endswith('.'))
)
trees = st.dictionaries(names, st.sets(names, min_size=1, max_size=3), min_size=2, max_size=5)
counter = iter(range(10**9))


def fresh(tmp_path):
    folder = tmp_path / str(next(counter))
    folder.mkdir()
    return folder


def right(images, name_of):  # grey -> name
    assert [images.classes[y] for y in images.labels] == [name_of[g] for g in greys(images)]


def only_refusals(call):
    "What is broken either still loads or is refused in a sentence"
    try:
        return call()
    except (ValueError, FileNotFoundError, TypeError) as error:
        assert type(error) in (ValueError, FileNotFoundError, TypeError), repr(error)
        assert 'expected' in str(error), str(error)


def flipped(raw, changes):
    raw = bytearray(raw)
    for place, value in changes:
        if raw:
            raw[place % len(raw)] = value
    return bytes(raw)


flips = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4)
folder_faults = st.sampled_from(['none', 'empty class', 'one class', 'broken', 'half', 'clutter'])


@quick
@given(tree=trees, fault=folder_faults)
def test_folders(tmp_path, tree, fault):
    root = fresh(tmp_path)
    name_of = {10 + k: c for k, c in enumerate(tree)}
    for grey, c in name_of.items():
        for file in tree[c]:
            paint(root/c/f'{file}.png', grey)
    files = sorted(root.rglob('*.png'))
    if fault == 'clutter':
        (root/c/'notes.txt').write_text('x'), (root/'.git').mkdir(), paint(
            root/'beside.png', 99
        )
    if fault == 'empty class':
        (root/'~none').mkdir()
    if fault == 'one class':
        for c in list(tree)[1:]:
            shutil.rmtree(root/c)
    if fault in ('broken', 'half'):
        files[0].write_bytes(files[0].read_bytes()[:40] if fault == 'half' else b'')
    if fault in ('none', 'clutter'):
        images = load_data(root)
        right(images, name_of)
        assert len(images) == len(files) and images.classes == sorted(tree)
    elif fault in ('broken', 'half'):
        refused(lambda: load_data(root).images(), str(files[0]))
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            images = only_refusals(lambda: load_data(root, on_error='skip'))
        if images:
            right(images, name_of)
        assert images is None or images.skipped == (str(files[0]),)
    else:
        refused(lambda: load_data(root), '~none' if fault == 'empty class' else 'two classes')


archive_faults = st.sampled_from(
    ['none', 'clutter', 'empty class', 'one class', 'broken', 'outside', 'twice', 'cut']
)


@quick
@given(tree=trees, fault=archive_faults, top=st.sampled_from(['', 'all/']), folders=st.booleans())
def test_archives(tmp_path, tree, fault, top, folders):
    root = fresh(tmp_path)
    name_of = {10 + k: c for k, c in enumerate(sorted(tree))}
    inside = [(f'{top}{c}/{file}.png', picture(grey)) for grey, c in name_of.items()
              for file in sorted(tree[c])]
    wanted = [grey for grey, c in name_of.items() for _ in tree[c]]
    culprit = 'x.zip'
    if fault == 'clutter':
        inside += [(f'{inside[0][0]}.txt', 'x'), ('__MACOSX/q/._1.png', ''), ('.git/1.png', '')]
    if fault == 'empty class':
        inside.append((f'{top}~none/', ''))
        culprit = '~none holds no pictures'
    if fault == 'one class':
        inside = inside[:len(tree[name_of[10]])]
        culprit = 'two classes'
    if fault == 'broken':
        inside[0] = inside[0][0], picture(10)[:40]
        culprit = inside[0][0]
    if fault == 'outside':
        inside.append((f'{top}../~.png', picture(99)))
        culprit = 'leads outside'
    if fault == 'twice':
        inside.append((inside[0][0], picture(99)))
        culprit = 'is there 2 times'
    if folders:
        inside = [(f'{top}{c}/', '') for c in tree if fault != 'one class'] + inside
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')             # zipfile's, of a name that is there twice
        path = entries(root/'x.zip', *inside)
    if fault == 'cut':
        path.write_bytes(path.read_bytes()[:-30])
    if fault in ('none', 'clutter'):
        images = load_data(path)
        right(images, name_of)
        assert sorted(greys(images)) == wanted and images.classes == sorted(tree)
    else:
        refused(lambda: load_data(path).images(), culprit)


csv_faults = st.sampled_from(
    [
        'none',
        'missing',
        'twice',
        'twice in disguise',
        'cells',
        'blank',
        'outside',
        'one class',
        'broken',
        'negative',
        'no column',
        'two columns',
        'empty',
    ]
)


@quick
@given(tree=trees, fault=csv_faults, zipped=st.booleans(), quoted=st.booleans())
def test_tables(tmp_path, tree, fault, zipped, quoted):
    root = fresh(tmp_path)
    name_of = {10 + k: c for k, c in enumerate(tree)}
    rows = [[f'{grey}_{file}.png', c] for grey, c in name_of.items() for file in sorted(tree[c])]
    for file, _ in rows:
        paint(root/'images'/file, int(file.split('_')[0]))
    header = ['file', 'label']
    culprit = ''
    if fault == 'missing':
        (root/'images' / rows[0][0]).unlink()
        culprit = rows[0][0]
    if fault == 'broken':
        (root/'images' / rows[0][0]).write_bytes(b'x')
        culprit = rows[0][0]
    if fault == 'twice':
        rows.append(rows[0])
        culprit = f'{rows[0][0]} is in line 2'
    if fault == 'twice in disguise':
        rows.append([f'./{rows[0][0]}', rows[1][1]])
        culprit = f'{rows[0][0]} is in line 2'
    if fault == 'cells':
        rows[-1] = rows[-1][:1]
        culprit = f'line {len(rows) + 1}'
    if fault == 'blank':
        rows[-1] = [rows[-1][0], ' ']
        culprit = f'line {len(rows) + 1}'
    if fault == 'outside':
        rows[-1] = ['../images/' + rows[-1][0], 'a']
        culprit = f'line {len(rows) + 1}'
    if fault == 'one class':
        rows = [[file, 'a'] for file, _ in rows]
    if fault == 'negative':
        rows = [[file, str(k - 5)] for k, (file, _) in enumerate(rows)]
        culprit = '-5'
    if fault == 'no column':
        header = ['file', 'klass']
        culprit = "'label'"
    if fault == 'two columns':
        header = ['file', 'file']
        culprit = "'file'"
    if fault == 'empty':
        rows = []
    if zipped:
        shutil.make_archive(str(root/'images'), 'zip', root, 'images')
        shutil.rmtree(root/'images')
    quote = '"' if quoted else ''
    text = '\n'.join(','.join(f'{quote}{cell}{quote}' for cell in row) for row in [header, *rows])
    (root/'x.csv').write_text(text, encoding='utf-8')
    if fault == 'none':
        right(load_data(root/'x.csv'), name_of)
    else:
        refused(lambda: load_data(root/'x.csv').images(), culprit)


@quick
@given(
    changes=flips,
    file=st.sampled_from(['x.csv', 'x.zip', 'y.npy', 'y.npz', 'y.safetensors', 'y.csv']),
)
def test_flipped_bytes(tmp_path, changes, file):
    from safetensors.numpy import save_file

    root = fresh(tmp_path)
    entries(root/'x.zip', *((f'{c}/{k}.png', picture(10 + k)) for k, c in enumerate('abab')))
    (root/'x.csv').write_text(
        'file,label,split,camera\n'
        + ''.join(f'{c}/{k}.png,{c},train,{k}\n' for k, c in enumerate('abab'))
    )
    z, y = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
    np.save(root/'y.npy', z), np.savez(root/'y.npz', features=z, labels=y)
    (root/'y.csv').write_text('label,split\n0,a\n1,a\n0,b\n1,b\n')
    save_file({'features': z, 'labels': y}, root/'y.safetensors')
    (root/file).write_bytes(flipped((root/file).read_bytes(), changes))
    sources = {'y.csv': ['y.npy'], 'x.zip': ['x.zip', 'x.csv']}.get(file, [file])
    for source in sources:
        images = only_refusals(lambda: load_data(root / source))
        pixels = None if images is None else only_refusals(images.images)
        if file == 'x.zip' and pixels is not None:
            right(images, dict(zip((10, 11, 12, 13), 'abab')))


@quick
@given(
    content=st.binary(max_size=60),
    file=st.sampled_from(['images.txt', 'classes.txt', 'image_class_labels.txt']),
)
def test_any_bytes_as_a_list_of_cub(tmp_path, content, file):
    root = fresh(tmp_path)
    inner, _, _ = cub(root)
    (inner/file).write_bytes(content)
    only_refusals(lambda: load_data('cub200', root))


# ---------------------------------------------------------------- vectors


@pytest.mark.parametrize('ending', ['.npy', '.npz', '.safetensors'])
@pytest.mark.parametrize('kind', [np.float16, np.float32, np.float64])
def test_features(tmp_path, ending, kind):
    from safetensors.numpy import save_file

    z, y = np.arange(12).reshape(4, 3).astype(kind) / 8, np.array([7, -1, 3, 7])
    path = tmp_path/f'z{ending}'
    if ending == '.npy':
        np.save(path, z), np.save(tmp_path/'z.labels.npy', y)
    if ending == '.npz':
        np.savez(path, embeddings=z, labels=y, split=['a', 'a', 'b', 'b'], camera=[1, 2, 3, 4])
    if ending == '.safetensors':
        save_file({'z': z, 'labels': y}, path)
    images = load_data(f'features:{path}')
    assert images.images().dtype == torch.float32
    assert torch.equal(images.images(), torch.tensor(z).float())
    assert images.classes == ['3', '7'] and images.labels.tolist() == [1, -1, 0, 1]
    part = images.subset(images.labels == 1)
    assert torch.equal(part.images(), torch.tensor(z[[0, 3]]).float()) and part[1][1] == 1
    ((batch, labels),) = DataLoader(images, 4)
    assert batch.shape == (4, 3) and labels.tolist() == [1, -1, 0, 1]
    assert 'vectors 3' in repr(images) and images.new_empty().images().shape == (0, 3)
    if ending == '.npz':
        assert images.split.tolist() == ['a', 'a', 'b', 'b'] and images.camera.tolist() == [
            1,
            2,
            3,
            4,
        ]
    named = load_data(path, labels=['b', 'a', 'b', 'a'])
    assert named.classes == ['a', 'b'] and named.labels.tolist() == [1, 0, 1, 0]
    for call in (
        lambda: images.show(),
        lambda: turn_classes(images).images(),
        lambda: load_data(path, labels=[0, 1]),
        lambda: load_data(path, labels=[.5, 1, 1, 0]),
        lambda: load_data(path, labels=[1, 1, 1, 1]),
    ):
        refused(call)
    refused(lambda: load_data(path, labels=[0, 1]), str(path), '4 vectors', 'got 2')


class Trap:
    "Makes a folder when it is unpickled"

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickles_are_never_loaded(tmp_path):
    np.save(tmp_path/'z.npy', np.array([[Trap(tmp_path/'sprung')]], object), allow_pickle=True)
    np.savez(tmp_path/'z.npz', z=np.array([[Trap(tmp_path/'sprung')]], object), labels=[0])
    for ending in ('npy', 'npz'):
        refused(lambda: load_data(tmp_path/f'z.{ending}'), 'cannot be read')
    assert not (tmp_path/'sprung').exists()
    for z in (np.array([print, 1], object), np.eye(3, dtype=int)):
        np.save(tmp_path/'z.npy', z, allow_pickle=True)
        np.save(tmp_path/'z.labels.npy', np.arange(len(z)))
        refused(lambda: load_data(tmp_path/'z.npy'))
    np.savez(tmp_path/'z.npz', a=np.eye(3), labels=[0, 1, 2])
    refused(lambda: load_data(tmp_path/'z.npz'), 'features')
    np.savez(tmp_path/'z.npz', z=np.full((2, 3), np.nan), labels=[0, 1])
    refused(lambda: load_data(tmp_path/'z.npz'), 'row 0')


@pytest.mark.parametrize('given', [
    np.full((2, 4, 4), 5, np.uint8), np.full((2, 4, 4), .5, np.float32), np.full((2, 3), .5)])
def test_a_picture_may_be_written_to(given):
    images = ImageSet(given, [0, 1])
    expected = images[0][0].clone()
    images[0][0].zero_()
    images.images().zero_()
    assert torch.equal(images[0][0], expected) and given.min() > 0


# ---------------------------------------------------------------- transforms


def test_crops_are_drawn_for_each_picture_and_by_the_generator():
    x = torch.arange(16 * 36.0).view(16, 1, 6, 6)
    first, again, other = (
        crop_and_flip(x, torch.Generator().manual_seed(s), side=4) for s in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    corners = {tuple((first[i, 0, 0] - x[i].min()).tolist()) for i in range(16)}
    tops = {int(first[i].min() - x[i].min()) // 6 for i in range(16)}
    assert len(corners) > 4 and tops == {0, 1, 2}  # not one crop for all
    assert crop_and_flip(x.to('meta'), side=4).shape == (16, 1, 4, 4)  # all on its device
    assert torch.equal(crop_and_flip(x, side=6, flip=0), x)
    padded = crop_and_flip(x + 1, torch.Generator().manual_seed(0), side=6, pad=3)
    assert padded.shape == x.shape and (padded == 0).any()
    for bad in (dict(side=7), dict(side=0), dict(flip=2), dict(pad=-1)):
        refused(lambda: crop_and_flip(x, **bad))


def test_transforms_of_torchvision_fit_behind_a_set(tmp_path):
    from torchvision.transforms import v2

    images = load_data(many(tmp_path), size=8).transformed(
        v2.Compose([v2.CenterCrop(6), v2.RandomHorizontalFlip()])
    )
    ((batch, _),) = DataLoader(images, 12)
    assert batch.shape == (12, 3, 6, 6) and images.source.shape == (3, 6, 6)
    assert images.new_empty().images().shape == (0, 3, 6, 6)
    assert images.subset([1]).images().shape == (1, 3, 6, 6)


def test_transforms_travel_to_workers_and_fastai(tmp_path):
    from fastai.data.core import DataLoaders

    images = load_data(many(tmp_path), size=8)
    train = images.transformed(partial(crop_and_flip, side=6))
    loader = DataLoader(train, 12, num_workers=1, multiprocessing_context='spawn')
    assert next(iter(loader))[0].shape == (12, 3, 6, 6)
    dls = DataLoaders.from_dsets(
        train,
        images.transformed(partial(center_crop, side=6)),
        bs=4,
        device='cpu',
        num_workers=0,
    )
    assert dls.one_batch()[0].shape == (4, 3, 6, 6)
