"""What the package promises as a whole: light imports, the metadata of settings.ini, a README and
a sidebar that are current."""
import ast
import json
import re
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import (
    PackageNotFoundError, entry_points, packages_distributions, requires)
from pathlib import Path

import networkx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_pages import code_cells, pages

from dml_nb import DEFAULT_LOSS
from dml_nb.losses.catalogue import LOSSES
from dml_nb.support.results import commit, imported_modules

root = Path(__file__).resolve().parents[1]
heavy = 'fastai', 'faiss', 'matplotlib', 'sympy', 'sklearn', 'torchvision', 'typer'

def settings():
    parser = ConfigParser(delimiters=['='])
    parser.read(root/'settings.ini', encoding='utf-8')
    return parser['DEFAULT']

@pytest.mark.long
@pytest.mark.parametrize('module, unwanted', [
    ('dml_nb.support.validate', heavy),
    ('dml_nb.support.storage', (*heavy, 'torch')),
    ('dml_nb.support.results', heavy),
    ('dml_nb.core', heavy),
    ('dml_nb.weighting', heavy),
    ('dml_nb.proof', (*heavy, 'torch')),
    ('dml_nb.proof.behaviour', heavy),
    ('dml_nb.losses', heavy),
    ('dml_nb.data.sources', ('fastai', 'faiss', 'matplotlib', 'sympy', 'torchvision')),
    ('dml_nb.evaluation.retrieval', heavy),
    ('dml_nb.search.index', ('fastai', 'sympy', 'matplotlib', 'torchvision')),
    ('dml_nb.training.distribution', heavy),
    ('dml_nb.search.folders', ('fastai', 'sympy', 'matplotlib', 'torchvision', 'fasthtml')),
    ('dml_nb.search.pictures', heavy),
    ('dml_nb.search.mistakes', ('fastai', 'sympy', 'matplotlib', 'torchvision', 'fasthtml')),
    ('dml_nb.search.copies', ('fastai', 'sympy', 'matplotlib', 'torchvision', 'fasthtml')),
    ('dml_nb.data.pixels', heavy),
    ('dml_nb.training.bodies', heavy),
    ('dml_nb.training.embedding', ('fastai', 'torchvision', 'fasthtml'))])
def test_imports_are_light(module, unwanted):
    code = f'import sys, {module}; print(*sorted(set({unwanted}) & set(sys.modules)))'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [], f'importing {module} also loads {run.stdout}'

@pytest.mark.skipif(not (root/'.git').exists(), reason='no clone')
def test_the_commit_is_of_this_clone(monkeypatch, tmp_path):
    "A hook of another one says where that lies"
    known = commit.__wrapped__()
    monkeypatch.setenv('GIT_DIR', str(tmp_path))
    assert commit.__wrapped__() == known is not None

def test_requirements_installed_as_written():
    wanted = {Requirement(text) for text in settings()['requirements'].split()}
    for key, value in settings().items():
        extra, suffix, _ = key.partition('_requirements')
        if suffix:
            wanted |= {Requirement(f'{text}; extra == "{extra}"') for text in value.split()}
    installed = {Requirement(text) for text in requires('dml_nb')}
    assert installed == wanted, (
        'the installed metadata are not those of settings.ini: install again')

def test_the_page_of_installation_names_every_extra():
    extras = [key.removesuffix('_requirements') for key in settings()
              if key.endswith('_requirements')]
    page = (root/'nbs'/'89_install.ipynb').read_text(encoding='utf-8')
    assert sorted(re.findall(r'"\| `(\w+)` \|', page)) == sorted(extras)


def required(texts, extras):
    "Names of distributions: of these requirements, and of whatever those need in turn"
    found, waiting = set(), [Requirement(text) for text in texts]
    while waiting:
        each = waiting.pop()
        if canonicalize_name(each.name) == 'dml-nb':
            waiting += [Requirement(text) for extra in each.extras for text in extras[extra]]
        elif canonicalize_name(each.name) not in found:
            found.add(canonicalize_name(each.name))
            try:
                waiting += [inner for inner in map(Requirement, requires(each.name) or ())
                            if not inner.marker or inner.marker.evaluate({'extra': ''})]
            except PackageNotFoundError:
                pass                                    # names what is not installed here
    return found

def imported_by_pages():
    "{module: a page that imports it}, without what a page can do without and so tries"
    found = {}
    for page in pages:
        for _, _, tree, _ in code_cells(page):
            tried = {node for each in ast.walk(tree) if isinstance(each, ast.Try)
                     for node in ast.walk(each)}
            for node in ast.walk(tree):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    names = [node.module]
                if node not in tried:
                    found |= {name.partition('.')[0]: page.name for name in names}
    return found

def test_readers_get_what_pages_import():
    "By `pip install dml_nb[book]`"
    extras = {key.removesuffix('_requirements'): value.split()
              for key, value in settings().items() if key.endswith('_requirements')}
    known = required(settings()['requirements'].split() + ['dml_nb[book]'], extras)
    modules = imported_by_pages()
    for name in {*sys.stdlib_module_names, 'dml_nb'}:
        modules.pop(name, None)
    of = packages_distributions()
    lacking = {name: page for name, page in modules.items()
               if not known & {canonicalize_name(each) for each in of.get(name, [])}}
    assert modules and not lacking

def test_what_is_imported_is_declared():
    "Each distribution by itself, whatever else may bring it"
    extras = {key: value for key, value in settings().items() if key.endswith('_requirements')}
    texts = ' '.join([settings()['requirements'], *extras.values()]).split()
    declared = {canonicalize_name(Requirement(text).name) for text in texts}
    names = set()
    for file in (root/'dml_nb').rglob('*.py'):
        for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module)
    modules = {name.partition('.')[0] for name in names} - {*sys.stdlib_module_names, 'dml_nb'}
    of = packages_distributions()
    lacking = {name for name in modules
               if name in of and not declared & {canonicalize_name(each) for each in of[name]}}
    assert modules and not lacking

def test_console_scripts():
    for script in settings()['console_scripts'].split():
        name, value = script.split('=')
        scripts = entry_points(group='console_scripts', name=name)
        command, = (script for script in scripts if script.dist.name == 'dml_nb')
        assert command.value == value and callable(command.load())

def test_readme_is_current():
    command = [sys.executable, root/'tools'/'readme.py', '--check']
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr

def test_the_readme_begins_with_the_default_loss():
    text = (root/'README.md').read_text(encoding='utf-8')
    line, = (line for line in text.splitlines() if 'the loss to start with' in line)
    assert f' {type(LOSSES[DEFAULT_LOSS]()).__name__}(' in line

def test_links_of_the_readme_lead_to_files():
    links = re.findall(r'\]\((?!https?:)([^)#]+)', (root/'README.md').read_text(encoding='utf-8'))
    assert len(links) > 100 and not [link for link in links if not (root/link).is_file()]

def imports_of_modules():
    "(module, what it imports of this package): 'dml_nb.data.noise', 'dml_nb.core.as_labels'"
    for file in (root/'dml_nb').rglob('*.py'):
        module = '.'.join(file.relative_to(root).with_suffix('').parts)
        tree = ast.parse(file.read_text(encoding='utf-8'))
        yield from ((module, name) for name in imported_modules(tree, module))

def test_the_diagram_shows_the_rooms_as_they_are():
    guide = (root/'CONTRIBUTING.md').read_text(encoding='utf-8')
    drawn = re.findall(r'^    (\w+) --> (\w+)$', guide, re.M)
    pairs = {(used.split('.')[1], module.split('.')[1]) for module, used in imports_of_modules()}
    rooms = {room for _, room in pairs if not room.startswith('_')}
    rooms |= {'core', 'support'}                  # where one of them imports nothing of ours
    imports = networkx.DiGraph((used, room) for used, room in pairs
                               if {used, room} <= rooms and used != room)
    assert networkx.is_directed_acyclic_graph(imports)
    assert set(drawn) == set(networkx.transitive_reduction(imports).edges)
    described = re.findall(r'`(\w+)`', ''.join(re.findall(r'^\| (`.+?) \|', guide, re.M)))
    assert set(described) == set(imports)

@pytest.mark.long
def test_the_guide_to_a_loss_runs():
    "The loss and the checks that CONTRIBUTING.md shows"
    guide = (root/'CONTRIBUTING.md').read_text(encoding='utf-8')
    blocks = re.findall(r'```python\n(.*?)```', guide, re.S)
    assert len(blocks) == 2
    command = [sys.executable, '-c', ''.join(blocks)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_results_say_which_code_made_them():
    files = sorted((root/'results').rglob('*.json'))
    records = {file: json.loads(file.read_text(encoding='utf-8')) for file in files}
    for file, record in records.items():
        measured = record.values() if file.parent.name == 'bench' else [record]
        assert all(each['code'] for each in measured), file
