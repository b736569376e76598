"""What the page of the CIT paper cannot test: its printed numbers and quotations against the paper's
text, where that lies beside the data, and a recipe of the paper's scale on data in their layout."""
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from dml_nb.experiment import Recipe, run
from dml_nb.papers.concordance import CLAIMS, EXHIBITS, MARKET, _base, _scores

papers = Path(os.environ.get('DML_NB_DATA', 'nowhere')).parent/'papers'
texts = sorted(papers.glob('004_*.txt'))
needs_paper = pytest.mark.skipif(not texts, reason='the text of the paper is not here')


def plain(text):
    "Without marks of markup, and with single blanks"
    return ' '.join(re.sub(r'</?u>|[$*]|\\[a-z]+(?=[ ${])', '', text).split())


@pytest.fixture(scope='module')
def text():
    return texts[0].read_text(encoding='utf-8')


def numbers_of(row):
    return [v for k, v in row.items() if isinstance(v, float) and k != 'value']


@needs_paper
@pytest.mark.parametrize('exhibit', [e for e in EXHIBITS if e.name.startswith('table')],
                         ids=lambda e: e.name)
def test_tables_are_as_printed(exhibit, text):
    "Row by row, every number of the source lines in its order"
    first, last = map(int, re.search(r'(\d+)-(\d+)', exhibit.source).groups())
    lines = text.split('\n')[first - 1:last]
    assert len(lines) == len(exhibit.printed)
    for line, row in zip(lines, exhibit.printed):
        cells = [re.sub(r'</?u>', '', cell).strip() for cell in line.split('|')]
        numbers = [float(cell) for cell in cells if re.fullmatch(r'\d+\.\d+', cell)]
        if exhibit.name == 'table3':
            assert numbers.pop(0) == row['value']
        assert numbers == numbers_of(row)
        printed = re.search(r'(?:m|\\alpha) = ([\d.]+)', line)
        if exhibit.name != 'table3':
            assert row['value'] == (float(printed[1]) if printed else None)


@needs_paper
@pytest.mark.parametrize('claim', CLAIMS, ids=lambda c: c.place)
def test_claims_are_quoted(claim, text):
    assert plain(claim.text) in plain(text)


root = Path(__file__).resolve().parents[1]
named = {exhibit.name: exhibit for exhibit in EXHIBITS}


@pytest.fixture(scope='module')
def record():
    return json.loads((root/'results/papers/004.json').read_text(encoding='utf-8'))


def test_every_exhibit_that_was_run_is_in_the_file(record):
    wanted = {name for name, exhibit in named.items() if exhibit.status != 'not runnable'}
    assert record['exhibits'].keys() == wanted
    assert len(named) == 17 and {f'table{i}' for i in range(1, 9)} <= named.keys()


@pytest.mark.parametrize('name', ['table1', 'table3', 'table7'])
def test_file_holds_the_runs_of_the_recipes(record, name):
    "As many seeds for each setting as the recipes say, and no run on test classes that chose"
    for recipe in named[name].recipes('small'):
        if not recipe.plus:
            found = [s for s in record['settings'] if recipe.seed in s['seeds'] and
                     Recipe(**s['recipe'], seed=recipe.seed) == recipe]
            assert len(found) == 1


def test_recipes_that_choose_see_no_test_class():
    for recipe in named['table1'].recipes('small'):
        chooses = recipe.seed > 100
        assert (recipe.part == 'valid') == chooses and recipe.valid > 0


def cars(folder):
    "Two small pictures of each of 196 cars, in the official layout"
    rng = np.random.default_rng(0)
    rows = [(1, c, f'car_ims/{c:03}_{i}.png') for c in range(1, 197) for i in range(2)]
    (folder/'car_ims').mkdir()
    for _, c, file in rows:
        Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(folder/file)
    kinds = [('bbox_x1', object), ('class', object), ('relative_im_path', object)]
    names = np.array([f'Car {c}' for c in range(1, 197)], object)
    savemat(folder/'cars_annos.mat',
            {'annotations': np.array(rows, dtype=kinds), 'class_names': names})


def test_paper_scale_runs_on_data_in_the_official_layout(tmp_path):
    "The recipe of table 2 with a small body; data, split, sizes and schedule are its own"
    cars(tmp_path)
    recipes = named['table2'].recipes('paper')
    recipe = next(r for r in recipes if r.data == 'cars196' and r.loss == 'cit')
    assert (recipe.arch, recipe.dim, recipe.epochs, recipe.lr) == ('resnet50', 512, 60, 3.5e-4)
    assert recipe.classes * recipe.per_class == 64 and recipe.size == 224
    tiny = replace(recipe, data=f'cars196:{tmp_path}', arch='small_convnet', weights=None, dim=8,
                   size=12, body_width=4, per_class=2, steps=2, measures=['retrieval'])
    result = run(tiny, device='cpu')
    assert result['sizes'] == dict(train=dict(images=196, classes=98),
                                   valid=dict(images=196, classes=98))
    assert 0 <= result['trained']['map'] <= 1
