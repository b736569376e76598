"How the pages are rendered, beyond nbdev's own steps (written by hand; named in pyproject.toml)"
import re
import textwrap


def drop_directives(cell):
    "Leave the directives of a text cell out of the page, where nbdev 3.3 would print them."
    if cell.cell_type == 'markdown':
        cell.source = re.sub(r'\A(#\|.*\n)+', '', cell.source)


def plain_signatures(cell):
    """Leave out of shown signatures what is no type that was written (the class of a default None,
    and the module that a page is while it runs) and fold their lines at a hundred characters."""
    for output in getattr(cell, 'outputs', None) or []:
        shown = output.get('data', output)          # a stream has its text in itself
        for kind in ('text/markdown', 'text/html', 'text/plain', 'text'):
            if kind in shown:
                text = ''.join(shown[kind])
                text = text.replace(':NoneType=None', '=None').replace('__main__.', '')
                shown[kind] = re.sub(r'^```python\n.*?^```', folded, text, flags=re.S | re.M)


def folded(signature):
    "A matched block of code with classes named without their modules, no line above 100 characters"
    lines = re.sub(r'\b(?:[a-z_]\w*\.)+(?=[A-Z])', '', signature[0]).splitlines()
    return '\n'.join(
        textwrap.fill(line, 100, subsequent_indent='        # ' if ' # ' in line else '    ')
        if len(line) > 100 else line for line in lines)


def captions(cell):
    "Print what a figure shows below it, too, and not only for those who cannot see it."
    if cell.cell_type == 'code' and '#| fig-cap:' not in cell.source:
        cell.source = re.sub(r'^(#\| fig-)alt(:.*)$', r'\1alt\2\n\1cap\2', cell.source, flags=re.M)
