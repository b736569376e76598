"From nested folders, or a table with sets of labels, to browse, by the commands."
import contextlib
import csv
import io
import json
import shutil
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from dml_nb.cli import main
from dml_nb.data import ImageSet, load_data
from dml_nb.evaluation import evaluate_relevance
from dml_nb.losses import InfoNCE, Levels, MultiSimilarity, Shares
from dml_nb.search.browser import create_app
from dml_nb.search.mistakes import Collection
from dml_nb.search.pictures import load_pictures, rule_for
from dml_nb.training import load_embedder, metric_dataloaders, metric_learner

pytestmark = pytest.mark.usefixtures('one_thread')
SHORT = '--epochs 1 --classes 4 --size 20 --grey --body small_convnet --dim 16'.split()


def dml(*words):
    "What a command prints, and what it says of errors; its exit status"
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding='utf-8') for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with mock.patch('sys.argv', ['dml', *map(str, words)]):
                status = main() or 0
        except SystemExit as end:
            status = end.code or 0
    for file in (out, err):
        file.flush()
    return status, *(file.buffer.getvalue().decode() for file in (out, err))


def paint(path, family, species, i):
    "A family is a shade of the upper half, a species the width of a bar in the lower one"
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng([family, species, i]).integers(0, 30, (20, 20)).astype(np.uint8)
    x[:10] += np.uint8(60 * family)
    x[12:, :4 + 4 * species] += 150
    Image.fromarray(x).save(path)


@pytest.fixture(scope='module')
def nested(tmp_path_factory):
    "Three families of four species, eight pictures each, and a model with levels"
    root = tmp_path_factory.mktemp('nested')
    for family in range(3):
        for species in range(4):
            for i in range(8):
                paint(root/'photos'/f'family{family}'/f'kind{species}'/f'{i}.png', family, species, i)
    status, out, err = dml('train', root/'photos', '--levels', '--out', root/'model', *SHORT)
    assert status == 0 and 'R@1' in out, err
    return root


@pytest.fixture(scope='module')
def table(tmp_path_factory):
    "Pictures with one or two of five labels, and a model of them"
    root = tmp_path_factory.mktemp('table')
    rows = [('path', 'tags')]
    for i in range(80):
        first, second = i % 5, (i // 5) % 5
        paint(root/f'{i}.png', first % 3, second % 4, i)
        rows.append((f'{i}.png', '|'.join(dict.fromkeys([f'tag{first}', f'tag{second}']))))
    rows[1:3] = [('0.png', 'tag0'), ('1.png', '-1')]
    with open(root/'table.csv', 'w', newline='') as file:
        csv.writer(file).writerows(rows)
    status, out, err = dml('train', root/'table.csv', '--multi-label', '|', '--column', 'file=path',
                           '--column', 'label=tags', '--out', root/'model', *SHORT)
    assert status == 0 and 'of 5 classes' in out, err
    return root


def embedded(model, data, **rule):
    "Embeddings of the pictures, as `dml evaluate` makes them, and the set"
    model = load_embedder(model/'embedder')
    images = load_pictures(data, model.size, model.fit, 'L', **rule_for(data, model.facts, **rule))
    return model.embed(images, progress=False), images


def same_graded(found, relevance, r, z, gallery=None):
    "Whether what the command says is of these relevances (B, G); its intervals hold it"
    assert found['relevance'] == relevance
    wanted = evaluate_relevance(z, r, gallery)
    for key, (low, high) in found['intervals'].items():
        np.testing.assert_allclose(found[key], wanted[key], atol=1e-6)
        assert low < found[key] < high
    assert set(found) == {'relevance', 'ndcg@8', 'h_ap', 'intervals'}


def species_and_family(images):
    "Two names of each picture, by its folders"
    return np.array([(name, name.partition('/')[0]) for name in (
        images.names_of(i)[0] for i in range(len(images)))])


def test_levels_by_degrees(nested):
    x, pictures = embedded(nested/'model', nested/'photos')
    y = species_and_family(pictures)
    r = (y[:, None] == y).mean(-1)                                              # 0, 1/2 or 1
    np.fill_diagonal(r, np.nan)
    number = np.array([path.stem for path in pictures.source.paths])[pictures.index]
    apart = np.where(number[:, None] == number, np.nan, r)                      # one of each class
    for words, wanted in (((), r), (('--group', 'name:.*'), apart)):
        status, out, err = dml('evaluate', nested/'model', nested/'photos', *words, '--json')
        assert status == 0, err
        same_graded(json.loads(out)['graded'], 'levels', wanted, x)
    text = dml('evaluate', nested/'model', nested/'photos')[1]
    assert 'by the share of common levels: nDCG@8 ' in text and '), H-AP ' in text


def test_levels_in_a_gallery(nested, tmp_path):
    "Species 0 is not in the gallery, its family is; species 4 is only there"
    gallery = tmp_path/'gallery'
    for family in range(3):
        for species in range(1, 5):
            for i in range(8, 11):
                paint(gallery/f'family{family}'/f'kind{species}'/f'{i}.png', family, species, i)
    (x, queries), (z, others) = (embedded(nested/'model', data) for data in (nested/'photos', gallery))
    y, gy = species_and_family(queries), species_and_family(others)
    same = y[:, None] == gy                                                     # (96, 36, 2)
    digit, other = (np.array([path.name[0] for path in each.source.paths])[each.index]
                    for each in (queries, others))
    apart = np.where(digit[:, None] == other, np.nan, same.mean(-1))            # 1.png and 10.png
    for words, wanted in (((), same.mean(-1)), (('--group', r'name:^\d'), apart)):
        status, out, err = dml('evaluate', nested/'model', nested/'photos', '--gallery', gallery, *words,
                               '--json')
        assert status == 0 and 'not measured' not in err, err
        found = json.loads(out)
        same_graded(found['graded'], 'levels', wanted, x, z)
        for level, row in enumerate(found['levels']):
            assert row['classes'] == (12, 3)[level]
            alike = evaluate_relevance(x, np.where(np.isnan(wanted), np.nan, same[..., level]), z)
            for key in ('recall@1', 'map@r'):
                np.testing.assert_allclose(row[key], alike[key], atol=1e-6)
        np.testing.assert_allclose(found['nearest'][0], found['levels'][0]['recall@1'])
        np.testing.assert_allclose(sum(found['nearest']), 1)
    flat = tmp_path/'flat'
    for kind in (0, 1):                                     # classes of the queries, without levels
        for i in range(3):
            paint(flat/'family0'/f'kind{kind}'/f'{i}.png', 0, kind, i)
    status, out, err = dml('evaluate', nested/'model', nested/'photos', '--gallery', flat, '--json')
    assert status == 0 and 'levels: expected as many above the classes of the queries' in err
    assert 'got 1 and 0' in err and not {'levels', 'graded'} & json.loads(out).keys()


def test_levels_from_training_to_measures(nested):
    record = json.loads((nested/'model'/'training.json').read_text())
    assert record['settings']['levels'] == 'folders' and 'Levels(' in record['settings']['loss']
    assert load_embedder(nested/'model'/'embedder').facts['levels'] == 'folders'
    status, out, err = dml('evaluate', nested/'model', nested/'photos', '--json')
    found = json.loads(out)
    assert status == 0, err
    assert [(row['level'], row['classes']) for row in found['levels']] == [(1, 12), (2, 3)]
    assert found['levels'][0]['map@r'] == found['measures']['map@r']
    z = load_embedder(nested/'model'/'embedder')
    pictures = load_pictures(nested/'photos', z.size, z.fit, 'L', **rule_for(nested/'photos', z.facts))
    x = z.embed(pictures, progress=False)
    S = x @ x.T
    S.fill_diagonal_(-2)
    nearest, y = S.argmax(1), pictures.level_labels()
    same = y[nearest] == y                                                      # (N, 2)
    shares = [same[:, 0].mean(), (same[:, 1] & ~same[:, 0]).mean(), (~same[:, 1]).mean()]
    np.testing.assert_allclose(found['nearest'], shares, atol=.03)              # ties apart
    np.testing.assert_allclose(sum(found['nearest']), 1)
    assert found['levels'][1]['recall@1'] >= found['levels'][0]['recall@1']
    text = dml('evaluate', nested/'model', nested/'photos')[1]
    assert 'level 2, 3 classes: recall@1' in text and '% only on level 2' in text


def test_levels_from_an_index_to_browse(nested):
    assert dml('index', nested/'model', nested/'photos', '--out', nested/'index')[0] == 0
    query = nested/'photos'/'family1'/'kind2'/'0.png'
    for label, of_all in (('family1', 31), ('family0/kind1', 8)):
        status, out, err = dml('search', nested/'index', query, '--label', label, '--k', 50, '--json')
        found = json.loads(out)[0]['found']
        assert status == 0 and len(found) == of_all
        assert all(label in (each['label'], *each['above']) for each in found)
    status, out, err = dml('search', nested/'index', query, '--label', 'family7')
    assert status == 2 and err.count('\n') == 1 and "got 'family7'" in err
    seen = Collection(nested/'index')
    place = {path: i for i, path in enumerate(seen.paths)}
    i, same, near, far = (place[f'{name}/0.png'] for name in (
        'family1/kind2', 'family1/kind2', 'family1/kind3', 'family2/kind2'))
    assert [seen.relation(i, j) for j in (same, near, far)] == ['right', 'level 2', 'wrong']
    client = TestClient(create_app(seen))
    facts = client.get('/map.json').json()
    assert facts['base'] == 12 and facts['names'][12:] == ['family0', 'family1', 'family2']
    assert [len(of) for of in facts['members']] == [8] * 12 + [32] * 3
    assert client.get(f'/item/{i}').status_code == 200
    seen.studied.finished()
    seen.studied.join()
    text = client.get('/classes').text
    assert client.get('/worst').status_code == client.get('/labels').status_code == 200
    assert '<th class="number">is</th>' in text


def test_sets_from_training_to_measures(table):
    record = json.loads((table/'model'/'training.json').read_text())
    assert record['settings']['multi_label'] == '|' and 'Shares(' in record['settings']['loss']
    assert record['settings']['held_back'] == 'image'
    status, out, err = dml('evaluate', table/'model', table/'table.csv', '--json')
    found = json.loads(out)
    assert status == 0, err
    model = load_embedder(table/'model'/'embedder')
    images = load_data(table/'table.csv', multi_label='|', columns={'file': 'path', 'label': 'tags'},
                       size=model.size, fit=model.fit, mode='L')
    assert images.labels.shape == (80, 5) and images.labels.any(1).sum() == 79
    z = model.embed(images, progress=False)
    S = (z @ z.T).fill_diagonal_(-2)
    S[:, ~torch.as_tensor(images.labels.any(1))] = -2
    shares = (images.labels.astype(int) @ images.labels.T.astype(int)) > 0
    hits = [bool(shares[i, S[i].argmax()]) for i in range(80) if images.labels[i].any()]
    assert abs(found['measures']['recall@1'] - np.mean(hits)) < .03             # ties apart
    assert found['measures']['unlabelled'] == 1
    sets = images.labels.astype(float)
    either = sets.sum(1)[:, None] + sets.sum(1) - sets @ sets.T
    r = np.where((sets.sum(1)[:, None] == 0) | (sets.sum(1) == 0), np.nan,
                 sets @ sets.T / np.maximum(either, 1))
    np.fill_diagonal(r, np.nan)
    same_graded(found['graded'], 'jaccard', r, z)
    assert 'by the share of common labels: nDCG@8 ' in dml(
        'evaluate', table/'model', table/'table.csv')[1]
    in_gallery = json.loads(dml('evaluate', table/'model', table/'table.csv', '--gallery',
                                table/'table.csv', '--json')[1])
    np.fill_diagonal(r, np.where(sets.any(1), 1, np.nan))                       # finds itself
    same_graded(in_gallery['graded'], 'jaccard', r, z, z)
    assert [row['name'] for row in found['worst_classes']] and len(found['worst_classes']) == 5
    assert dml('evaluate', table/'model', table/'table.csv', '--part', 'held-out')[0] == 0
    assert dml('evaluate', table/'model', table/'table.csv', '--gallery', table/'table.csv')[0] == 0


def test_sets_from_an_index_to_browse(table):
    assert dml('index', table/'model', table/'table.csv', '--out', table/'index')[0] == 0
    found = json.loads(dml('search', table/'index', table/'7.png', '--label', 'tag1', '--k', 99,
                           '--json')[1])[0]['found']
    assert len(found) > 20 and all('tag1' in each['labels'] for each in found)
    assert any(each['label'] != 'tag1' for each in found)
    seen = Collection(table/'index')
    place = {path: i for i, path in enumerate(seen.paths)}
    two = place['7.png']
    assert seen.class_name(two) == 'tag1 | tag2' and seen.class_name(place['1.png']) == ''
    assert seen.relation(two, place['6.png']) == 'right' == seen.relation(two, place['2.png'])
    assert seen.relation(two, place['0.png']) == 'wrong' and seen.relation(two, place['1.png']) == ''
    client = TestClient(create_app(seen))
    facts = client.get('/map.json').json()
    assert facts['names'] == [f'tag{i}' for i in range(5)] + [''] and facts['base'] == 6
    assert all(two in facts['members'][c] for c in (1, 2)) and two not in facts['members'][0]
    assert 'tag1 | tag2' in client.get(f'/item/{two}').text
    seen.studied.finished()
    seen.studied.join()
    for page in ('/worst', '/classes', '/labels'):
        assert client.get(page).status_code == 200, page
    assert 'W' in client.get('/weights.json?loss=infonce').json()
    assert client.get('/weights.json?loss=angular').status_code == 400


@pytest.fixture(scope='module')
def tags(table, tmp_path_factory):
    "The same pictures, whose labels stand in a JSON elsewhere"
    with open(table/'table.csv') as file:
        rows = list(csv.DictReader(file))
    labels = {row['path']: [part for part in row['tags'].split('|') if part != '-1'] for row in rows}
    path = tmp_path_factory.mktemp('tags')/'labels.json'
    path.write_text(json.dumps(labels))
    return path


def test_a_json_of_sets_is_a_table(table, tags):
    "It is measured and indexed as the table with the same sets, by the model of that table"
    of_table, of_tags = (json.loads(dml('evaluate', table/'model', *words, '--json')[1]) for words in (
        (table/'table.csv',), (tags, '--images', table)))
    assert of_tags.pop('data') == 'labels' and of_table.pop('data') == 'table'
    assert of_tags == of_table and of_tags['measures']['unlabelled'] == 1
    status, out, err = dml('index', table/'model', tags, '--images', table, '--out', tags.parent/'index')
    assert status == 0 and not err, err
    seen = Collection(tags.parent/'index')
    place = {path: i for i, path in enumerate(seen.paths)}
    assert seen.class_name(place['7.png']) == 'tag1 | tag2' and seen.class_name(place['1.png']) == ''
    assert seen.relation(place['7.png'], place['6.png']) == 'right'
    assert TestClient(create_app(seen)).get('/map.json').json()['names'][:5] == [
        f'tag{i}' for i in range(5)]


def test_a_json_of_sets_from_training_to_an_index(table, tags):
    model, images = tags.parent/'model', ('--images', table)
    status, out, err = dml('train', tags, *images, '--out', model, *SHORT)
    assert status == 0 and 'of 5 classes' in out, err
    record = json.loads((model/'training.json').read_text())
    assert record['settings']['multi_label'] == '|' and 'Shares(' in record['settings']['loss']
    for words in (('evaluate', model, tags, '--part', 'held-out'),
                  ('index', model, tags, '--out', tags.parent/'own index')):
        status, out, err = dml(*words, *images)
        assert status == 0 and 'decided' not in err, err
    found = json.loads(dml('search', tags.parent/'own index', table/'7.png', '--label', 'tag1', '--k',
                           99, '--json')[1])[0]['found']
    assert len(found) > 20 and all('tag1' in each['labels'] for each in found)
    wrong = tags.parent/'wrong.json'
    for text, said in (('{"0.png": "tag0"}', 'labels of 0.png, got "tag0"'), ('[', 'no such JSON'),
                       ('{}', 'it is empty'), ('{"0.png": ["a"], "none.png": ["b"]}', 'none.png first')):
        wrong.write_text(text)
        status, out, err = dml('train', wrong, *images, '--out', tags.parent/'none', *SHORT)
        assert status == 2 and said in err and err.count('\n') == 1, err
    status, out, err = dml('train', tags.parent/'nothing.json', '--out', tags.parent/'none', *SHORT)
    assert status == 2 and 'there is no such file' in err and err.count('\n') == 1


@pytest.fixture(scope='module')
def shelves(tmp_path_factory):
    "Forty pictures in folders of a hue and of a kind; every third one lies in two folders"
    root = tmp_path_factory.mktemp('shelves')
    for i in range(40):
        paint(root/'photos'/f'kind{i % 4}'/f'{i}.png', i % 3, i % 4, i)
        if i % 3 == 0:
            again = root/'photos'/f'hue{i % 2}'/f'{i} again.png'
            again.parent.mkdir(exist_ok=True)
            again.write_bytes((root/'photos'/f'kind{i % 4}'/f'{i}.png').read_bytes())
    status, out, err = dml('train', root/'photos', '--multi-label', 'folders', '--out', root/'model',
                           *SHORT)
    assert status == 0 and 'merged 14 of 54 files' in err and '14 of 40 pictures' in err, err
    assert 'of 6 classes' in out
    return root


def test_a_picture_in_several_folders_is_one(shelves):
    settings = json.loads((shelves/'model'/'training.json').read_text())['settings']
    assert settings['multi_label'] == 'folders' and 'Shares(' in settings['loss']
    assert load_embedder(shelves/'model'/'embedder').facts['multi_label'] == 'folders'
    found = json.loads(dml('evaluate', shelves/'model', shelves/'photos', '--json')[1])
    assert found['pictures'] == 40 and sum(row['queries'] for row in found['worst_classes']) > 40
    shutil.make_archive(shelves/'photos', 'zip', shelves/'photos')
    of_zip = json.loads(dml('evaluate', shelves/'model', shelves/'photos.zip', '--json')[1])
    assert of_zip['measures'] == found['measures']
    status, out, err = dml('index', shelves/'model', shelves/'photos', '--out', shelves/'index')
    assert status == 0 and 'merged 14 of 54 files' in err and 'decided' not in err
    seen = Collection(shelves/'index')
    place = {path: i for i, path in enumerate(seen.paths)}
    assert len(place) == 40
    one, other = place['hue0/0 again.png'], place['kind1/1.png']
    assert seen.class_name(one) == 'hue0 | kind0' and seen.class_name(other) == 'kind1'
    assert [seen.relation(one, place[name]) for name in (
        'kind0/4.png', 'hue0/6 again.png', 'kind1/1.png')] == ['right', 'right', 'wrong']
    assert 'hue0 | kind0' in TestClient(create_app(seen)).get(f'/item/{one}').text
    status, out, err = dml('evaluate', shelves/'model', shelves/'photos', '--depth', '1', '--json')
    assert 'decided by folders, at depth leaf, those of equal files together' in err


def test_embeddings_of_sets_are_read_again(table):
    status, out, err = dml('embed', table/'model', table/'table.csv', '--out', table/'z.npz')
    again = load_data(f'features:{table/"z.npz"}')
    assert status == 0 and again.labels.shape == (80, 5) and again.classes == [
        f'tag{i}' for i in range(5)]
    train = dml('train', f'features:{table/"z.npz"}', '--out', table/'head', '--epochs', '1',
                '--classes', '4')
    assert train[0] == 0, train[2]


def test_what_is_wrong_takes_one_line(nested, table, tmp_path):
    (tmp_path/'parents.csv').write_text('class,genus\nfamily0/kind0,x\n')
    (tmp_path/'flat').mkdir()
    for species in range(4):
        for i in range(3):
            paint(tmp_path/'flat'/f'{species}'/f'{i}.png', 1, species, i)
    broken = table/'broken.csv'
    broken.write_text('path,tags\n0.png,a||b\n2.png,b\n')
    columns = '--column', 'file=path', '--column', 'label=tags'
    for words, said in (
            ((tmp_path/'flat', '--levels'), 'levels: expected classes in folders within folders'),
            ((nested/'photos', '--level', 'genus'), "got 'genus'"),
            ((nested/'photos', '--level', tmp_path/'parents.csv'), "has none"),
            ((nested/'photos', '--level', tmp_path/'none.csv'), 'no such file'),
            ((nested/'photos', '--multi-label', '|'), "multi_label: expected folders, which"),
            ((broken, '--multi-label', '|', *columns), 'line 2: expected a label on each side'),
            ((table/'table.csv', '--multi-label', '|', '--levels', *columns), 'got sets of labels'),
            ((nested/'photos', '--levels', '--loss', 'proxy_nca'), 'make one for each'),
            ((table/'table.csv', '--multi-label', '|', '--loss', 'proxy_anchor', *columns),
             'expected a loss on pairs'),
            ((table/'table.csv', '--multi-label', '|', '--loss', 'wasserstein', *columns),
             'a relative that needs none is MultiSimilarity()'),
            ((table/'table.csv', '--multi-label', '|', '--loss', 'angular', *columns),
             'relative that needs none is NPairs()')):
        status, out, err = dml('train', *words, '--out', tmp_path/'model', *SHORT)
        assert status == 2 and said in err and err.count('\n') == 1, (words, err)
    # a model with levels takes pictures without, and says so
    status, out, err = dml('index', nested/'model', tmp_path/'flat', '--out', tmp_path/'index')
    assert status == 0 and 'without the levels of the training' in err


def test_a_learner_takes_levels_and_sets():
    draw = np.random.default_rng(0)
    images = ImageSet(draw.normal(size=(60, 6)).astype('float32'), np.arange(60) % 6)
    images.above = [['a', 'a', 'a', 'b', 'b', 'b']]
    dls = metric_dataloaders(images, images, 4, 3)
    learn = metric_learner(dls, 'identity', Levels(MultiSimilarity(), [1., .5]), 4)
    z, labels = learn.embed()
    whole = Levels(MultiSimilarity(), [1., .5])(z, torch.as_tensor(images.level_labels()))
    torch.testing.assert_close(learn.loss_func(z, labels), whole)
    blank = labels.clone()
    blank[0] = -1
    rows = torch.as_tensor(images.level_labels())
    rows[0] = -1
    torch.testing.assert_close(
        learn.loss_func(z, blank), Levels(MultiSimilarity(), [1., .5])(z, rows))
    with pytest.raises(ValueError, match='expected 2 weights'):
        metric_learner(dls, 'identity', Levels(MultiSimilarity(), [1.]), 4)
    sets = ImageSet(draw.random((60, 6, 6)).astype('float32'), draw.random((60, 5)) < .4)
    learn = metric_learner(metric_dataloaders(sets, sets, 4, 3), 'small_convnet', None, 4)
    assert isinstance(learn.loss_func, Shares) and isinstance(learn.loss_func.loss, InfoNCE)
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
    assert 0 < learn.recorder.values[0][2] <= 1
    assert learn.show_results(queries=2) is not None
