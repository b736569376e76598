"""What the package promises as a whole: light imports, the metadata of settings.ini, a README and
a sidebar that are current."""
import re
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import entry_points, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

root = Path(__file__).resolve().parents[1]
heavy = 'fastai', 'faiss', 'matplotlib', 'sympy', 'sklearn', 'torchvision', 'typer'

def settings():
    parser = ConfigParser(delimiters=['='])
    parser.read(root/'settings.ini', encoding='utf-8')
    return parser['DEFAULT']

@pytest.mark.long
@pytest.mark.parametrize('module, unwanted', [
    ('dml_nb.core', heavy),
    ('dml_nb.weighting', heavy),
    ('dml_nb.losses', heavy),
    ('dml_nb.distributed', heavy),
    ('dml_nb.embedding', ('fastai', 'torchvision'))])
def test_imports_are_light(module, unwanted):
    code = f'import sys, {module}; print(*sorted(set({unwanted}) & set(sys.modules)))'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [], f'importing {module} also loads {run.stdout}'

def test_requirements_installed_as_written():
    wanted = {Requirement(text) for text in settings()['requirements'].split()}
    for key, value in settings().items():
        extra, suffix, _ = key.partition('_requirements')
        if suffix:
            wanted |= {Requirement(f'{text}; extra == "{extra}"') for text in value.split()}
    installed = {Requirement(text) for text in requires('dml_nb')}
    assert installed == wanted, (
        'the installed metadata are not those of settings.ini: install again')

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

def test_links_of_the_readme_lead_to_files():
    links = re.findall(r'\]\((?!https?:)([^)#]+)', (root/'README.md').read_text(encoding='utf-8'))
    assert len(links) > 100 and not [link for link in links if not (root/link).is_file()]

@pytest.mark.long
def test_the_guide_to_a_loss_runs():
    "The loss and the checks that CONTRIBUTING.md shows"
    guide = (root/'CONTRIBUTING.md').read_text(encoding='utf-8')
    blocks = re.findall(r'```python\n(.*?)```', guide, re.S)
    assert len(blocks) == 2
    command = [sys.executable, '-c', ''.join(blocks)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
