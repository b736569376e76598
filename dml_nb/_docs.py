"How the pages are rendered, beyond nbdev's own steps (written by hand; named in pyproject.toml)"
import re


def drop_directives(cell):
    "Leave the directives of a text cell out of the page, where nbdev 3.3 would print them."
    if cell.cell_type == 'markdown':
        cell.source = re.sub(r'\A(#\|.*\n)+', '', cell.source)


def plain_signatures(cell):
    """Leave out of shown signatures what is no type that was written: the class of a default None,
    and the module that a page is while it runs."""
    for output in getattr(cell, 'outputs', None) or []:
        shown = output.get('data', output)          # a stream has its text in itself
        for kind in ('text/markdown', 'text/html', 'text/plain', 'text'):
            if kind in shown:
                text = ''.join(shown[kind])
                shown[kind] = text.replace(':NoneType=None', '=None').replace('__main__.', '')
