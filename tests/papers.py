"What the tests of the papers' pages share: the papers' own texts, and the files of results"
import json
import os
import re
from functools import cache
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]
data = os.environ.get('DML_NB_DATA')
needs_data = pytest.mark.skipif(not data, reason='DML_NB_DATA names no folder')
texts = Path(data or 'absent').parent/'papers'
GREEK = {r'\alpha': 'α', r'\beta': 'β', r'\lambda': 'λ', r'\rightarrow': '→'}


@cache
def text_of(paper):
    "The text of a paper, which is no part of the project"
    found = sorted(texts.glob(f'{paper}_*.txt'))
    if not found:
        pytest.skip('the text of the paper does not lie beside the data')
    return found[0].read_text(encoding='utf-8')


@cache
def record_of(paper):
    "What a page's file of results holds"
    return json.loads((root/'results'/'papers'/f'{paper}.json').read_text(encoding='utf-8'))


def misquoted(claims, marks=''):
    "Claims that are not in the words of their paper; `marks`: what is not a part of the words"
    def words(text):
        for command, sign in GREEK.items():
            text = text.replace(command, sign)
        return ' '.join(re.sub(marks, '', text).split())

    text = words(text_of(claims[0].paper))
    return [claim.text for claim in claims if words(claim.text) not in text]
