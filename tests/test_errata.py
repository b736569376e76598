"The page of errata finds a fault in the pages that it gathers, and shows what stands in them now."
import json
import shutil
from pathlib import Path

import pytest
from papers import texts

nbs = Path(__file__).resolve().parents[1]/'nbs'
PAGE = '80_errata.ipynb'
page = json.loads((nbs/PAGE).read_text(encoding='utf-8'))['cells']


def code_with(text):
    source, = (''.join(cell['source']) for cell in page
               if cell['cell_type'] == 'code' and text in ''.join(cell['source']))
    return source


IMPORTS, READER, CHECKS, QUOTATIONS = map(code_with, (
    'import unicodedata', 'def rows_of', 'NO_ENTRY =', 'def alike'))


def run(*sources):
    space = {}
    for source in (IMPORTS, *sources):
        exec(source, space)
    return space


@pytest.fixture
def copy(tmp_path, monkeypatch):
    "A folder with all pages, where the cells then run"
    for path in nbs.glob('[0-9]*.ipynb'):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(path, old, new):
    "Replaces what stands once in the cells of a page."
    cells = json.loads(path.read_text(encoding='utf-8'))
    changed = 0
    for cell in cells['cells']:
        source = ''.join(cell['source'])
        if old in source:
            changed += source.count(old)
            cell['source'] = source.replace(old, new).splitlines(keepends=True)
    assert changed == 1, f'{old}: expected once in {path.name}, {changed} times was found'
    path.write_text(json.dumps(cells), encoding='utf-8')


def test_pages_as_they_are(copy):
    run(READER, CHECKS)


@pytest.mark.parametrize('name, old, new', [
    ('11_losses.histogram.ipynb', '| [B5](#b5) |', '| [B6](#b5) |'),          # one missing, one twice
    ('11_losses.histogram.ipynb', '| [B5](#b5) | slip |', '| [B5](#b5) | oversight |'),
    ('11_losses.histogram.ipynb', '<a id="b5"></a>', ''),                     # leads nowhere
    ('11_losses.histogram.ipynb', 'assert mass(1) == 0. and mass(0) == 1.', 'mass(0)'),
    ('20_reading.adapted.ipynb', '| [D9](#d9) |', '| [D10](#d9) |'),
], ids=['label', 'kind', 'anchor', 'check', 'number'])
def test_a_fault_is_found(copy, name, old, new):
    change(copy/name, old, new)
    with pytest.raises(AssertionError):
        run(READER, CHECKS)


@pytest.mark.skipif(not texts.is_dir(), reason='the texts of the papers are not here')
@pytest.mark.parametrize('name, old, new', [
    ('11_losses.histogram.ipynb', '"h_p^- is approximately the ratio of negative pairs which have a '
     'lower cosine similarity compared with the current positive pair" |',
     '"h_p^- is exactly the ratio of negative pairs" |'),
    ('37_data.noise.ipynb', '"being more robust"', '"being the most robust"'),
    (PAGE, '"a variant of the variance-regularized loss"', '"a kind of regularized loss"'),
], ids=['entry', 'prose', 'withdrawn'])
def test_an_invented_quotation_is_found(copy, name, old, new):
    run(READER, QUOTATIONS)
    change(copy/name, old, new)
    with pytest.raises(AssertionError):
        run(READER, QUOTATIONS)


def test_what_is_shown_is_current(monkeypatch):
    monkeypatch.chdir(nbs)
    shown = ''.join(line for cell in page if cell['cell_type'] == 'code'
                    for output in cell['outputs']
                    for line in output.get('data', {}).get('text/markdown', []))
    old = [entry['label'] for entry in run(READER)['entries']
           if not all(entry[key] in shown for key in ('where', 'says', 'holds', 'here', 'link'))]
    assert not old, f'run {PAGE} again: {old} have changed'
