"""The wheel, used away from the repository. `.ci/run` builds it and names it in DML_NB_WHEEL."""
import json
import os
import re
import subprocess
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]
wheel = os.environ.get('DML_NB_WHEEL')
pytestmark = pytest.mark.skipif(not wheel, reason='DML_NB_WHEEL names no wheel')

@pytest.fixture(scope='module')
def away(tmp_path_factory):
    """A folder with an environment that holds the wheel; the rest (torch, fastai, ...) is borrowed
    from the environment of the tests"""
    folder = tmp_path_factory.mktemp('away')
    venv.create(folder/'env', with_pip=True)
    call(folder, 'python', '-m', 'pip', 'install', '--no-deps', wheel)
    place = next((folder/'env'/'lib').glob('python*/site-packages'))
    # a plain path: editable installs in it stay unseen
    (place/'borrowed.pth').write_text(sysconfig.get_path('purelib') + '\n')
    return folder

def call(away, *command):
    "What `command` prints, run in the folder with its environment; it must succeed"
    env = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    env['PATH'] = f'{away/"env"/"bin"}:{os.environ["PATH"]}'
    run = subprocess.run(command, cwd=away, env=env, stdin=subprocess.DEVNULL,
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout

def test_every_module_is_there_and_imports(away):
    code = '''import dml_nb, importlib, pkgutil
print(dml_nb.__file__)
for module in pkgutil.walk_packages(dml_nb.__path__, 'dml_nb.'):
    print(importlib.import_module(module.name).__name__)'''
    file, *modules = call(away, 'python', '-c', code).splitlines()
    assert Path(file).is_relative_to(away/'env'), f'{file} was imported, not the wheel'
    expected = set()
    for source in (root/'dml_nb').rglob('*.py'):
        parts = source.relative_to(root).with_suffix('').parts
        expected.add('.'.join(parts[:-1] if parts[-1] == '__init__' else parts))
    assert set(modules) | {'dml_nb'} == expected

def test_links_of_the_description_work_anywhere():
    "A package index has neither the pages nor the pictures of the repository."
    with zipfile.ZipFile(wheel) as archive:
        name, = (name for name in archive.namelist() if name.endswith('.dist-info/METADATA'))
        description = archive.read(name).decode('utf-8').partition('\n\n')[2]
    readme = (root/'README.md').read_text(encoding='utf-8')
    assert description.count('](') == readme.count('](') > 100
    assert not re.findall(r'\]\((?!https://|#)', description)
    pictures = re.findall(r'!\[[^]]*\]\(([^)]*)\)', description)
    assert pictures and all(link.startswith('https://raw.') for link in pictures)

def test_command_says_what_it_does(away):
    text = call(away, 'dml', '--help')
    assert 'compare' in text and 'Traceback' not in text

def test_compare(away):
    options = '--losses', 'multi_similarity', '--seeds', '1', '--epochs', '1', '--out', 'out'
    call(away, 'dml', 'compare', *options)
    results = (away/'out'/'results.json').read_text(encoding='utf-8')
    assert json.loads(results)['data']['name'] == 'glyphs' and 'multi_similarity' in results
    assert '<html' in (away/'out'/'report.html').read_text(encoding='utf-8').lower()

def test_letters_are_there_with_the_licences_of_their_fonts(away):
    code = """import sys, dml_nb.data.glyphs
from importlib.resources import files
from dml_nb.data import load_data
print(load_data('glyphs').sha256())
assert 'matplotlib' not in sys.modules, 'only drawing more of them needs it'
print(*(file.name for file in files('dml_nb.data').joinpath('static').iterdir()))"""
    sha256, names = call(away, 'python', '-c', code).splitlines()
    assert sha256 == 'f4799285f281763325e6afc23d5adf221bf830accc95558bc3b10d8d5d10b2ee'
    assert set(names.split()) == {'glyphs.npz', 'LICENSE_DEJAVU', 'LICENSE_STIX'}
