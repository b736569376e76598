"Recipes of the adapted triplet paper at its own scale, on made-up files in the official layouts."
import gzip
import re
from dataclasses import replace

import numpy as np
import pytest
from layouts import made_up_products
from papers import misquoted, record_of, text_of

from dml_nb.experiments import run
from dml_nb.papers import adapted
from dml_nb.papers.exhibits import made_up_birds, one_step, printed_rows


def test_claims_are_quoted():
    assert misquoted(adapted.CLAIMS, r'\s+(?=\.)') == []


@pytest.mark.parametrize('name', adapted._TABLE1)
def test_printed_numbers_stand_on_their_lines(name):
    lines = text_of('003').splitlines()
    for row in printed_rows(f'adapted/{name}', ''):
        line = re.sub('</?b>', '', lines[int(row['source'].split()[1]) - 1])
        first, *cells = line.split('\t')
        assert float(re.search(r'= ([\d.]+)', first)[1]) == row['λ']
        assert [float(cell) for cell in cells] == [
            value for column, value in row.items() if column.startswith('R@')]


def made_birds(folder):
    made_up_birds(folder, (1, 100, 101, 200))


def made_up_garments(folder):
    "Four pictures of each class of Fashion-MNIST in both parts."
    rng = np.random.default_rng(0)
    labels = np.arange(40, dtype=np.uint8) % 10
    for part in ('train', 't10k'):
        pixels = rng.integers(0, 99, (40, 28, 28)).astype(np.uint8) + labels[:, None, None]
        for what, array in (('images-idx3', pixels), ('labels-idx1', labels)):
            sides = np.array(array.shape, dtype='>i4').tobytes()
            head = bytes([0, 0, 8, array.ndim]) + sides
            with gzip.open(folder/f'{part}-{what}-ubyte.gz', 'wb') as file:
                file.write(head + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize('name, data, make', [
    ('table1b', 'cub200', made_birds), ('table1c', 'sop', made_up_products)])
def test_a_step_at_the_scale_of_the_paper(tmp_path, name, data, make):
    make(tmp_path)
    recipes = adapted._table_recipes(name, 'paper')
    assert {recipe.data for recipe in recipes} == {data}
    found = one_step(recipes[-1], f'{data}:{tmp_path}', classes=2, per_class=2)
    assert found['sizes']['train'] == dict(images=8, classes=2)
    assert 0 <= found['trained']['recall@1'] <= 1


def test_a_step_on_all_pictures_of_ten_classes(tmp_path):
    made_up_garments(tmp_path)
    recipe = adapted._ten_recipe('figure5', 2., 0, 'paper')
    assert (recipe.steps, recipe.lr, recipe.arch) == (50_000, 1e-3, 'lenet')
    found = run(replace(recipe, data=f'fashion_mnist:{tmp_path}', per_class=2, steps=1, every=0))
    assert found['sizes']['train'] == dict(images=40, classes=10)
    assert 0 <= found['trained']['class_mean'] <= 1


@pytest.mark.long
def test_a_cell_of_figure_4_again():
    "The digits come with scikit-learn, so this needs no files."
    kept = adapted._arms(record_of('003'), 'figure4', 2.)[0]
    recipe = adapted._ten_recipe('figure4', 2., 0)
    again = adapted._watched(recipe, adapted._few_images(recipe))[0]
    of_tests = np.array(again['curve'])[:, 1], np.array(kept['curve'])[:, 1]
    assert np.abs(of_tests[0] - of_tests[1]).max() < .02       # sums differ between machines


def check_tuning(choosing, reported, arm):
    "Chosen on validation classes, with seeds that are not reported, all arms from the same budget"
    assert {recipe.part for recipe in choosing} == {'valid'}
    assert {recipe.part for recipe in reported} == {'test'}
    assert not {recipe.seed for recipe in choosing} & {recipe.seed for recipe in reported}
    budgets = {}
    for recipe in choosing:
        budgets.setdefault(arm(recipe), set()).add((recipe.lr, recipe.seed))
    assert len(budgets) > 1 and len(set(map(frozenset, budgets.values()))) == 1


@pytest.mark.parametrize('name', adapted._TABLE1)
def test_rates_of_table_1_are_chosen_on_validation_classes(name):
    check_tuning(adapted._tuning_recipes(name), adapted._table_recipes(name),
                 lambda recipe: recipe.options['lam'])


@pytest.mark.parametrize('figure', adapted._TEN)
def test_rates_and_weights_of_the_figures_are_chosen_on_validation_pictures(figure):
    choosing = adapted._ten_tuning(figure, adapted._SUM_ARMS) + adapted._few_labels_tuning(figure)
    choosing += adapted._ten_tuning(figure, adapted._MEAN_ARMS)
    choosing += adapted._few_mean_tuning(figure, [(.5, 0.), (.5, 2.)])
    assert {recipe.part for recipe in choosing} == {'valid'}
    assert not {recipe.seed for recipe in choosing} & set(range(100))


def test_networks_from_nothing_have_ten_seeds():
    arms = {}
    for one in record_of('003')['ten']:
        arm = tuple(one[key] for key in ('figure', 'lam', 'reduction', 'select', 'lam_u'))
        arms.setdefault(arm, []).append(one['seed'])
    assert all(seeds == list(adapted._TEN_SEEDS) for seeds in arms.values()) and len(arms) == 31


@pytest.mark.parametrize('figure', adapted._TEN)
def test_each_loss_with_the_mean_takes_its_own_best_rate(figure):
    record = record_of('003')
    lam, lam_u = (record['chosen'][figure][f'{name} of few labels, mean'] for name in ('λ', 'λ_u'))
    arms = [adapted._arm(*arm) for arm in adapted._MEAN_ARMS]
    for arm in [*arms, adapted._few_arm(lam, 0.), adapted._few_arm(lam, lam_u)]:
        assert adapted._not_tuned(record, figure, arm) == '', arm
