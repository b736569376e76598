"What the site adds to the pages, and the files that it publishes beside them."
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from nbdev.frontmatter import FrontmatterProc
from nbdev.process import NBProcessor, mk_cell
from nbdev.processors import FilterDefaults, add_show_docs
from test_pages import cells, each_page, root

from dml_nb import _docs


def processed(page, *processors):
    "The sources of a page as the site has them, after `processors`"
    work = NBProcessor(page, procs=[FrontmatterProc, *processors], rm_directives='quarto')
    work.process()
    return [cell.source for cell in work.nb.cells]


def test_link_to_colab_follows_the_title():
    page = root/'nbs'/'10_losses.pairs.ipynb'
    title, link, *_ = processed(page, _docs.launch_link)
    assert title.startswith('---') and 'Pair by pair' in title
    address = 'https://colab.research.google.com/github/dml-nb/dml_nb/blob/main/nbs/'
    assert f'<a href="{address}{page.name}">' in link and _docs.COLAB_SETUP in link


def test_checks_and_the_link_to_colab_stay_out_of_the_search():
    page = root/'nbs'/'10_losses.pairs.ipynb'
    _, link, *_ = processed(page, _docs.launch_link)
    assert f'class="launch {_docs.UNSEARCHED}"' in link
    sources = processed(page, _docs.unsearched)
    checks = [source for source in sources if re.search('(<summary>|code-summary: ")Checked', source)]
    assert 0 < len(checks) < len(sources)
    assert checks == [source for source in sources if _docs.UNSEARCHED in source]


def test_that_a_measurement_was_kept_is_left_out():
    page = root/'nbs'/'10_losses.pairs.ipynb'
    work = NBProcessor(page, procs=[FrontmatterProc, _docs.drop_notes], rm_directives='quarto')
    before, _ = str(work.nb.cells).count('Shown: the measurement'), work.process()
    assert (before, str(work.nb.cells).count('Shown: the measurement')) == (1, 0)
    assert '| Contrastive | 9.7 ms' in str(work.nb.cells)               # the table stays


def test_titles_of_papers_lead_to_the_bibliography():
    sources = '\n'.join(processed(root/'nbs'/'17_losses.dro.ipynb', _docs.link_papers))
    title = r'\*A\s+Simple\s+and\s+Effective\s+Framework\s+for\s+Pairwise\s+Deep\s+Metric\s+Learning\*'
    assert re.search(rf'\[{title}\]\(81_bibliography\.ipynb#qi-2020\)', sources)
    assert '[[*' not in sources                         # what is a link already stays one link


def test_names_of_measures_are_no_mail_addresses():
    kept = r'`R@1`, $S@1$, [a](b.html#c@d), https://x.org/@a/b@c, MAP\@R'
    text = mk_cell(f'MAP@R, {kept}', 'markdown')
    _docs.no_mail(text)
    assert text.source == f'MAP&#64;R, {kept}'
    code = mk_cell('#| fig-alt: R@1\n#| fig-cap: R@1\nA @ B, a@b', 'code')
    code.outputs = [dict(data={'text/markdown': ['| R@1 |', ' `R@1` |'], 'text/plain': 'R@1'})]
    _docs.no_mail(code)
    assert code.source == '#| fig-alt: R@1\n#| fig-cap: R&#64;1\nA @ B, a@b'
    assert code.outputs[0]['data'] == {'text/markdown': '| R&#64;1 | `R@1` |', 'text/plain': 'R@1'}


def test_intervals_are_held_together():
    text = mk_cell('1 ± 2', 'markdown')
    code = mk_cell("print('1 ± 2')", 'code')
    code.outputs = [dict(data={'text/markdown': ['| 1 ± 2 |'], 'text/plain': '1 ± 2'})]
    for cell in (text, code):
        _docs.hold_intervals(cell)
    assert text.source == '1 ±\u00a02' and code.source == "print('1 ± 2')"
    assert code.outputs[0]['data'] == {'text/markdown': '| 1 ±\u00a02 |', 'text/plain': '1 ± 2'}
    listed = mk_cell('| less (± 1 expected):<br>a, K = 1 +2 ± 3e-05<br>b -0.1 ± .2 | 1 |', 'markdown')
    _docs.hold_intervals(listed)
    assert listed.source.replace('\u00a0', '_') == (
        '| less (±_1 expected):<br>a,_K_=_1_+2_±_3e-05<br>b_-0.1_±_.2 | 1 |')


def test_entries_are_listed_and_their_source_is_folded():
    "By the processors that pyproject.toml names, behind nbdev's own"
    page = root/'nbs'/'10_losses.pairs.ipynb'
    work = NBProcessor(page, procs=FilterDefaults().procs(), rm_directives='quarto')
    work.process()
    cells = [cell for cell in work.nb.cells if cell.cell_type == 'code']
    assert sum('show_doc(' in cell.source for cell in cells) >= 4
    assert not [cell.source[:60] for cell in cells if 'execution' in cell.metadata]
    exported = [cell.source for cell in cells if 'Exported source' in cell.source]
    assert exported and all('code-fold: true' in source for source in exported)


@each_page
def test_linked_papers_have_an_entry(page):
    sources = '\n'.join(''.join(cell['source']) for cell in cells(page))
    linked = set(re.findall(r'81_bibliography\.ipynb#([\w-]+)', sources))
    assert linked <= set(_docs.papers(root/'nbs'/'81_bibliography.ipynb').values())


def test_list_of_pages_is_current():
    command = [sys.executable, root/'tools'/'text_pages.py', '--check']
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_listed_page_is_published(tmp_path):
    subprocess.run([sys.executable, root/'tools'/'text_pages.py', tmp_path], check=True)
    text = (tmp_path/'llms.txt').read_text(encoding='utf-8')
    listed = re.findall(r'\(https://dml-nb\.github\.io/dml_nb/([^)]+)\)', text)
    assert listed and set(listed) == {file.name for file in tmp_path.glob('*.md')}


def test_help_leads_to_a_published_page(tmp_path):
    subprocess.run([sys.executable, root/'tools'/'text_pages.py', tmp_path], check=True)
    modules = [file.read_text(encoding='utf-8') for file in (root/'dml_nb').rglob('*.py')]
    addresses = set(re.findall(r'^Docs: https://dml-nb\.github\.io/dml_nb/(\S+?)"*$',
                               '\n'.join(modules), re.M))
    assert len(addresses) > 30
    assert addresses <= {file.name for file in tmp_path.glob('*.md')}


def test_docstrings_are_upright_below_signatures():
    shown = '### f\n\n```python\ndef f(\n    a, # * and `b`\n):\n```\n\n*First line,*\nand *more* of it.'
    code = mk_cell('show_doc(f)', 'code')
    code.outputs = [dict(data={'text/markdown': [shown]})]
    _docs.plain_signatures(code)
    assert code.outputs[0]['data']['text/markdown'] == shown.replace('*First line,*', 'First line,')


@each_page
def test_each_name_is_documented_once(page):
    "Of a property with a setter, too, by the processors that pyproject.toml names"
    named = [proc for proc in FilterDefaults().xtra_procs() if proc is _docs.documented_once]
    shown = [source for source in processed(page, add_show_docs, *named)
             if source.startswith('show_doc(')]
    assert len(shown) == len(set(shown)), [call for call in shown if shown.count(call) > 1]
    if page.name == '50_training.embedding.ipynb':
        assert 'show_doc(Embedder.frozen)' in shown


def test_code_that_is_no_signature_is_shown_as_it_is():
    source = '<details>\n\n```python\ndef f():\n    return sp.Matrix([1])\n```\n\n</details>'
    code = mk_cell('show(f)', 'code')
    code.outputs = [dict(data={'text/markdown': [source]})]
    _docs.plain_signatures(code)
    assert code.outputs[0]['data']['text/markdown'] == source
    signature = '### f\n\n```python\ndef f(\n    z:torch.Tensor, # rows\n):\n```'
    code.outputs = [dict(data={'text/markdown': [signature]})]
    _docs.plain_signatures(code)
    assert code.outputs[0]['data']['text/markdown'] == signature.replace('torch.', '')


def test_only_entries_of_pages_are_links():
    public = '[`Circle`](https://x.org/losses.contrastive.html#circle)'
    links = '[`circle`](https://x.org/plots.html#circle)', '[`watch`](https://x.org/plots.html#watch)'
    text = mk_cell(' and '.join([public, *links]), 'markdown')
    _docs.no_chance_links(text)
    assert text.source == f'{public} and `circle` and `watch`'


def shown_cells(page):
    "The cells of a page that the site shows, by nbdev's own steps alone"
    steps = [step for step in FilterDefaults().base_procs()
             if step.__name__ not in ('exec_show_docs', 'FrontmatterProc')]
    work = NBProcessor(page, procs=steps, rm_directives='quarto')
    work.process()
    return work.nb.cells


@pytest.fixture(scope='module')
def elsewhere():
    "Another process: a page that exports an operator would register it here a second time"
    with ProcessPoolExecutor(1, get_context('spawn')) as pool:
        yield pool


def run_for_site(page):
    os.chdir(root/'nbs')
    steps = [step for step in FilterDefaults().base_procs()
             if step.__name__ in ('FrontmatterProc', 'populate_language', 'add_show_docs', 'exec_show_docs')]
    NBProcessor(page, procs=steps, rm_directives='quarto').process()


@pytest.mark.long
@each_page
def test_cells_that_import_run_alone(page, elsewhere):
    """For the site nbdev runs cells that export or import, and no others. One that imports and then uses
    what another cell made would stop it"""
    elsewhere.submit(run_for_site, page).result()


@each_page
def test_sentences_before_hidden_code_are_finished(page):
    "A colon announces code or a list; where the code is hidden, the sentence ends with a full stop"
    shown = shown_cells(page)
    texts = [cell for cell, following in zip(shown, shown[1:])
             if cell.cell_type == following.cell_type == 'markdown']
    assert not [cell.source[-80:] for cell in texts if cell.source.rstrip().endswith(':')]


def test_columns_of_long_texts_are_marked():
    table = ['| a | b \\\\| c | d |', '|---|---|--:|', f'| 1 | {"long " * 20}| 2 |', '| 3 | 4 | 5 |']
    text = mk_cell('\n'.join(['Before | it.', '', *table, '', 'After.']), 'markdown')
    _docs.wide_columns(text)
    marked = table[0].replace(' | d', ' <span class="wide"></span> | d')
    assert text.source == '\n'.join(['Before | it.', '', marked, *table[1:], '', 'After.'])
    short = mk_cell('\n'.join(table[:2] + table[3:]), 'markdown')
    _docs.wide_columns(short)
    assert 'wide' not in short.source


def test_terms_are_typeset():
    kept = '`L^W`, $L_1$, L^{W}, HL^W, L_12'
    text = mk_cell(f'# L^W\nTrip + L^W, “L^L”, L_{{Local}}, L_1, {kept}', 'markdown')
    _docs.typeset_terms(text)
    terms = r'Trip + $L^{\mathcal W}$, “$L^{\mathcal L}$”, $L_\mathrm{Local}$, $L_\mathrm1$'
    assert text.source == f'# L^W\n{terms}, {kept}'
    displayed = '$$L_{1}=1$$ so $x$, and $\\mathcal L_{semi}/y$ of it'
    text = mk_cell(displayed, 'markdown')
    _docs.typeset_terms(text)
    assert text.source == displayed
