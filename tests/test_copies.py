"""Near-copies: found in bursts that are made here, few in photographs without them, and the same
numbers as a measure with the groups by hand."""
import json
import os
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from dml_nb.data import load_data
from dml_nb.evaluation import evaluate
from dml_nb.search import copies, load_pictures
from dml_nb.search.copies import copies_among, find_duplicates, grey_of, linked, without_copies
from dml_nb.training import create_embedder, save_embedder

real = os.environ.get('DML_NB_DATA')
needs_photos = pytest.mark.skipif(not real, reason='needs DML_NB_DATA')


def scene(seed, side=96):
    "Shapes of many sizes in colour, which no other seed draws alike"
    draw = np.random.default_rng(seed)
    x = sum(np.asarray(Image.fromarray(draw.integers(0, 255, (n, n, 3), dtype='uint8')).resize(
        (side, side), Image.BICUBIC), dtype=float) / k for k, n in enumerate((4, 9, 17, 31), 1))
    return Image.fromarray((x / x.max() * 255).astype('uint8'))


def shifted(picture, share):
    width, height = picture.size
    return picture.transform(picture.size, Image.AFFINE,
                             (1, 0, share * width, 0, 1, -share * height / 2))


def encoded(picture, quality=30):
    content = BytesIO()
    picture.save(content, 'JPEG', quality=quality)
    return Image.open(BytesIO(content.getvalue()))


def once_more(picture, seed):
    "A second shot: turned, moved, brighter or darker, encoded again"
    draw = np.random.default_rng(seed)
    moved = shifted(picture.rotate(draw.uniform(-1, 1), Image.BILINEAR), draw.uniform(-.05, .05))
    return encoded(ImageEnhance.Brightness(moved).enhance(draw.uniform(.8, 1.2)), 60)


CHANGES = {
    'shifted': lambda picture: shifted(picture, .06),
    'brighter': lambda picture: ImageEnhance.Brightness(picture).enhance(1.2),
    'darker': lambda picture: ImageEnhance.Brightness(picture).enhance(.5),
    'encoded': encoded,
    'small': lambda picture: picture.resize((48, 48), Image.BILINEAR),
    'squashed': lambda picture: picture.resize((96, 60), Image.BILINEAR),
    'all of it': lambda picture: once_more(picture, 0),
}


@pytest.fixture(scope='module')
def scenes():
    return [scene(i) for i in range(120)]


def greys(pictures):
    rows = [np.asarray(picture.convert('RGB').resize((64, 64), Image.BILINEAR)) for picture in pictures]
    return copies.small_grey(torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2) / 255)


@pytest.mark.parametrize('change', CHANGES)
def test_what_a_burst_changes_is_a_copy(change, scenes):
    there = greys(scenes)
    pairs, alike, least = copies_among(torch.cat([there, greys(map(CHANGES[change], scenes))]))
    assert pairs.tolist() == [[i, i + 120] for i in range(120)]
    assert alike.min() >= least


def test_scenes_without_copies_have_none(scenes):
    assert len(copies_among(greys(scenes))[0]) == 0
    mirrored = [picture.transpose(Image.FLIP_LEFT_RIGHT) for picture in scenes]
    assert len(copies_among(greys([*scenes, *mirrored]))[0]) == 0


@pytest.mark.parametrize('count', [1, 2, 3, 17, 33])
def test_few_pictures(count, scenes):
    assert len(copies_among(greys(scenes[:count]))[0]) == 0
    both = copies_among(greys([*scenes[:count], scenes[0]]))[0]
    assert both.tolist() == [[0, count]]


def test_blank_pages_are_copies_of_nothing(scenes):
    blank = [Image.new('RGB', (64, 64), (i, i, i)) for i in (0, 0, 255, 255, 130)]
    assert len(copies_among(greys([*scenes, *blank]))[0]) == 0


def test_blocks_change_nothing(scenes, monkeypatch):
    some = greys([*scenes, *map(encoded, scenes)])
    whole = copies_among(some)
    search, compare = copies.candidates, copies.likeness_of_pairs
    monkeypatch.setattr(copies, 'candidates', lambda x, k: search(x, k, block=7))
    monkeypatch.setattr(copies, 'likeness_of_pairs', lambda detail, lengths, pairs: compare(detail, lengths, pairs, 5))
    in_blocks = copies_among(some)
    assert torch.equal(whole[0], in_blocks[0]) and torch.allclose(whole[1], in_blocks[1], atol=1e-5)


def test_as_groups_by_hand():
    "With a gallery and without, with groups and without; unlabelled pictures are no answers"
    draw = np.random.default_rng(0)
    images = [scene(i) for i in range(60)]
    images += [once_more(images[i], i) for i in range(30)]
    grey, labels = greys(images), np.append(np.arange(60) % 6, np.arange(30) % 6)
    labels[[3, 40, 62]] = -1
    z = torch.from_numpy(draw.normal(size=(90, 8)))
    z[60:] = z[:30] + .1 * z[60:]
    codes = np.append(np.arange(60), np.arange(30))
    for given in (None, np.where(np.arange(90) < 45, np.arange(90) // 15, -1)):
        report = evaluate(z, labels, groups=given)
        found = without_copies(z, labels, dict(groups=given), report, grey)
        both = codes if given is None else linked(90, [
            (i, j) for i in range(90) for j in range(i)
            if codes[i] == codes[j] or given[i] >= 0 and given[i] == given[j]])
        by_hand = evaluate(z, labels, groups=both)
        assert found['recall@1'] == pytest.approx(by_hand['recall@1'])
        assert found['before'] == report['recall@1'] > found['recall@1']
        right = [i for i in range(90) if report.measure('recall@1')[i] == 1]
        unit = torch.nn.functional.normalize(z)
        S = (unit @ unit.T).fill_diagonal_(-2).numpy()
        S[:, labels < 0] = -2
        if given is not None:
            S[(given[:, None] == given) & (given >= 0)] = -2
        copied = [i for i in right if codes[S[i].argmax()] == codes[i]]
        assert found['share'] == pytest.approx(len(copied) / len(right)) and len(copied) > 20
    sides = dict(gallery=z[:60], gallery_labels=labels[:60])
    report = evaluate(z[60:], labels[60:], **sides)
    found = without_copies(z[60:], labels[60:], sides, report, grey[60:], grey[:60])
    by_hand = evaluate(z[60:], labels[60:], **sides, groups=codes[60:], gallery_groups=codes[:60])
    assert found['recall@1'] == pytest.approx(by_hand['recall@1'])
    assert found['queries'] == 28 and found['share'] > .9


def test_a_copy_of_a_copy_in_the_gallery_is_a_copy():
    "The query is like the first of a burst only, whose second is nearest to it after that"
    draw = np.random.default_rng(0)
    images = [scene(i) for i in range(60)]
    drift = [shifted(images[0], share) for share in (.1, .2)]       # like the one before, not the first
    grey = greys([*images, *drift])
    pairs = copies_among(grey)[0].tolist()
    assert [0, 60] in pairs and [60, 61] in pairs and [0, 61] not in pairs
    z, labels = torch.from_numpy(draw.normal(size=(62, 8))), np.append(np.arange(60) % 6, [0, 0])
    z[60:] = z[0] + .1 * z[60:]
    sides = dict(gallery=z[1:], gallery_labels=labels[1:])
    found = without_copies(z[:1], labels[:1], sides, evaluate(z[:1], labels[:1], **sides), grey[:1],
                           grey[1:])
    apart = np.append(np.arange(60), [0, 0])
    by_hand = evaluate(z[:1], labels[:1], **sides, groups=apart[:1], gallery_groups=apart[1:])
    assert found['recall@1'] == by_hand['recall@1'] == 0 and found['before'] == 1


@pytest.fixture
def shop(tmp_path, monkeypatch):
    "Two hundred photographs of five classes, thirty of them taken three times; a model"
    monkeypatch.chdir(tmp_path)
    for i in range(200):
        place = Path('photos')/f'kind {i % 5}'
        place.mkdir(parents=True, exist_ok=True)
        scene(i).save(place/f'{i:03} a.png')
        for k, name in enumerate('bc' if i < 30 else ''):
            once_more(scene(i), 2 * i + k).save(place/f'{i:03} {name}.jpg')
    save_embedder(create_embedder('small_convnet', 4, 3, 32, seed=0), 'model', depth='leaf')


def test_what_duplicates_lists_evaluate_reads(shop, dml):
    run = dml('duplicates', 'photos', '--out', 'copies.csv', '--html', 'copies.html')
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith('photos: 90 of 260 pictures have near-copies, in 30 groups, by a ')
    assert 'and 10 more groups; --out holds all of them' in run.stdout
    assert Path('copies.html').read_text().count('<figure>') == 90
    assert run.stdout.endswith('wrote copies.csv; next: dml evaluate MODEL copies.csv --images photos '
                               '--group group\n')
    said = json.loads(dml('duplicates', 'photos', '--json').stdout)
    assert [len(group['files']) for group in said['groups']] == [3] * 30
    assert all(len({Path(file).name[:3] for file in group['files']}) == 1 for group in said['groups'])
    words = ['evaluate', 'model', 'photos']
    found = json.loads(dml(*words, '--json').stdout)
    rest = found['near_copies']
    assert rest['queries'] == 90 and rest['share'] > .1 and rest['before'] > rest['recall@1'] + .005
    grouped = dml('evaluate', 'model', 'copies.csv', '--images', 'photos', '--group', 'group', '--json')
    grouped = json.loads(grouped.stdout)
    assert grouped['measures']['recall@1'] == pytest.approx(rest['recall@1'])
    assert grouped['near_copies']['share'] == 0
    text = dml(*words).stdout
    assert (f"{100 * rest['share']:.0f} % of the right answers are near-copies of the query; without "
            f"them R@1 is {100 * rest['recall@1']:.1f} %") in text
    assert f"without near-copies   {100 * rest['recall@1']:.1f}" in text
    for path in Path('photos').rglob('*.jpg'):
        path.unlink()
    found = json.loads(dml(*words, '--json').stdout)
    assert found['near_copies']['share'] == 0 and 'near-copies' not in dml(*words).stdout


def test_a_zip_and_a_table_have_the_same_copies(shop, dml):
    folder = find_duplicates('photos')
    shutil.make_archive('zipped', 'zip', '.', 'photos')
    files = [group['files'] for group in folder['groups']]
    copies.duplicates_table(folder, 'named.csv', {'label': 'kind'})
    named = load_pictures('csv:named.csv', 32, images='photos', group='group', columns={'label': 'kind'})
    assert len(named.classes) == 5 and len({*named.groups}) == 200
    assert [group['files'] for group in find_duplicates('zipped.zip')['groups']] == files
    copies.duplicates_table(folder, 'copies.csv')
    of_table = find_duplicates('csv:copies.csv', images='photos')
    assert [group['files'] for group in of_table['groups']] == files
    images = load_pictures('csv:copies.csv', 32, images='photos', group='group')
    assert sorted(images.classes) == [f'kind {i}' for i in range(5)]
    refused = dml('duplicates', 'csv:copies.csv', '--images', 'photos', '--out', 'copies.csv')
    assert refused.returncode == 2 and 'another file than the data' in refused.stderr


def test_glyphs_have_few_copies():
    glyphs = load_data('glyphs')
    test = glyphs.subset(glyphs.split == 'test')
    z = test.images().flatten(1)
    report = evaluate(z, test.labels)
    found = without_copies(z, test.labels, {}, report, grey_of(test))
    assert found['share'] < .1 and abs(found['before'] - found['recall@1']) < .03


@needs_photos
@pytest.mark.parametrize('name, words, given', [
    ('birds', 'zip:{}/cub-50/images.zip', {}),
    ('cars', 'csv:{}/cars196-train-crops/labels.csv', dict(columns={'label': 'class_id'}))])
def test_photographs(name, words, given):
    "Hardly any copies, and second shots that are made of them are found"
    images = load_data(words.format(real), size=64, fit='squash', **given)
    images = images.subset(np.random.default_rng(0).permutation(len(images))[:600])
    pixels = [Image.fromarray((255 * x).byte().permute(1, 2, 0).numpy()) for x in images.images()]
    there, again = greys(pixels), greys(once_more(picture, i) for i, picture in enumerate(pixels))
    assert len(copies_among(there)[0]) < 6
    pairs, _, least = copies_among(torch.cat([there, again]))
    own = pairs[:, 1] == pairs[:, 0] + 600
    assert own.sum() > 500 and (~own).sum() < 12 and .8 < least < .9
