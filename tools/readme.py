"""Make README.md from nbs/index.ipynb, without Quarto.

    python tools/readme.py            # write README.md
    python tools/readme.py --check    # exit 1 if README.md is not current

Markdown is taken as it stands; hidden cells, directives and figures are left out; other outputs are
kept as text; links to pages and pictures become links into the folder nbs, so that they work
wherever the repository is shown."""
import json
import re
import sys
from pathlib import Path

from nbdev.config import get_config, nbpath2html

root = Path(__file__).resolve().parents[1]
own_link = re.compile(r'\]\((?!https?:)([\w./-]+\.(?:ipynb|png))(#[^)]*)?\)')
hidden = re.compile(r'^#\|\s*(hide|default_exp|exporti?|include:\s*false)\s*\b', re.M)


def fenced(text, language=''):
    "A block of code"
    return f'```{language}\n{text.strip()}\n```'


def output_text(output):
    "Markdown of one output, or nothing for a figure"
    if output['output_type'] == 'stream':
        return fenced(''.join(output['text']))
    if output['output_type'] == 'error':
        fault = f'{output["ename"]}: {output["evalue"]}'
        raise ValueError(f'page: expected a run without errors, got {fault}')
    data = output['data']
    if 'text/markdown' in data:
        return ''.join(data['text/markdown']).strip()
    if any(kind.startswith('image/') for kind in data):
        return ''
    return fenced(''.join(data['text/plain']))


def in_folder(link):
    "A link of a page as one of the README; anchors of pages mean nothing there"
    return f'](nbs/{link[1]})'


def site_links(text):
    "Links to the documentation as links to its notebooks"
    site = get_config(root).doc_url.rstrip('/') + '/'
    pages = {f'{site}{nbpath2html(page.name)}': f'nbs/{page.name}'
             for page in (root/'nbs').glob('*.ipynb')}
    return re.sub(re.escape(site) + r'[\w.]+\.html', lambda link: pages[link[0]], text)


def cell_parts(cell):
    "Markdown of one cell: its text, or its code and each of its outputs; nothing of a hidden cell"
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
        return [re.sub(r'\A(#\|.*\n)+', '', source).strip()]
    if cell['cell_type'] != 'code' or hidden.search(source):
        return []
    code = re.sub(r'^#\|.*\n?', '', source, flags=re.M).strip()
    is_shown = code and not re.search(r'^#\|\s*echo:\s*false', source, re.M)
    return [fenced(code, 'python') if is_shown else '', *map(output_text, cell['outputs'])]


def cell_text(cell):
    "Markdown of one cell for the README"
    linked = [own_link.sub(in_folder, part) for part in cell_parts(cell)]
    parts = [site_links(text) for text in linked]       # last, for what they give is in the folder
    return '\n\n'.join(filter(None, parts))


def readme():
    "The text that README.md should have"
    cells = json.loads((root/'nbs/index.ipynb').read_text(encoding='utf-8'))['cells']
    return '\n\n'.join(filter(None, map(cell_text, cells))) + '\n'


if __name__ == '__main__':
    file, text = root/'README.md', readme()
    if sys.argv[1:] not in ([], ['--check']):
        sys.exit(f'expected --check or nothing, got {" ".join(sys.argv[1:])!r}')
    if not sys.argv[1:]:
        file.write_text(text, encoding='utf-8')
    elif not file.exists() or file.read_text(encoding='utf-8') != text:
        sys.exit('README.md is not what nbs/index.ipynb says: run `python tools/readme.py`')
