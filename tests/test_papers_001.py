"""What the page of the multi-similarity paper cannot test: the paper's words, official layouts, and
a number of the committed file recomputed from its recipe."""
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from dml_nb.papers.exhibits import differs, made_up_birds, one_step
from dml_nb.papers.multisimilarity import BIRDS, CARS, CLAIMS, DRAWINGS, EXHIBITS, larger

RESULTS = Path(__file__).parent.parent/'results'/'papers'/'001.json'
GREEK = {r'\alpha': 'α', r'\beta': 'β', r'\lambda': 'λ', r'\rightarrow': '→'}


def data_folder():
    folder = os.environ.get('DML_NB_DATA')
    if not folder or not Path(folder).is_dir():
        pytest.skip('DML_NB_DATA names no folder')
    return Path(folder)


def paper_text():
    found = sorted((data_folder().parent/'papers').glob('001_*.txt'))
    if not found:
        pytest.skip('the paper is not at hand')
    return found[0].read_text(encoding='utf-8')


def plain(text):
    "Without emphasis, mathematical signs and line breaks."
    for command, letter in GREEK.items():
        text = text.replace(command, letter)
    return re.sub(r'\s+', ' ', re.sub(r'[*$\\]', '', text))


def test_quotations_are_the_papers_words():
    text = plain(paper_text())
    assert [claim.text for claim in CLAIMS if plain(claim.text) not in text] == []


def numbers_on(line):
    return {float(cell) for cell in re.findall(r'\d+(?:\.\d+)?', line)}


def test_printed_numbers_stand_on_their_lines():
    lines = paper_text().split('\n')
    checked = 0
    for exhibit in EXHIBITS:
        for row in exhibit.printed:
            place = re.fullmatch(r'line (\d+)', row.get('source', ''))
            if place is None:
                continue
            there = numbers_on(lines[int(place[1]) - 1])
            values = {value for value in row.values() if isinstance(value, float)}
            assert values <= there, (exhibit.key, row)
            checked += len(values)
    assert checked > 200


def picture(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def made_birds(folder):
    made_up_birds(folder, (1, 2, 101, 102), images=3)


def made_cars(folder):
    numbers = list(range(1, 197)) * 2                       # each class needs a picture
    rows = np.array([(f'car_ims/{i}.jpg', number) for i, number in enumerate(numbers)],
                    dtype=[('relative_im_path', object), ('class', object)])
    names = np.array([f'Car {number}' for number in range(1, 197)], dtype=object)
    savemat(folder/'cars_annos.mat', {'annotations': rows, 'class_names': names})
    for i in range(len(numbers)):
        picture(folder/'car_ims'/f'{i}.jpg', i)


def made_products(folder):
    head, i = 'image_id class_id super_class_id path', 0
    for part, classes in (('train', (1, 2)), ('test', (3, 4))):
        lines = [head]
        for number in classes * 3:
            i += 1
            lines.append(f'{i} {number} 1 chair_final/{i}.JPG')
            picture(folder/'chair_final'/f'{i}.JPG', i)
        (folder/f'Ebay_{part}.txt').write_text('\n'.join(lines))


@pytest.mark.parametrize('data, make, images, classes', [
    (BIRDS, made_birds, 6, 2), (CARS, made_cars, 196, 98), (DRAWINGS, made_products, 6, 2)])
def test_papers_recipe_takes_a_step_on_the_official_layout(data, make, images, classes, tmp_path):
    make(tmp_path)
    recipe = larger('paper', data, 'MS', seeds=1)[0]
    assert (recipe.size, recipe.arch, recipe.lr) == (224, 'googlenet', 1e-5)
    found = one_step(recipe, f'{recipe.data}:{tmp_path}', classes=2, per_class=2)
    part = dict(images=images, classes=classes)
    assert found['sizes'] == dict(train=part, valid=part)
    assert [each['step'] for each in found['curve']] == [1]


def test_a_number_of_the_file_comes_from_its_recipe():
    data_folder()
    record = json.loads(RESULTS.read_text(encoding='utf-8'))
    first = next(each for each in record['runs'] if each['recipe']['data'] == DRAWINGS)
    assert max(differs(first).values()) < .02           # another machine sums in another order
