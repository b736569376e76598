"Recipes of the adapted triplet paper at its own scale, on made-up files in the official layouts."
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_nb.experiment import run
from dml_nb.papers import adapted
from dml_nb.papers.exhibits import made_up_birds, one_step

RECORD = Path(__file__).parent.parent/'results'/'papers'/'003.json'

papers = Path(os.environ.get('DML_NB_DATA', 'absent')).parent/'papers'
texts = sorted(papers.glob('003_*.txt'))


def plain(text):
    "Without emphasis and white space, which copies of the text set differently"
    return ''.join(text.replace('*', '').split())


@pytest.mark.skipif(not texts, reason='the text of the paper does not lie beside the data')
def test_claims_are_quoted():
    text = plain(texts[0].read_text(encoding='utf-8'))
    assert [claim.text for claim in adapted.CLAIMS if plain(claim.text) not in text] == []


def paint(path, shade, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 40, (32, 32, 3))
    Image.fromarray((noise + shade).astype(np.uint8)).save(path, quality=95)


def cub200(root):
    "Two classes of training and two of test, four pictures each."
    made_up_birds(root, (1, 100, 101, 200))
    return root


def sop(root):
    "Two products of training and two of test, four pictures each."
    inner = root/'Stanford_Online_Products'
    number = 0
    for part, products in (('train', (7, 8)), ('test', (30, 31))):
        lines = ['image_id class_id super_class_id path\n']
        for product in products:
            for _ in range(4):
                number += 1
                paint(inner/'sofa_final'/f'{number}.JPG', 5 * product, number)
                lines.append(f'{number} {product} 1 sofa_final/{number}.JPG\n')
        (inner/f'Ebay_{part}.txt').write_text(''.join(lines))
    return inner


def fashion_mnist(root):
    "Four pictures of each class in both parts."
    rng = np.random.default_rng(0)
    labels = np.arange(40, dtype=np.uint8) % 10
    root.mkdir(exist_ok=True)
    for part in ('train', 't10k'):
        pixels = rng.integers(0, 99, (40, 28, 28)).astype(np.uint8) + labels[:, None, None]
        for what, array in (('images-idx3', pixels), ('labels-idx1', labels)):
            sides = np.array(array.shape, dtype='>i4').tobytes()
            head = bytes([0, 0, 8, array.ndim]) + sides
            with gzip.open(root/f'{part}-{what}-ubyte.gz', 'wb') as file:
                file.write(head + array.astype(np.uint8).tobytes())
    return root


@pytest.mark.parametrize('name, data, make', [
    ('table1b', 'cub200', cub200), ('table1c', 'sop', sop)])
def test_a_step_at_the_scale_of_the_paper(tmp_path, name, data, make):
    recipes = adapted._table_recipes(name, 'paper')
    assert {recipe.data for recipe in recipes} == {data}
    found = one_step(recipes[-1], f'{data}:{make(tmp_path)}', classes=2, per_class=2)
    assert found['sizes']['train'] == dict(images=8, classes=2)
    assert 0 <= found['trained']['recall@1'] <= 1


def test_a_step_on_all_pictures_of_ten_classes(tmp_path):
    recipe = adapted._ten_recipe('figure5', 2., 0, 'paper')
    assert (recipe.steps, recipe.lr, recipe.arch) == (50_000, 1e-3, 'lenet')
    data = f'fashion_mnist:{fashion_mnist(tmp_path/"files")}'
    found = run(replace(recipe, data=data, per_class=2, steps=1, every=0))
    assert found['sizes']['train'] == dict(images=40, classes=10)
    assert 0 <= found['trained']['class_mean'] <= 1


def test_a_cell_of_figure_4_again():
    "The digits come with scikit-learn, so this needs no files."
    record = json.loads(RECORD.read_text(encoding='utf-8'))
    kept = adapted._arms(record, 'figure4', 2.)[0]
    recipe = adapted._ten_recipe('figure4', 2., 0)
    again = adapted._watched(recipe, adapted._few_images(recipe))[0]
    of_tests = np.array(again['curve'])[:, 1], np.array(kept['curve'])[:, 1]
    assert np.abs(of_tests[0] - of_tests[1]).max() < .02       # sums differ between machines
