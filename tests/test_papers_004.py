"""What the page of the CIT paper cannot test: its printed numbers and quotations against the paper's
text, where that lies beside the data, and a recipe of the paper's scale on data in their layout."""
import re
from copy import deepcopy
from dataclasses import asdict, replace

import pytest
from layouts import made_up_cars
from papers import misquoted, needs_data, record_of, text_of

from dml_nb.experiments import run
from dml_nb.papers.concordance import (
    ALL_MARGINS, CLAIMS, EXHIBITS, IN_TABLE_3, RIVALS, THREE, TRAINED, _best_rival, _not_tuned,
    _ranked)
from dml_nb.papers.exhibits import differs, key_of


def numbers_of(row):
    return [v for k, v in row.items() if isinstance(v, float) and k != 'value']


@pytest.mark.parametrize('exhibit', [e for e in EXHIBITS if e.name.startswith('table')],
                         ids=lambda e: e.name)
def test_tables_are_as_printed(exhibit):
    "Row by row, every number of the source lines in its order"
    first, last = map(int, re.search(r'(\d+)-(\d+)', exhibit.source).groups())
    lines = text_of('004').split('\n')[first - 1:last]
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


def test_claims_are_quoted():
    assert misquoted(CLAIMS, r'\$') == []


named = {exhibit.name: exhibit for exhibit in EXHIBITS}


@pytest.fixture
def record():
    return record_of('004')


def test_every_exhibit_that_was_run_is_in_the_file(record):
    wanted = {name for name, exhibit in named.items() if exhibit.status != 'not runnable'}
    assert record['exhibits'].keys() == wanted
    assert len(named) == 17 and {f'table{i}' for i in range(1, 9)} <= named.keys()


def test_file_holds_the_runs_of_the_recipes(record):
    "Those of all exhibits and no others; ten seeds of each on test classes, five with a trained body"
    wanted = {}
    for exhibit in EXHIBITS:
        for recipe in exhibit.recipes('small') if exhibit.recipes else []:
            wanted.setdefault(key_of(recipe, seed=False), set()).add(recipe.seed)
    found = {key_of(s['recipe'], seed=False): set(s['seeds']) for s in record['settings']}
    assert found == wanted
    assert record['cost']['trainings'] == sum(map(len, found.values()))
    for setting in record['settings']:
        assert setting['recipe'].get('frozen') or setting['recipe']['tail'] == 4
        wanted = 2 if setting['recipe'].get('part') == 'valid' else 10
        assert len(setting['seeds']) == (5 if setting['recipe'].get('tail') else wanted)


@pytest.mark.long
@needs_data
def test_a_run_can_be_computed_again(record):
    "The first of CIT on birds; on another machine sums are in another order"
    recipe = next(r for r in named['table7'].recipes('small') if r.loss == 'cit')
    setting, = [s for s in record['settings']
                if key_of(s['recipe'], seed=False) == key_of(recipe, seed=False)]
    first = setting['seeds'].index(recipe.seed)
    trained = {key: values[first] for key, values in setting['trained'].items()}
    assert max(differs(dict(recipe=asdict(recipe), trained=trained)).values()) < .01


def test_recipes_that_choose_see_no_test_class():
    for recipe in named['table1'].recipes('small'):
        chooses = recipe.seed > 100
        assert (recipe.part == 'valid') == chooses and recipe.valid > 0


def test_test_classes_choose_no_margin_and_no_rival(record):
    "Both stay where every score on them is turned round, and do not where those that choose are"
    record = deepcopy(record)
    def chosen():
        return [(_best_rival(record, data), [_ranked(record, data, loss) for loss in RIVALS])
                for data in THREE]

    before = chosen()
    for part, same in (('test', True), ('valid', False)):
        for setting in record['settings']:
            if setting['recipe'].get('part', 'test') == part:
                setting['trained']['map'] = [-score for score in setting['trained']['map']]
        for one in record['trained']['tries'] if part == 'valid' else []:
            one['map'] *= -1
        assert (chosen() == before) == same


def test_each_setting_has_its_own_best_rate_with_a_trained_body(record):
    tried = {(one['loss'], one['value'], one.get('beside', False))
             for one in record['trained']['tries']}
    assert {(loss, value, False) for loss, value in ALL_MARGINS} < tried
    assert all((('cit', value, True) in tried) for _, value in IN_TABLE_3)
    for loss, value, beside in tried:
        assert _not_tuned(record, TRAINED, loss, value, beside) == ''


def test_paper_scale_runs_on_data_in_the_official_layout(tmp_path):
    "The recipe of table 2 with a small body; data, split, sizes and schedule are its own"
    made_up_cars(tmp_path)
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
