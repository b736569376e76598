"""The pages as plain Markdown, for programs that read, and the list of them, llms.txt.

    python tools/text_pages.py            # write nbs/llms.txt
    python tools/text_pages.py --check    # exit 1 if nbs/llms.txt is not current
    python tools/text_pages.py _docs      # write each page's text and llms.txt into that folder

A page NAME.html has its text at NAME.html.md, which is also where the docstrings of the modules
point to. nbdev would write a list of modules alone, with addresses that only a site with Quarto's
commonmark format has; ours stays, since nbdev-export leaves a list without its own mark as it
is."""
import json
import re
import sys
from pathlib import Path

import yaml
from nbdev.config import get_config, nbpath2html
from readme import cell_parts

root = Path(__file__).resolve().parents[1]
listing = root/'nbs'/'llms.txt'


def cells(page):
    return json.loads((root/'nbs'/page).read_text(encoding='utf-8'))['cells']


def text_name(page):
    "The name of a page's text: 10_losses.pairs.ipynb -> losses.pairs.html.md"
    return f'{nbpath2html(Path(page))}.md'


def head(page):
    "Title and summary of a page, without links"
    text = '\n'.join(''.join(cell['source']) for cell in cells(page)[:3])
    title = re.search(r'^# (.+)', text, re.M)[1]
    summary = re.search(r'^((?:> ?.*\n?)+)', text, re.M)
    summary = ' '.join(re.sub(r'^> ?', '', summary[1], flags=re.M).split()) if summary else ''
    return title, re.sub(r'\[([^\]]+)\]\([^)]+\)', r'\1', summary)


def sections():
    """(name, pages) of each sidebar and of its sections, in reading order; pages between two
    sections of a sidebar are listed under its own name"""
    site = yaml.safe_load((root/'_quarto.yml').read_text(encoding='utf-8'))['website']
    for sidebar in site['sidebar']:
        alone = []
        for entry in sidebar['contents']:
            if isinstance(entry, dict) and 'contents' in entry:
                if alone:
                    yield sidebar['title'], alone
                    alone = []
                yield f'{sidebar["title"]}: {entry["section"]}', names(entry['contents'])
            else:
                alone += names([entry])
        if alone:
            yield sidebar['title'], alone


def names(entries):
    return [entry if isinstance(entry, str) else entry['href'] for entry in entries]


def llms():
    "The text of llms.txt: every page of the sidebars with its summary, part by part"
    config = get_config(root)
    parts = [f'# {config.title}', f'> {config.description}']
    for name, pages in sections():
        lines = []
        for page in pages:
            title, summary = head(page)
            address = f'{config.doc_url.rstrip("/")}/{text_name(page)}'
            lines.append(f'- [{title}]({address})' + (f': {summary}' if summary else ''))
        parts.append(f'## {name}')
        parts.append('\n'.join(lines))
    return '\n\n'.join(parts) + '\n'


def page_text(page):
    "Markdown of a page: its text, its code and what that printed; pictures by their description"
    parts = []
    for cell in cells(page):
        shown = cell_parts(cell)
        described = re.search(r'^#\|\s*fig-alt:\s*(.+)', ''.join(cell['source']), re.M)
        if shown and described:
            shown.insert(1, f'(Figure: {described[1]})')
        parts += shown
    text = '\n\n'.join(filter(None, parts)) + '\n'
    return re.sub(r'\]\(([\w.]+\.ipynb)', lambda link: f']({text_name(link[1])}', text)


def publish(folder):
    "Write the text of each page of the sidebars, and their list, into the folder of the site"
    for _, pages in sections():
        for page in pages:
            (folder/text_name(page)).write_text(page_text(page), encoding='utf-8')
    (folder/listing.name).write_text(llms(), encoding='utf-8')


if __name__ == '__main__':
    if len(sys.argv) > 2:
        sys.exit(f'expected --check, a folder or nothing, got {" ".join(sys.argv[1:])!r}')
    if not sys.argv[1:]:
        listing.write_text(llms(), encoding='utf-8')
    elif sys.argv[1] != '--check':
        publish(Path(sys.argv[1]))
    elif not listing.exists() or listing.read_text(encoding='utf-8') != llms():
        sys.exit('nbs/llms.txt does not list the pages as they are: '
                 'run `python tools/text_pages.py`')
