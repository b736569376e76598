"What `dml evaluate` measures, says and keeps"
import json
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_nb.cli.evaluate import keep_fact
from dml_nb.search import load_pictures, train_embedder
from dml_nb.search.card import END, add_evaluation
from dml_nb.support.storage import one_writer
from dml_nb.training import create_embedder, load_embedder, save_embedder


@pytest.fixture
def shop(tmp_path, monkeypatch):
    "Sixty pictures of six classes in bursts of two, a table of them, and a model of the folder"
    monkeypatch.chdir(tmp_path)
    rows = ['file;kind;burst']
    for i in range(60):
        place = Path('photos')/'ab'[i % 2]/f'kind {i % 6}'
        place.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(i // 12 + 100 * (i % 6)).integers(0, 255, (16, 16, 3), 'uint8')
        Image.fromarray(noise ^ np.uint8(i)).save(place/f'visit {i // 12} {i}.png')
        rows.append(f'{(place/f"visit {i // 12} {i}.png").relative_to("photos")};kind {i % 6};{i // 12}')
    Path('photos.csv').write_text('\n'.join(rows))
    save_embedder(create_embedder('small_convnet', 8, 3, 16, seed=0), 'model', depth='leaf')


def measured(dml, *words):
    run = dml('evaluate', *words, '--json')
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run.stderr


def test_a_folder_is_the_same_gallery_however_it_is_written(shop, dml):
    here = measured(dml, 'model', 'photos', '--gallery', 'photos')
    there = measured(dml, 'model', 'photos', '--gallery', str(Path('photos').resolve()))
    for found, said in (here, there):
        assert '60 of 60 queries are also in the gallery' in said
        assert found['measures']['recall@1'] == 1
    words = 'model', 'photos', '--group', 'folder', '--gallery'
    for gallery in ('photos', str(Path('photos').resolve())):
        refused = dml('evaluate', *words, gallery)
        assert refused.returncode == 2 and 'to find outside of its group, got none' in refused.stderr


def test_a_folder_is_searched_in_a_table_and_a_table_in_a_folder(shop, dml):
    table = ['--images', 'photos', '--column', 'label=kind']
    of_table, _ = measured(dml, 'model', 'photos.csv', *table)
    flat = Path('flat')
    for path in Path('photos').rglob('*.png'):
        (flat/path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, flat/path.parent.name)
    for words in (['flat', '--gallery', 'photos.csv'], ['photos.csv', '--gallery', 'flat']):
        found, _ = measured(dml, 'model', *words, *table, '--group', r'name:(\d+)\.')
        for key in ('recall@1', 'map@r'):                   # each picture but itself
            assert found['measures'][key] == pytest.approx(of_table['measures'][key])


def test_groups_that_say_nothing_are_refused_and_those_of_a_column_are_told(shop, dml):
    for group, said in ((r'name:roll (\d+)', 'none of 60 does, visit 0 0.png first'),
                        ('name:(', 'missing )'), ('time:nan', 'expected folder, time'),
                        ('time:-5', 'expected folder, time')):
        refused = dml('evaluate', 'model', 'photos', '--group', group)
        assert refused.returncode == 2 and said in refused.stderr, refused.stderr
    save_embedder(create_embedder('small_convnet', 8, 3, 16, seed=0), 'model', depth='leaf', group='burst')
    found, said = measured(dml, 'model', 'photos')
    assert 'those of the training come from the column burst of a table' in said
    assert 'groups' not in found
    _, said = measured(dml, 'model', 'photos.csv', '--images', 'photos', '--column', 'label=kind')
    assert 'come from the column' not in said


def test_a_model_among_its_own_photographs(shop, dml):
    images = load_pictures('photos', 16)
    train_embedder(images, 'photos', epochs=1, classes=3, per_class=2, body='small_convnet')
    assert load_pictures('photos', 16).sha256() == images.sha256()
    with warnings.catch_warnings(record=True):
        warnings.simplefilter('always')
        assert measured(dml, 'photos', 'photos')[0]['pictures'] == 60


def test_trained_pictures_are_told_in_a_table_and_in_groups(shop, dml):
    images = load_pictures('photos', 16)
    record = train_embedder(images, 'trained', epochs=1, classes=3, per_class=2, body='small_convnet')
    said = f"trained on {record['sizes']['train']} of these 60 pictures"
    table = ['photos.csv', '--images', 'photos', '--column', 'label=kind']
    for words in (['photos'], ['photos', '--group', r'name:(\d+)\.'], table,
                  [*table, '--group', 'burst'], ['photos', '--gallery', 'photos']):
        assert said in measured(dml, 'trained', *words)[1], words
    held = measured(dml, 'trained', 'photos', '--part', 'held-out', '--group', r'name:(\d+)\.')
    assert 'trained on' not in held[1] and held[0]['pictures'] == record['sizes']['valid']


def test_a_threshold_is_kept_only_with_the_network_that_was_measured(shop):
    old = load_embedder('model')
    save_embedder(create_embedder('small_convnet', 8, 3, 16, seed=1), 'model')
    with pytest.raises(ValueError, match='expected the network that was measured'):
        keep_fact(old, 'model', threshold={})
    new = load_embedder('model')
    assert new.sha256() != old.sha256() and 'threshold' not in new.facts
    with one_writer('model'), ThreadPoolExecutor() as pool:
        refused = pool.submit(keep_fact, new, 'model', threshold={}).exception()
    assert 'expected no other writer' in str(refused)
    keep_fact(new, 'model', threshold={})
    assert load_embedder('model').facts == dict(threshold={})


def test_a_card_keeps_what_people_add_and_drops_numbers_of_an_earlier_network(shop, dml):
    images = load_pictures('photos', 16)
    settings = dict(classes=3, per_class=2, body='small_convnet')
    record = train_embedder(images, 'trained', epochs=1, **settings)
    measured(dml, 'trained', 'photos')
    card = Path('trained/README.md')
    card.write_text(card.read_text() + '## Licence\n\nMine.\n')
    measured(dml, 'trained', 'photos', '--group', 'name:visit (0|1)')
    measured(dml, 'trained', 'photos')
    text, _, own = card.read_text().partition(END)
    assert f"trained on {record['sizes']['train']} of them" in text
    assert own == '\n## Licence\n\nMine.\n' and text.count('| recall@1 |') == 2
    add_evaluation(Path('trained'), dict(
        data='x', part='all', pictures=3, measures={}, intervals={}, embedder='another'))
    assert card.read_text().count('pictures of x') == 0
    facts = dict(data='y', part='all', pictures=3, measures={}, intervals={})
    with one_writer('trained'), ThreadPoolExecutor() as pool, pytest.warns(
            UserWarning, match='does not have these numbers'):
        pool.submit(add_evaluation, Path('trained'), facts).result()
    assert 'pictures of y' not in card.read_text()
