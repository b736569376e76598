"The printed numbers and quotations of the CIT paper's page, against the paper's text where it lies."
import os
import re
from pathlib import Path

import pytest

from dml_nb.papers.concordance import CLAIMS, EXHIBITS

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
