"The rules every page keeps: what it may import, that it was run, its size, its pictures."
import ast
import builtins
import json
import re
from base64 import b64decode
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
import yaml
from PIL import Image

root = Path(__file__).resolve().parents[1]
pages = sorted((root/'nbs').glob('*.ipynb'))
sources = sorted(file for folder in ('dml_nb', 'tests', 'tools')
                 for file in (root/folder).rglob('*.py') if file.name != '_modidx.py')
each_page = pytest.mark.parametrize('page', pages, ids=lambda p: p.stem)
each_source = pytest.mark.parametrize('file', sources, ids=lambda p: str(p.relative_to(root)))


def number(page):
    "The number of a page; the index may show everything"
    return int(page.stem.split('_')[0]) if page.stem[0].isdigit() else 100


@cache
def cells(page):
    return json.loads(page.read_text(encoding='utf-8'))['cells']


@cache
def code_cells(page):
    """(source, flags, body as a syntax tree, outputs) of each code cell; lines of IPython magic are
    left out"""
    found = []
    for cell in cells(page):
        if cell['cell_type'] == 'code':
            source = ''.join(cell['source'])
            flags = set(re.findall(r'^#\|\s*(\w+)', source, re.M))
            tree = ast.parse(re.sub(r'^[%!].*$', '', source, flags=re.M))
            found.append((source, flags, tree, cell['outputs']))
    return found


@cache
def module_pages():
    "{module: name of its page}; what gathers losses or commands counts as the last page of them"
    found = {'dml_nb': '', 'dml_nb.losses': '28_losses', 'dml_nb.cli': '68_cli.papers'}
    for page in pages:
        for source, *_ in code_cells(page):
            if named := re.search(r'^#\|\s*default_exp\s+(\S+)', source, re.M):
                found[f'dml_nb.{named[1]}'] = page.stem
    return found


@cache
def public_names():
    "{'dml_nb.data.load_data': 'dml_nb.data.sources', ...}: what the chapters load, and whence"
    found = {}
    for file in (root/'dml_nb').glob('*/__init__.py'):
        chapter = f'dml_nb.{file.parent.name}'
        for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
            if isinstance(node, ast.keyword) and node.arg == 'submod_attrs':
                for module, names in ast.literal_eval(node.value).items():
                    found |= {f'{chapter}.{name}': f'{chapter}.{module}' for name in names}
    return found


@cache
def names_of_losses():
    "{'dml_nb.losses.NCA': 'dml_nb.losses.neighbours', ...}: these are loaded at once"
    tree = ast.parse((root/'dml_nb'/'losses'/'__init__.py').read_text(encoding='utf-8'))
    return {f'dml_nb.losses.{alias.name}': node.module for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) for alias in node.names}


def imported(tree):
    """Modules of this package that `tree` imports; `from dml_nb import x` and the like name a
    module where there is one, and a public name of a chapter its module"""
    modules = names_of_losses() | public_names()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            within = [f'{node.module}.{alias.name}' for alias in node.names]
            names = [name if name in module_pages() else modules.get(name, node.module)
                     for name in within]
        else:
            continue
        yield from (name for name in names if name.split('.')[0] == 'dml_nb')


def stars(tree):
    "Modules that `tree` imports everything from"
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [node.module for node in imports if node.names[0].name == '*']


@each_page
def test_imports_lower_pages_only(page):
    name = page.stem.partition('_')[2]
    known, own = module_pages(), {f'dml_nb.{name}'}
    asked = {name for _, _, tree, _ in code_cells(page) for name in imported(tree)} - own
    assert asked <= known.keys(), f'exported by no page: {sorted(asked - known.keys())}'
    higher = sorted(name for name in asked if known[name] >= page.stem)
    assert not higher, f'imports from higher pages: {higher}'


@each_page
def test_module_is_named_after_the_page(page):
    sources = '\n'.join(source for source, *_ in code_cells(page))
    names = re.findall(r'^#\|\s*default_exp\s+(\S+)', sources, re.M)
    exports = any(flags & {'export', 'exports', 'exporti'} for _, flags, _, _ in code_cells(page))
    expected = page.stem.partition('_')[2]
    assert names == ([expected] if exports else [])


@each_page
def test_introduction_heads_the_help(page):
    """nbdev makes the module's docstring from the text cells marked so; written otherwise the mark
    is printed and the help is lost"""
    texts = [''.join(c['source']) for c in cells(page) if c['cell_type'] == 'markdown']
    exports = any('default_exp' in flags for _, flags, _, _ in code_cells(page))
    assert texts[0].startswith('# ') and (not exports or texts[1].startswith('#| export\n'))
    marked = [text for text in texts if re.match(r'(\\?#? *\|? *)export', text)]
    wrong = [text[:40] for text in marked if not text.startswith('#| export')]
    assert not wrong


@each_page
def test_links_lead_to_pages(page):
    texts = ''.join(''.join(c['source']) for c in cells(page) if c['cell_type'] == 'markdown')
    linked = set(re.findall(r'\]\(([\w./-]+\.ipynb)[#)]', texts))
    assert linked <= {other.name for other in pages}


@each_page
def test_links_hold_no_code(page):
    """nbdev links names in backticks by itself, also within a link, and a link within a link is no
    link"""
    texts = ''.join(''.join(c['source']) for c in cells(page) if c['cell_type'] == 'markdown')
    assert not re.findall(r'\[[^\]]*`[^\]]*\]\([^)]*\)', texts)


@each_page
def test_page_has_no_star_import(page):
    assert not [s for _, _, tree, _ in code_cells(page) for s in stars(tree)]


@each_source
def test_file_has_no_star_import(file):
    assert not stars(ast.parse(file.read_text(encoding='utf-8')))


@each_page
def test_no_traceback_is_stored(page):
    stored = [output for _, _, _, outputs in code_cells(page) for output in outputs]
    assert not [output['evalue'] for output in stored if output['output_type'] == 'error']


NOT_SHOWN = {'export', 'exporti', 'exports', 'notest', 'eval'}


def shows(flags, tree):
    """Whether a cell that was run should have an output: it ends in a name, a formula or a call
    that is no test"""
    if flags & NOT_SHOWN or not tree.body:
        return False
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        return False
    return not re.match(r'(test_|check_|plt\.|torch\.testing)', ast.unparse(last))


@each_page
def test_was_run(page):
    wanted = [outputs for _, flags, tree, outputs in code_cells(page) if shows(flags, tree)]
    shown = sum(map(bool, wanted))
    silent = len(wanted) - shown
    said = f'{silent} of {len(wanted)} cells show nothing: run nbdev-test --save'
    assert shown >= .8 * len(wanted), said


@each_page
def test_was_run_with_data(page):
    "Saved without them, a page loses the pictures that it kept"
    said = json.dumps([outputs for *_, outputs in code_cells(page)])
    assert 'DML_NB_DATA is not set' not in said, 'run it where DML_NB_DATA holds its data'


@each_page
def test_page_is_small(page):
    kilobytes = page.stat().st_size / 1000
    assert kilobytes <= 500, f'{kilobytes:.0f} KB with its outputs'


@each_page
def test_pictures_are_told_in_words(page):
    silent = []
    for source, _, _, outputs in code_cells(page):
        draws = any('image/png' in output.get('data', {}) for output in outputs)
        if draws and not re.search(r'^#\|\s*fig-alt:\s*[^\s"]', source, re.M):  # quotes stay in it
            silent.append(source[:60])
    assert not silent, f'cells that draw without a line "#| fig-alt: ...": {silent}'


def first_block(page):
    "The first code that the site shows unfolded, as cells up to the first with a result; or None"
    block = []
    for source, flags, _, outputs in code_cells(page):
        if flags & {'code', 'default_exp', 'echo', 'export', 'exporti', 'hide'}:    # code-fold
            continue
        block.append(source)
        if outputs:
            return '\n\n'.join(block)


#: Pages that list what other pages and files hold; the code that does it is not shown.
WITHOUT_CODE = '81_bibliography', '82_gallery', '83_results'


def unknown_names(code):
    "Names that `code` reads but neither imports nor defines"
    known = set(dir(builtins))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(alias.asname or alias.name).split('.')[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            known.add(node.name)
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return sorted(names - known)


def test_unknown_names_are_found():
    code = 'import torch.nn as nn\ndef f(x): return nn.relu(x) + y\nprint([f(z) for z in zs])'
    assert unknown_names(code) == ['y', 'zs']
    assert not unknown_names('from a import b as c\ntry: c()\nexcept OSError as e: print(e)')


@each_page
def test_first_block_imports_what_it_uses(page):
    block = first_block(page)
    assert (block is None) == (page.stem in WITHOUT_CODE)
    assert not unknown_names(block or '')


def folded(page):
    "Positions of the cells of a page that the site folds: each by itself, or several under one line"
    found, opened = set(), 0
    for place, cell in enumerate(cells(page)):
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown':
            for tag in re.findall('</?details>', source):
                opened += 1 if tag == '<details>' else -1
                assert opened in (0, 1), f'details within details: {source[:60]}'
        elif opened or re.search(r'^#\| (code-fold: true|echo: false|export|exporti|hide)\b', source,
                                 re.M):
            found.add(place)
    assert not opened, 'details without an end'
    return found


@each_page
def test_what_folds_is_closed_again(page):
    folded(page)


@each_page
def test_no_fold_is_empty(page):
    "The site hides exported cells: details that hold nothing else would open to nothing"
    hidden, parts = re.compile(r'^#\| (export|exporti|hide)\b', re.M), []
    for cell in cells(page):
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown':
            parts.append(re.sub('<summary>.*?</summary>', '', source, flags=re.S))
        elif not hidden.search(source):
            parts.append(source)
    inside = re.findall('<details>(.*?)</details>', '\n'.join(parts), re.S)
    assert all(each.strip() for each in inside)


@each_page
def test_few_assertions_stand_open(page):
    "A check that teaches stays open; groups of them fold under a line that says what they show"
    hidden = folded(page)
    lines = [line for place, cell in enumerate(cells(page)) if place not in hidden
             and cell['cell_type'] == 'code' for line in ''.join(cell['source']).splitlines()]
    checks = [line for line in lines
              if re.match(r'\s*(assert|test_\w+|check_\w+|with pytest\.raises)\b', line)]
    assert len(checks) <= 12, checks


def public_names_of(page):
    "Names in `__all__` of the module of a page"
    for source, *_ in code_cells(page):
        if named := re.search(r'^#\|\s*default_exp\s+(\S+)', source, re.M):
            module = (root/'dml_nb').joinpath(*named[1].split('.')).with_suffix('.py')
            for node in ast.parse(module.read_text(encoding='utf-8')).body:
                if isinstance(node, ast.Assign) and node.targets[0].id == '__all__':
                    return ast.literal_eval(node.value)
    return []


def names_used(code):
    "What `code` reads or calls; an import alone is no use"
    nodes = list(ast.walk(ast.parse(re.sub(r'^[%!].*$', '', code, flags=re.M))))
    return ({node.id for node in nodes if isinstance(node, ast.Name)}
            | {node.attr for node in nodes if isinstance(node, ast.Attribute)})


@each_page
def test_every_public_name_has_an_open_example(page):
    "The API reference promises a short example of each on its page"
    away = folded(page)
    shown = [''.join(cell['source']) for place, cell in enumerate(cells(page))
             if cell['cell_type'] == 'code' and place not in away]
    missing = set(public_names_of(page)).difference({'main'}, *map(names_used, shown))  # `dml`
    assert not missing, f'without an example in open code: {sorted(missing)}'


def captions(page):
    "(alt text, caption) of each picture, '' where there is none"
    for source, _, _, outputs in code_cells(page):
        if any('image/png' in output.get('data', {}) for output in outputs):
            yield tuple(''.join(re.findall(rf'^#\|\s*fig-{kind}:\s*(.+)$', source, re.M))
                        for kind in ('alt', 'cap'))


@each_page
def test_captions_do_not_repeat_what_alt_texts_say(page):
    "What the picture shows is for who cannot see it; the caption says what to look for"
    assert not [alt for alt, caption in captions(page) if alt == caption]


@pytest.mark.parametrize(
    'page', [page for page in pages if page.stem in ('index', '52_training.callbacks')
             or 90 <= number(page) < 100 and page.stem != 'index'], ids=lambda p: p.stem)
def test_every_picture_has_a_caption(page):
    assert all(caption for _, caption in captions(page))


def in_reading_order(contents):
    "Names of the files of a sidebar, or of a section of one, from top to bottom"
    for entry in contents:
        if isinstance(entry, str):
            yield entry
        elif 'href' in entry:
            yield entry['href']
        else:
            yield from in_reading_order(entry['contents'])


site = yaml.safe_load((root/'_quarto.yml').read_text(encoding='utf-8'))['website']
sidebars = [list(in_reading_order(sidebar['contents'])) for sidebar in site['sidebar']]
order = [name for sidebar in sidebars for name in sidebar]


def test_every_page_is_in_one_sidebar():
    assert sorted(order) == [page.name for page in pages]


def test_every_item_of_the_navbar_has_a_sidebar():
    "The navbar marks the item whose page is in the sidebar of the page that is shown"
    items = site['navbar']['left']
    assert [item['text'] for item in items] == [each['title'] for each in site['sidebar']]
    assert all(item['href'] in sidebar for item, sidebar in zip(items, sidebars, strict=True))


@each_page
def test_next_follows_the_sidebars(page):
    place = order.index(page.name)
    if page.stem == 'index' or place == len(order) - 1:
        return
    last = ''.join(cells(page)[-1]['source']).strip().splitlines()[-1]
    following = order[place + 1]
    wanted = r'Next: .*\(' + re.escape(following) + r'\)'
    assert re.match(wanted, last), f'{following} is next: {last}'


@each_page
def test_long_measurements_are_folded(page):
    "A reader of the site asks for them; what they found is read by the cell that follows"
    measured = [source for source, *_ in code_cells(page)
                if re.search(r'^@measurement', source, re.M)]
    assert all(re.search(r'^#\| code-fold: true', source, re.M) for source in measured)


@each_page
def test_measurements_are_named_after_their_page(page):
    stem = page.stem.partition('_')[2]
    names = [name for source, *_ in code_cells(page)
             for name in re.findall(r"^@measurement\('([\w.]+)'", source, re.M)]
    assert not [name for name in names if name != stem and not name.startswith(f'{stem}.')]


@each_page
def test_outputs_name_no_folder_of_a_machine(page):
    written = json.dumps([outputs for *_, outputs in code_cells(page)])
    assert 'site-packages' not in written


@each_page
def test_long_tables_are_folded(page):
    "A reader sees what matters first, and opens the rest; a row for each loss is about fifty"
    shown = [''.join(output.get('data', {}).get('text/markdown', ''))
             for *_, outputs in code_cells(page) for output in outputs]
    unfolded = re.sub(r'<details>.*?</details>', '', '\n\n'.join(shown), flags=re.S)
    tables = re.findall(r'(?:^\|.*\n?)+', unfolded, re.M)
    assert max((len(table.splitlines()) for table in tables), default=0) <= 54


@pytest.mark.parametrize('stem', ['67_experiments.benchmark', '83_results'])
def test_labels_of_measurements_can_be_read(stem):
    "Pictures are no wider than the column of the site, so that it does not shrink their labels"
    page = root/'nbs'/f'{stem}.ipynb'
    sizes = re.findall(r'(?:font|label)size=([\d.]+)', page.read_text(encoding='utf-8'))
    assert sizes and min(map(float, sizes)) >= 9
    widths = [output['metadata']['image/png']['width'] for *_, outputs in code_cells(page)
              for output in outputs if 'image/png' in output.get('data', {})]
    assert widths and max(widths) <= 800


@each_page
def test_figures_have_two_pixels_for_one(page):
    "Or more; the column of a page has 750 pixels, and wider figures are shrunk to it"
    for *_, outputs in code_cells(page):
        for output in outputs:
            if shown := output.get('metadata', {}).get('image/png'):
                pixels = Image.open(BytesIO(b64decode(output['data']['image/png']))).width
                assert pixels >= 2 * min(shown['width'], 750) - 15


@pytest.mark.parametrize('page', [page for page in pages if 70 <= number(page) < 80],
                         ids=lambda p: p.stem)
def test_papers_show_no_value_as_python_writes_it(page):
    "Dictionaries, lists, tuples of several numbers and quoted texts are for who writes code"
    for *_, outputs in code_cells(page):
        for output in outputs:
            shown = output.get('data', output)
            if 'image/png' not in shown:
                text = ''.join(shown.get('text/markdown', shown.get('text', '')))
                assert not re.search(r"\{'|\['|\[[-\d]|\((?:'|\d+, \d+, )|^'", text, re.M), text
                assert 'text/markdown' in shown or 'text' in shown, shown


def test_long_texts_of_the_errata_have_room():
    "The place stands above the quotation, so that four columns are left for a window of 1280 px"
    page, = (page for page in pages if page.stem == '80_errata')
    tables = [''.join(output['data'].get('text/markdown', ''))
              for *_, outputs in code_cells(page) for output in outputs if 'data' in output]
    heads = [line for table in tables for line in table.splitlines()
             if line.startswith('| entry |')]
    assert heads.count('| entry | the paper | what holds | here |') == len(heads) - 1 > 10
    widths = (root/'nbs'/'styles.css').read_text(encoding='utf-8')
    assert 'th:first-child:nth-last-child(-n+4) ~ th .wide { width: 10rem; }' in widths
