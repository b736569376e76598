"How the pages are rendered, beyond nbdev's own steps (written by hand; named in pyproject.toml)"
import json
import re
import textwrap
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

#: What Colab has to run before a page: the package, what pages measure against, and their files.
COLAB_SETUP = """!git clone --depth 1 https://github.com/dml-nb/dml_nb
%cd dml_nb/nbs
%pip install -q ..[book]"""


#: What Quarto 1.6 and later leave out of the index of the search.
UNSEARCHED = 'quarto-exclude-from-search-index'


def drop_directives(cell):
    "Leave the directives of a text cell out of the page, where nbdev 3.3 would print them."
    if cell.cell_type == 'markdown':
        cell.source = re.sub(r'\A(#\|.*\n)+', '', cell.source)


def listed_entries(cell):
    """Leave out of a cell when it ran, which nbdev notes beside `show_doc`: with it Quarto leaves
    the headings of the entries out of "On this page"."""
    cell.metadata.pop('execution', None)


def folded_source(cell):
    "Fold what is exported and shown; nbdev would leave it open."
    if cell.cell_type == 'code':
        shown = '#| code-fold: show\n#| code-summary: "Exported source"'
        cell.source = cell.source.replace(shown, shown.replace('show', 'true', 1), 1)


def drop_notes(cell):
    "Leave out that a measurement was kept: the folded code says how it is repeated."
    if cell.get('outputs'):
        cell.outputs = [output for output in cell.outputs if not ''.join(
            output.get('text', '')).startswith('Shown: the measurement kept in results/')]


def unsearched(cell):
    "Leave folded checks out of the index of the search: a reader looks for what they prove."
    if cell.cell_type == 'markdown':
        cell.source = re.sub(r'<details>(\s*<summary>Checked)',
                             rf'<details class="{UNSEARCHED}">\1', cell.source)
    elif re.search(r'^#\| *code-summary: "Checked', cell.source, re.M):
        cell.source = f'#| classes: {UNSEARCHED}\n{cell.source}'


#: A signature as nbdev shows it, below its heading; other code on a page stays as it is.
SIGNATURE = re.compile(r'(^#+ [^\n]*\n\n)(```python\n.*?^```)', re.S | re.M)


def plain_signatures(cell):
    """Leave out of shown signatures what is no type that was written (the class of a default None,
    and the module that a page is while it runs) and fold their lines at a hundred characters."""
    for output in getattr(cell, 'outputs', None) or []:
        shown = output.get('data', output)          # a stream has its text in itself
        for kind in ('text/markdown', 'text/html', 'text/plain', 'text'):
            if kind in shown:
                text = ''.join(shown[kind])
                text = text.replace(':NoneType=None', '=None').replace('__main__.', '')
                text = SIGNATURE.sub(lambda found: found[1] + folded(found[2]), text)
                shown[kind] = upright(text) if kind == 'text/markdown' else text


def folded(signature):
    "Classes named without their modules, no line above 100 characters"
    lines = re.sub(r'\b(?:[a-z_]\w*\.)+(?=[A-Z])', '', signature).splitlines()
    return '\n'.join(
        textwrap.fill(line, 100, subsequent_indent='        # ' if ' # ' in line else '    ')
        if len(line) > 100 else line for line in lines)


def upright(text):
    "Below a signature no italics, which nbdev ends at the first line of a docstring"
    return re.sub(r'(^```python\n.*?^```\n\n)\*([^\n]+)\*$', r'\1\2', text, flags=re.S | re.M)


def captions(cell):
    "Print what a figure shows below it, too, and not only for those who cannot see it."
    if cell.cell_type == 'code' and '#| fig-cap:' not in cell.source:
        cell.source = re.sub(r'^(#\| fig-)alt(:.*)$', r'\1alt\2\n\1cap\2', cell.source, flags=re.M)


def rewrite(cell, change):
    "Put the Markdown of a cell, and of what it shows, through a function."
    if cell.cell_type == 'markdown':
        cell.source = change(cell.source)
    for output in getattr(cell, 'outputs', None) or []:
        shown = output.get('data', {})
        if 'text/markdown' in shown:
            shown['text/markdown'] = change(''.join(shown['text/markdown']))


#: Characters of a cell, in Markdown, from which on its column is wide on a phone.
LONG_TEXT = 60
#: Code and formulas, which stay as they are written.
LITERAL = r'```.*?```|`[^`]+`|\$\$.*?\$\$|\$[^$]+\$'
#: What else Markdown keeps, and the @ of a word elsewhere.
AT_SIGN = re.compile(LITERAL + r'|\]\([^)]*\)|https?://\S+|(?<=\w)@(?=\w)', re.S)


def no_mail(cell):
    "Write MAP@R so that pandoc makes no mail address of it; code, formulas and links stay."
    def written(text):
        return AT_SIGN.sub(lambda found: '&#64;' if found[0] == '@' else found[0], text)

    rewrite(cell, written)
    if cell.cell_type == 'code':
        cell.source = re.sub(r'^#\| fig-cap:.*$', lambda line: written(line[0]), cell.source,
                             flags=re.M)


#: A link of nbdev to an entry of a page.
ENTRY = re.compile(r'\[`([^`]+)`\]\([^)\s]*/([\w.]+)\.html#[^)]+\)')


def no_chance_links(cell):
    """Names of losses are no links to functions that happen to be called the same. Private names
    are no links either: no page has an entry for them."""
    from dml_nb.losses.catalogue import LOSSES

    def checked(found):
        name, page = found[1], found[2]
        module = import_module(f'dml_nb.{page}') if find_spec(f'dml_nb.{page}') else None
        private = module is not None and name.partition('.')[0] not in module.__all__
        return f'`{name}`' if name in LOSSES or private else found[0]

    rewrite(cell, lambda text: ENTRY.sub(checked, text))


#: Headings stay, too, whose addresses would change; and a term of a sum.
TERM = re.compile(LITERAL + r'|^#.*?$|\bL\^([WLG])\b|\bL_(1\b|\{\w+\})', re.S | re.M)


def typeset_terms(cell):
    "Show L^W, L_{Local}, L_1 and the like of the papers as mathematics, which tables write plainly."
    def written(found):
        if found[1]:
            return rf'$L^{{\mathcal {found[1]}}}$'
        return rf'$L_\mathrm{found[2]}$' if found[2] else found[0]

    rewrite(cell, lambda text: TERM.sub(written, text))


#: An interval of a list of them in a cell of a table, with a short name before it.
LISTED = re.compile(r'(<br>|\| )([^|<>\n]{0,40}[+-][\d.]\S* ± [\d.]\S*?)(?=<br>| \|)')


def hold_intervals(cell):
    """Keep ± and the number after it on one line, so that a narrow cell has two lines and not
    three; and the name, too, where several intervals stand one below the other."""
    def held(found):
        return found[1] + found[2].replace(' ', '\u00a0')

    rewrite(cell, lambda text: LISTED.sub(held, text).replace('± ', '±\u00a0'))


def wide_columns(cell):
    "Mark columns of long texts, which styles.css keeps readable on a phone, where a table scrolls."
    rewrite(cell, lambda text: re.sub(r'(?:^\|.*\|[ \t]*$\n?){3,}', marked, text, flags=re.M))


def marked(table):
    "A matched table with a mark in the headings of columns in which a text is long"
    heads, rule, *rows = [re.split(r'(?<!\\)\|', line.strip())[1:-1]
                          for line in table[0].splitlines()]
    for i in range(len(heads)):
        if max(len(row[i]) for row in rows if i < len(row)) > LONG_TEXT:
            heads[i] = f'{heads[i].rstrip()} <span class="wide"></span> '
    first = f"|{'|'.join(heads)}|"
    return '\n'.join([first, *table[0].split('\n')[1:]])


class OncePerPage:
    "A step that changes the page `self.nb` in `begin`, and not each cell"
    def __init__(self, nb):
        self.nb = nb

    def __call__(self, cell):
        pass


class documented_once(OncePerPage):
    "Show a property once, of which nbdev documents the getter and the setter by the same words."
    def begin(self):
        shown, kept = set(), []
        for cell in self.nb.cells:
            is_code = cell.cell_type == 'code'
            call = re.search(r'^show_doc\(.*\)$', cell.source, re.M) if is_code else None
            if call is None or call[0] not in shown:
                kept.append(cell)
            if call is not None:
                shown.add(call[0])
        self.nb.cells = kept


class launch_link(OncePerPage):
    "Put a link that opens the page in Colab, and what to run there first, below each page's title."
    def begin(self):
        from nbdev.config import get_config
        from nbdev.process import mk_cell
        name = Path(self.nb.path_).name
        address = get_config().git_url.replace('github.com', 'colab.research.google.com/github')
        text = (f'<details class="launch {UNSEARCHED}" style="font-size: .85em"><summary>'
                f'<a href="{address}/blob/main/nbs/{name}">Open this page in Colab</a>, '
                'and what to run there first</summary>\n\n'
                f'```python\n{COLAB_SETUP}\n```\n\n</details>')
        has_title = self.nb.cells[0].cell_type == 'raw'
        self.nb.cells.insert(1 if has_title else 0, mk_cell(text, 'markdown'))


@cache
def papers(
    page:Path, # of the bibliography
) -> dict: # {title: anchor}
    outputs = [output for cell in json.loads(page.read_text(encoding='utf-8'))['cells']
               for output in cell.get('outputs', [])]
    text = ''.join(line for output in outputs
                   for line in output.get('data', {}).get('text/markdown', []))
    entries = re.findall(r'<a id="([\w-]+)"></a>[^*]*\*([^*]+)\*', text)
    return {title: anchor for anchor, title in entries}


class link_papers:
    """Make titles of papers links to their entries. Introductions become docstrings, where links
    read badly, so it is done for the site alone."""
    def __init__(self, nb):
        self.page = Path(nb.path_)

    def __call__(self, cell):
        bibliography = self.page.with_name('81_bibliography.ipynb')
        if cell.cell_type != 'markdown' or self.page.name == bibliography.name:
            return
        for title, anchor in papers(bibliography).items():
            words = r'\s+'.join(map(re.escape, title.replace('@', '\\@').split()))
            cell.source = re.sub(rf'(?<!\[)(\*{words}\*)', rf'[\1]({bibliography.name}#{anchor})',
                                 cell.source)
