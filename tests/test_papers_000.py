"What the page of the DRO paper cannot test: the paper's own text, and a run made again."
import copy
import json
import re

import pytest
from papers import misquoted, needs_data, record_of, text_of

from dml_nb.papers import dro
from dml_nb.papers.exhibits import by_recipe, differs, key_of


@pytest.fixture
def record():
    return copy.deepcopy(record_of('000'))


def test_claims_are_quoted():
    assert misquoted(dro.CLAIMS) == []


@pytest.mark.parametrize('name', dro.PRINTED)
def test_printed_numbers_stand_on_their_lines(name):
    lines = text_of('000').splitlines()
    for row in dro.PRINTED[name]:
        cells = re.sub('</?b>', '', lines[int(row['source'].split()[1]) - 1]).split('\t')[1:]
        printed = [None if cell == '-' else float(cell) for cell in cells]
        assert printed == [value for key, value in row.items() if key not in ('method', 'source')]


def test_every_recipe_was_run(record):
    "What the exhibits ask for and what the file holds are the same runs"
    asked = {key_of(recipe) for name in dro.DATA for recipe in dro.flat_recipes(name)}
    assert asked == by_recipe(record['runs']).keys()


def named(row):
    return json.dumps([row['method'], row.get('batch')])


def test_rows_are_those_of_the_runs(record):
    for name in dro.DATA:
        of = {key_of(recipe) for recipe in dro.flat_recipes(name)}
        runs = [run for run in record['runs'] if key_of(run['recipe']) in of]
        again = {named(row): row for row in dro.rows_of(name, runs)}
        for row in record['exhibits'][name]['rows']:
            for column, value in row.items():
                found = again[named(row)][column]
                assert found == value if isinstance(value, str) else found == pytest.approx(value)


def test_each_loss_is_judged_by_its_own_longer_training(record):
    "With as large a gap after the longer training one loss counts, and the others do not"
    def hasty():
        return {row for row in dro.VARIANTS
                if dro.in_haste(record, 'table1', dro.TRAINED, row, 'MS')}

    assert hasty() == dro.VARIANTS.keys()
    longer = {one['row']: one for one in record['longer'] if one['data'] == dro.TRAINED}
    longer['DRO-TopK_M']['map@r'] = longer['MS']['map@r'] - .02
    longer['DRO-TopK_M']['recall@1'] = [each - .04 for each in longer['MS']['recall@1']]
    assert hasty() == dro.VARIANTS.keys() - {'DRO-TopK_M'}


@pytest.mark.long
@needs_data
def test_a_cell_can_be_computed_again(record):
    "One run of table 1; on another machine sums are in another order"
    recipe = dro.recipes_of('table1')[dro.BIRDS, 'MS'][0]
    kept = by_recipe(record['runs'])[key_of(recipe)]
    assert max(differs(kept).values()) < .01
