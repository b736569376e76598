"What the code of the package keeps to, so that it can be read from cold."
import ast
import inspect
import re
import tokenize
from pathlib import Path

from test_pages import public_names

import dml_nb.losses
from dml_nb.support.results import imported_modules
from dml_nb.weighting import PairLoss

root = Path(__file__).resolve().parents[1]
written_by_nbdev = '_modidx.py'


def code_lines():
    "(file, number, text) of every line that nbdev does not write by itself"
    for file in sorted((root/'dml_nb').rglob('*.py')):
        if file.name == written_by_nbdev:
            continue
        in_names = False
        for number, line in enumerate(file.read_text(encoding='utf-8').splitlines(), 1):
            in_names = line.startswith('__all__') or (in_names and not line.startswith('#'))
            is_list_of_modules = line.startswith('- `dml_nb.')
            if line.strip() and not in_names and not is_list_of_modules:
                yield file.name, number, line


def test_lines_fit_a_page():
    lengths = sorted(len(line) for _, _, line in code_lines())
    assert lengths[len(lengths) * 95 // 100] <= 100
    longest = [(name, number, len(line)) for name, number, line in code_lines() if len(line) > 120]
    assert not longest


def test_one_statement_a_line():
    folded = []
    for file in sorted((root/'dml_nb').rglob('*.py')):
        with open(file, 'rb') as source:
            folded += [(file.name, token.start[0]) for token in tokenize.tokenize(source.readline)
                       if token.type == tokenize.OP and token.string == ';']
    assert not folded


def test_losses_have_few_bases():
    for name in dml_nb.losses.__all__:
        loss = getattr(dml_nb.losses, name)
        if inspect.isclass(loss) and issubclass(loss, PairLoss):
            bases = [base for base in loss.__mro__ if issubclass(base, PairLoss)]
            assert len(bases) <= 3, f'{name} has {[base.__name__ for base in bases]}'


def test_functions_stay_where_they_were_defined():
    "No function is assigned into a class: methods stand in it or are patched"
    for name, number, line in code_lines():
        head, _, tail = line.partition(' = ')
        is_assignment = head[:1].isupper() and head.count('.') == 1 and tail.isidentifier()
        assert not is_assignment, f'{name}:{number}: {line}'


def test_modules_import_from_where_a_name_is_defined():
    """A chapter loads its public names when they are used, so an import from the chapter names no
    module, and `code_hash`, which follows imports, would miss the code behind it"""
    by_name = {}
    for file in sorted((root/'dml_nb').rglob('*.py')):
        parts = file.relative_to(root).with_suffix('').parts
        package = parts[-1] == '__init__'
        module = '.'.join(parts[:-1] if package else parts)
        tree = ast.parse(file.read_text(encoding='utf-8'))
        if found := imported_modules(tree, module, package) & set(public_names()):
            by_name[module] = sorted(found)
    assert public_names() and not by_name


def test_docstrings_cite_papers_by_author_and_year():
    "The numbers of the five papers are for commands and files; nobody knows them in a docstring"
    numbered = re.compile(r'\(00[0-4]\b|\b[Pp]aper 00[0-4]|\b00[0-4] in this book')
    found = []
    for file in sorted((root/'dml_nb').rglob('*.py')):
        for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
            kinds = ast.Module, ast.ClassDef, ast.FunctionDef
            if isinstance(node, kinds) and numbered.search(ast.get_docstring(node) or ''):
                found.append(f'{file.name}: {ast.get_docstring(node)[:60]}')
    assert not found
