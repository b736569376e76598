"""Pixels that commands keep for each other: never of another picture, never more than allowed, and
no harm from what happens to the folder."""
import multiprocessing
import os
import pickle
import shutil
import zipfile

import numpy as np
import PIL
import pytest
import torch
from PIL import Image

from dml_nb.data import decoding, load_data, pixels
from dml_nb.data.decoding import read_image
from dml_nb.data.pixels import KeptPixels
from dml_nb.training import create_embedder, save_embedder

how = (12, 10), 'RGB', 'squash'


def paint(path, seed=0):
    x = np.random.default_rng(seed).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(x).save(path)                   # bitmaps of one size are files of one size
    return path


@pytest.fixture
def decoded(monkeypatch):
    "Names of the files that are decoded from now on"
    def noted(file, *options):
        names.append(file.name)
        return decode(file, *options)

    names, decode = [], pixels._decode
    pixels.decoder()                                # which looks at where `_decode` is from
    monkeypatch.setattr(pixels, '_decode', noted)
    monkeypatch.setattr(pixels, 'SETTLED', 0)       # these files are taken as they are
    return names


@pytest.fixture
def files(tmp_path):
    return [paint(tmp_path/'photos'/f'{i}.bmp', i) for i in range(6)]


def seen(folder, files, how=how, **options):
    "Pixels as a command reads them, which are always those of the files"
    with KeptPixels(folder, **options) as kept:
        found = [kept.pixels(file, *how) for file in files]
    for x, file in zip(found, files):
        assert torch.equal(x / 255, read_image(file, how[0], *how[1:]))
    return found


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_the_next_command_decodes_nothing(decoded, files, tmp_path):
    seen(tmp_path/'kept', files)
    assert decoded == [file.name for file in files]
    seen(tmp_path/'kept', files[::-1])
    assert len(decoded) == 6


def test_a_changed_file_is_read_again(decoded, files, tmp_path):
    "Of the same number of bytes and, as copying tools leave it, of the same time"
    seen(tmp_path/'kept', files)
    before = files[2].stat()
    paint(files[2], 99)
    os.utime(files[2], ns=(before.st_atime_ns, before.st_mtime_ns))
    after = files[2].stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    seen(tmp_path/'kept', files)
    assert decoded[6:] == ['2.bmp']


def test_a_file_that_has_only_just_changed_is_not_kept(decoded, files, tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, 'SETTLED', 10**11)
    seen(tmp_path/'kept', files)
    seen(tmp_path/'kept', files)
    assert len(decoded) == 12 and not (tmp_path/'kept').exists()


def test_a_file_that_changes_while_it_is_read_is_not_kept(decoded, files, tmp_path, monkeypatch):
    "Here its folder is another one for a moment"
    def lead_to(folder):
        link.unlink(missing_ok=True)
        link.symlink_to(folder)

    def changing(file, *options):
        lead_to(other)
        return noted(file, *options)

    noted, link = pixels._decode, tmp_path/'link'
    other = paint(tmp_path/'other'/'0.bmp', 7).parent
    lead_to(files[0].parent)
    with monkeypatch.context() as at_first, KeptPixels(tmp_path/'kept') as kept:
        at_first.setattr(pixels, '_decode', changing)
        kept.pixels(link/'0.bmp', *how)
    lead_to(files[0].parent)
    seen(tmp_path/'kept', [link/'0.bmp'])
    assert decoded == ['0.bmp', '0.bmp']


@pytest.mark.parametrize('other', [
    ((10, 12), 'RGB', 'squash'), ((12, 10), 'L', 'squash'), ((12, 10), 'RGB', 'cut'),
    ((12, 10), 'RGB', 'pad')])
def test_other_sizes_colours_and_fits_are_other_pixels(other, decoded, files, tmp_path):
    seen(tmp_path/'kept', files)
    seen(tmp_path/'kept', files, other)
    assert len(decoded) == 12


@pytest.mark.parametrize('changed', ['Pillow', 'code'])
def test_another_decoder_decodes_again(changed, decoded, files, tmp_path, monkeypatch):
    code = tmp_path/'images.py'
    code.write_text('code')
    monkeypatch.setattr(pixels.inspect, 'getsourcefile', lambda _: code)
    monkeypatch.setattr(pixels, 'decoder', pixels.decoder.__wrapped__)
    seen(tmp_path/'kept', files)
    seen(tmp_path/'kept', files)
    assert len(decoded) == 6
    if changed == 'Pillow':
        monkeypatch.setattr(PIL, '__version__', '0.1')
    else:
        code.write_text('other code')
    seen(tmp_path/'kept', files)
    assert len(decoded) == 12


def test_the_code_that_decodes_is_that_of_pictures():
    assert pixels.inspect.getsourcefile(pixels._decode) == decoding.__file__


def test_pictures_in_a_zip(decoded, files, tmp_path):
    def pack(first):
        with zipfile.ZipFile(tmp_path/'photos.zip', 'w') as packed:
            for place, file in zip(['a/0.bmp', 'b/0.bmp'], (files[first], files[5])):
                packed.write(file, place)
        with KeptPixels(tmp_path/'kept') as kept:
            found = load_data(str(tmp_path/'photos.zip'), size=12, kept=kept)
            return [found[i][0] for i in range(2)]

    x = pack(0)
    assert not torch.equal(x[0], x[1]) and torch.equal(pack(1)[1], x[1])
    assert len(decoded) == 4 and not torch.equal(pack(2)[0], x[0])


def test_never_above_the_limit(decoded, files, tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, 'PART', 700)        # two pictures
    row = 3 * 12 * 10
    for side in range(12, 24):
        seen(tmp_path/'kept', files, ((side, 10), 'RGB', 'squash'), limit=24 * row)
        assert 0 < bytes_in(tmp_path/'kept') <= 24 * row
    for side, again in ((23, 0), (12, 6)):          # the oldest have gone
        del decoded[:]
        seen(tmp_path/'kept', files, ((side, 10), 'RGB', 'squash'), limit=24 * row)
        assert len(decoded) == again
    seen(tmp_path/'none', files, limit=0)
    assert not bytes_in(tmp_path/'none')


def test_what_is_in_use_stays(decoded, files, tmp_path, monkeypatch):
    "A set that is larger than the limit does not drive itself out, picture by picture"
    monkeypatch.setattr(pixels, 'PART', 700)        # two pictures
    limit = 10 * 3 * 12 * 10
    seen(tmp_path/'kept', files, limit=limit)
    with KeptPixels(tmp_path/'kept', limit) as kept:
        for side in (12, 20, 30):
            for file in files:
                kept.pixels(file, (side, 10), 'RGB', 'squash')
    del decoded[:]
    seen(tmp_path/'kept', files, limit=limit)
    assert not decoded


def write(folder, files, barrier):
    pixels.SETTLED, pixels.PART = 0, 700
    barrier.wait()
    for _ in range(5):
        seen(folder, files)


def test_two_processes_at_once(decoded, files, tmp_path):
    spawn = multiprocessing.get_context('forkserver')
    barrier = spawn.Barrier(2)
    parts = files[:4], files[2:]
    running = [spawn.Process(target=write, args=(tmp_path/'kept', part, barrier))
               for part in parts]
    for process in running: process.start()
    for process in running: process.join()
    assert [process.exitcode for process in running] == [0, 0]
    left = [path.name for path in (tmp_path/'kept').iterdir()]
    assert left and all(name.endswith('.pixels') for name in left)
    seen(tmp_path/'kept', files)
    assert not decoded


def test_what_a_killed_process_left_is_removed(decoded, files, tmp_path):
    (tmp_path/'kept').mkdir()
    left = tmp_path/'kept'/'.0123456789abcdef.pixels.4711'      # as `write_atomically` names it
    left.write_bytes(bytes(100))
    seen(tmp_path/'kept', files)
    assert not left.exists()


def damage_rows(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize('damage, again', [
    (damage_rows, 1), (lambda path: path.write_bytes(b''), 6),
    (lambda path: path.write_bytes(path.read_bytes()[:-9]), 6),
    (lambda path: path.unlink(), 6), (lambda path: shutil.rmtree(path.parent), 6)])
def test_damage_costs_no_more_than_decoding(damage, again, decoded, files, tmp_path):
    seen(tmp_path/'kept', files)
    damage(next((tmp_path/'kept').iterdir()))
    del decoded[:]
    seen(tmp_path/'kept', files)
    assert len(decoded) == again


def test_the_folder_may_go_while_it_is_used(decoded, files, tmp_path):
    seen(tmp_path/'kept', files[:3])
    with KeptPixels(tmp_path/'kept') as kept:
        shutil.rmtree(tmp_path/'kept')
        for file in files:
            assert torch.equal(kept.pixels(file, *how) / 255, read_image(file, *how))
    seen(tmp_path/'kept', files)


def test_a_folder_that_cannot_be_written(decoded, files, tmp_path):
    (tmp_path/'kept').write_text('a file is in its place')
    seen(tmp_path/'kept', files)


def test_a_full_disk(decoded, files, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(pixels, 'write_atomically', full)
    seen(tmp_path/'kept', files)


def test_a_copy_in_another_process_only_reads(decoded, files, tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, 'PART', 700)        # two pictures
    seen(tmp_path/'kept', files[:3])
    with pickle.loads(pickle.dumps(KeptPixels(tmp_path/'kept'))) as copy:
        for file in files:
            copy.pixels(file, *how)
    assert decoded[3:] == ['3.bmp', '4.bmp', '5.bmp']
    seen(tmp_path/'kept', files)
    assert decoded[6:] == ['3.bmp', '4.bmp', '5.bmp']


def test_commands_decode_once(decoded, tmp_path, dml):
    for i in range(8):
        paint(tmp_path/'photos'/'ab'[i % 2]/f'{i}.bmp', i)
    (tmp_path/'photos'/'a'/'broken.jpg').write_bytes(b'no picture')
    save_embedder(create_embedder('small_convnet', 4, 3, 12, 0, None), tmp_path/'model')

    def decoded_by(name, *words):
        del decoded[:]
        run = dml(name, tmp_path/'model', tmp_path/'photos', *words)
        assert not run.returncode, run.stderr
        return set(decoded) - {'broken.jpg'}

    assert len(decoded_by('evaluate')) == 8
    assert not decoded_by('index', '--out', tmp_path/'index')
    assert not decoded_by('embed', '--out', tmp_path/'z.npz')
    paint(tmp_path/'photos'/'a'/'0.bmp', 99)
    assert decoded_by('evaluate') == {'0.bmp'}
