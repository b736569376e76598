"What the package promises as a whole: light imports, the metadata of settings.ini, a README and a sidebar that are current."
import subprocess, sys
from configparser import ConfigParser
from importlib.metadata import entry_points, requires
from pathlib import Path

import pytest, yaml
from packaging.requirements import Requirement

root = Path(__file__).resolve().parents[1]
heavy = 'fastai', 'faiss', 'matplotlib', 'sympy', 'sklearn', 'torchvision', 'typer'

def settings():
    parser = ConfigParser(delimiters=['='])
    parser.read(root/'settings.ini', encoding='utf-8')
    return parser['DEFAULT']

@pytest.mark.parametrize('module', ['dml_nb.core', 'dml_nb.weighting', 'dml_nb.losses'])
def test_needs_torch_alone(module):
    code = f'import sys, {module}; print(*sorted(set({heavy}) & set(sys.modules)))'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [], f'importing {module} also loads {run.stdout}'

def test_requirements_installed_as_written():
    wanted, suffix = {Requirement(r) for r in settings()['requirements'].split()}, '_requirements'
    extras = {key[:-len(suffix)]: value.split() for key, value in settings().items() if key.endswith(suffix)}
    for extra, rows in extras.items(): wanted |= {Requirement(f'{r}; extra == "{extra}"') for r in rows}
    assert {Requirement(r) for r in requires('dml_nb')} == wanted, 'install again: the installed metadata are not those of settings.ini'

def test_console_scripts():
    for script in settings()['console_scripts'].split():
        name, value = script.split('=')
        command, = (e for e in entry_points(group='console_scripts', name=name) if e.dist.name == 'dml_nb')
        assert command.value == value and callable(command.load())

def test_readme_is_current():
    run = subprocess.run([sys.executable, root/'tools'/'readme.py', '--check'], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr

def test_sidebar_lists_the_pages_in_order():
    contents = yaml.safe_load((root/'_quarto.yml').read_text(encoding='utf-8'))['website']['sidebar']['contents']
    listed = [page for entry in contents for page in ([entry] if isinstance(entry, str) else entry['contents'])]
    assert listed == ['index.ipynb'] + sorted(p.name for p in (root/'nbs').glob('[0-9]*.ipynb'))
    assert {p.name for p in (root/'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts} == set(listed)
