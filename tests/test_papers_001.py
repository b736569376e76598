"""What the page of the multi-similarity paper cannot test: the paper's words, official layouts, and
a number of the committed file recomputed from its recipe."""
import re

import pytest
from layouts import made_up_cars, made_up_products
from papers import misquoted, needs_data, record_of, text_of

from dml_nb.papers.exhibits import differs, made_up_birds, one_step
from dml_nb.papers.multisimilarity import (
    BIRDS, CARS, CLAIMS, DRAWINGS, EMPTY_SEEDS, EXHIBITS, FACES, empty_recipes, larger)


def test_claims_are_quoted():
    assert misquoted(CLAIMS, '[*$]') == []


def numbers_on(line):
    return {float(cell) for cell in re.findall(r'\d+(?:\.\d+)?', line)}


def test_printed_numbers_stand_on_their_lines():
    lines = text_of('001').split('\n')
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


def made_birds(folder):
    made_up_birds(folder, (1, 2, 101, 102))


@pytest.mark.parametrize('data, make, images, classes', [
    (BIRDS, made_birds, 8, 2), (CARS, made_up_cars, 196, 98), (DRAWINGS, made_up_products, 8, 2)])
def test_papers_recipe_takes_a_step_on_the_official_layout(data, make, images, classes, tmp_path):
    make(tmp_path)
    recipe = larger('paper', data, 'MS', seeds=1)[0]
    assert (recipe.size, recipe.arch, recipe.lr) == (224, 'googlenet', 1e-5)
    found = one_step(recipe, f'{recipe.data}:{tmp_path}', classes=2, per_class=2)
    part = dict(images=images, classes=classes)
    assert found['sizes'] == dict(train=part, valid=part)
    assert [each['step'] for each in found['curve']] == [1]


@pytest.mark.long
@needs_data
def test_a_number_of_the_file_comes_from_its_recipe():
    first = next(each for each in record_of('001')['runs'] if each['recipe']['data'] == DRAWINGS)
    assert max(differs(first).values()) < .02           # another machine sums in another order


@pytest.mark.parametrize('data', [BIRDS, CARS, FACES])
def test_batches_that_may_be_empty_are_of_twenty(data):
    recipes = empty_recipes(data)
    assert [recipe.seed for recipe in recipes] == list(range(EMPTY_SEEDS))
    for recipe in recipes:
        assert recipe.classes * recipe.per_class == 20 and recipe.data == data
