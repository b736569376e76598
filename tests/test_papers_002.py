"The page of the DCDL paper: its committed numbers come from its recipes."
import json
from dataclasses import replace

import numpy as np
import pytest
from papers import misquoted, record_of

from dml_nb.experiments import Recipe, run
from dml_nb.papers import discrepancy
from dml_nb.papers.exhibits import by_recipe, find_exhibits, key_of, scores

file = record_of('002')


def test_claims_are_quoted():
    assert misquoted(discrepancy.CLAIMS, r'\*') == []


def test_a_committed_cell_can_be_computed_again():
    recipes = discrepancy._final('digits', 'Trip', 'L^W')
    again = run(recipes[0], discrepancy._small_images('digits'), device='cpu')
    runs = by_recipe(file['runs'])
    kept = scores(runs, recipes, 'probe')
    assert abs(again['trained']['probe'] - kept[0]) < .005          # sums in another order
    ranked = scores(runs, recipes, 'map@r')
    assert abs(again['trained']['map@r'] - ranked[0]) < .006
    row, = [row for row in file['exhibits']['table4']['rows'] if row['method'] == 'Trip + L^W']
    assert abs(row['digits, clean'][0] - 100 * kept.mean()) < 1e-3


def test_every_small_recipe_was_run_on_the_test_part_after_choosing_on_another():
    runs = by_recipe(file['runs'])
    for exhibit in discrepancy.EXHIBITS:
        for recipe in discrepancy._small_recipes(exhibit):
            assert key_of(recipe) in runs, (exhibit.name, recipe)
            assert recipe.part == 'test' and recipe.seed != discrepancy._CHOOSING_SEED
    for data in discrepancy._BASES:
        for local, term in discrepancy._methods(data):
            tries = discrepancy._try_recipes(data, local, term, discrepancy._CHOSEN[data])
            assert len({key_of(one) for one in tries}) == len(tries) > 1
            assert all(one.part == 'valid' and one.seed == discrepancy._CHOOSING_SEED
                       for one in tries)


@pytest.mark.parametrize('labels, others', [
    (discrepancy._NOISY_LABELS, 'clean'), ('clean', discrepancy._NOISY_LABELS)])
def test_a_gain_is_measured_among_runs_with_the_same_labels(labels, others):
    "Nothing that was found with the others goes in"
    runs = by_recipe(file['runs'])
    for _, _, recipes in discrepancy._cases_probe(others):
        for recipe in recipes:
            old = runs[key_of(recipe)]
            runs[key_of(recipe)] = old | dict(trained=dict(probe=np.nan))
    other = file | dict(runs=list(runs.values()))
    for data in discrepancy._CLASSIFIED:
        found, again = (discrepancy._added(each, data, 'Trip', 'L^W', labels=labels)
                        for each in (file, other))
        np.testing.assert_array_equal(found.differences, again.differences)


def test_images_that_choose_and_images_that_measure_are_different():
    for data in discrepancy._CLASSIFIED:
        if data == 'fashion_mnist':
            pytest.importorskip('torchvision')
        try:
            images = discrepancy._small_images(data)
        except FileNotFoundError as error:
            pytest.skip(str(error))
        pixels = images.images().flatten(1).numpy()
        train, test = (pixels[images.split == part] for part in ('train', 'test'))
        assert (np.bincount(images.labels[images.split == 'test']) > 30).all()
        seen = {row.tobytes() for row in train}
        assert sum(row.tobytes() in seen for row in test) <= 2


def test_scales_of_small_sets_are_refused_and_official_ones_written_down():
    with pytest.raises(ValueError, match='paper_recipes'):
        find_exhibits('002/table4')[0].reproduce('paper')
    for data in ('cifar10', 'stl10', 'cub200', 'cars196'):
        recipes = discrepancy.paper_recipes(data)
        assert len(recipes) == 3 * 12 * 3 and len(set(map(key_of, recipes))) == 108
        assert all(isinstance(one, Recipe) and one.split == 'official' for one in recipes)
    assert find_exhibits('002/table5')[0].recipes('paper')[0].data == 'cub200'


def test_cost_counts_the_runs_that_were_trained_here(tmp_path):
    first = replace(discrepancy._final('digits', 'Trip', 'L^W')[0], steps=2)
    second = replace(first, steps=3)
    discrepancy._train([first], tmp_path)
    discrepancy._train([first, second], tmp_path)               # the first is read from its file
    assert json.loads((tmp_path/'cost.json').read_text())['runs'] == 2
