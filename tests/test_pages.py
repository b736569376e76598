"The rules every page keeps: what it may import, that it was run, and its size."
import ast, json, re
from functools import cache
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]
pages = sorted((root/'nbs').glob('*.ipynb'))
sources = sorted(f for folder in ('dml_nb', 'tests', 'tools') for f in (root/folder).rglob('*.py') if f.name != '_modidx.py')   # which nbdev writes
each_page = pytest.mark.parametrize('page', pages, ids=lambda p: p.stem)
each_source = pytest.mark.parametrize('file', sources, ids=lambda p: str(p.relative_to(root)))

def number(page): return int(page.stem.split('_')[0]) if page.stem[0].isdigit() else 100    # the index may show everything

@cache
def cells(page): return json.loads(page.read_text(encoding='utf-8'))['cells']

@cache
def code_cells(page):
    "(source, flags, body as a syntax tree, outputs) of each code cell; lines of IPython magic are left out"
    res = []
    for source, outputs in ((''.join(c['source']), c['outputs']) for c in cells(page) if c['cell_type'] == 'code'):
        flags = set(re.findall(r'^#\|\s*(\w+)', source, re.M))
        res.append((source, flags, ast.parse(re.sub(r'^[%!].*$', '', source, flags=re.M)), outputs))
    return res

@cache
def module_numbers():
    "{module: number of its page}; what gathers the losses counts as the last loss page"
    exported = {m[1]: page for page in pages for source, *_ in code_cells(page) if (m := re.search(r'^#\|\s*default_exp\s+(\S+)', source, re.M))}
    return {'dml_nb': -1, 'dml_nb.losses': 28} | {f'dml_nb.{name}': number(page) for name, page in exported.items()}

def imported(tree):
    "Modules of this package that `tree` imports; `from dml_nb import x` and the like name a module where there is one"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import): names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [full if (full := f'{node.module}.{a.name}') in module_numbers() else node.module for a in node.names]
        else: continue
        yield from (n for n in names if n.split('.')[0] == 'dml_nb')

def stars(tree): return [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.names[0].name == '*']

@each_page
def test_imports_lower_pages_only(page):
    known, own = module_numbers(), {f'dml_nb.{page.stem.partition("_")[2]}'}
    asked = {name for _, _, tree, _ in code_cells(page) for name in imported(tree)} - own
    assert asked <= known.keys(), f'exported by no page: {sorted(asked - known.keys())}'
    assert not (higher := sorted(n for n in asked if known[n] >= number(page))), f'imports from higher pages: {higher}'

@each_page
def test_module_is_named_after_the_page(page):
    names = [m for source, *_ in code_cells(page) for m in re.findall(r'^#\|\s*default_exp\s+(\S+)', source, re.M)]
    exports = any(flags & {'export', 'exports', 'exporti'} for _, flags, _, _ in code_cells(page))
    assert names == ([page.stem.partition('_')[2]] if exports else [])

@each_page
def test_introduction_heads_the_help(page):
    "nbdev makes the module's docstring from the text cells marked so; written otherwise the mark is printed and the help is lost"
    texts = [''.join(c['source']) for c in cells(page) if c['cell_type'] == 'markdown']
    exports = any('default_exp' in flags for _, flags, _, _ in code_cells(page))
    assert texts[0].startswith('# ') and (not exports or texts[1].startswith('#| export\n'))
    assert not (wrong := [t[:40] for t in texts if re.match(r'(\\?#? *\|? *)export', t) and not t.startswith('#| export')]), wrong

@each_page
def test_links_hold_no_code(page):
    "nbdev links names in backticks by itself, also within a link, and a link within a link is no link"
    texts = ''.join(''.join(c['source']) for c in cells(page) if c['cell_type'] == 'markdown')
    assert not re.findall(r'\[[^\]]*`[^\]]*\]\([^)]*\)', texts)

@each_page
def test_page_has_no_star_import(page): assert not [s for _, _, tree, _ in code_cells(page) for s in stars(tree)]

@each_source
def test_file_has_no_star_import(file): assert not stars(ast.parse(file.read_text(encoding='utf-8')))

@each_page
def test_no_traceback_is_stored(page):
    assert not [o['evalue'] for _, _, _, outputs in code_cells(page) for o in outputs if o['output_type'] == 'error']

def shows(flags, tree):
    "Whether a cell that was run should have an output: it ends in a name, a formula or a call that is no test"
    if flags & {'export', 'exporti', 'exports', 'notest', 'slow', 'cuda', 'bench', 'eval'} or not tree.body: return False
    last = tree.body[-1]
    return isinstance(last, ast.Expr) and not re.match(r'(test_|check_|plt\.|torch\.testing)', ast.unparse(last))

@each_page
def test_was_run(page):
    wanted = [outputs for _, flags, tree, outputs in code_cells(page) if shows(flags, tree)]
    shown = sum(map(bool, wanted))
    assert shown >= .8 * len(wanted), f'{len(wanted) - shown} of {len(wanted)} cells show nothing: run nbdev-test --save'

@each_page
def test_page_is_small(page):
    assert len(cells(page)) <= 90 and page.stat().st_size <= 400 * 1024, f'{len(cells(page))} cells, {page.stat().st_size / 1024:.0f} KB'

@each_page
def test_cells_are_short(page):
    faults = []
    for source, flags, _, _ in code_cells(page):
        lines = [line for line in source.splitlines() if line.strip() and not line.startswith('#|')]
        limit = 25 if flags & {'export', 'exports', 'exporti'} else 15
        if len(lines) > limit and not flags & {'slow', 'cuda', 'bench'}: faults.append(f'{len(lines)} lines where {limit} are allowed, from: {lines[0]}')
    assert not faults, '\n' + '\n'.join(faults)

@each_page
def test_lines_are_short(page):
    long = [line for source, *_ in code_cells(page) for line in source.splitlines() if len(line) > 160]
    assert not long, '\n' + '\n'.join(f'{len(line)} characters: {line.strip()[:80]}...' for line in long)

@each_source
def test_file_is_short(file):
    lines = len(file.read_text(encoding='utf-8').splitlines())
    assert lines <= 400, f'{lines} lines'
