"How the pages are rendered, beyond nbdev's own steps (written by hand; named in pyproject.toml)"
import re


def drop_directives(cell):
    "Leave the directives of a text cell out of the page, where nbdev 3.3 would print them."
    if cell.cell_type == 'markdown':
        cell.source = re.sub(r'\A(#\|.*\n)+', '', cell.source)
