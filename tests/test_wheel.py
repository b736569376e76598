"""The wheel, used away from the repository. `.ci/run` builds it and names it in DML_NB_WHEEL."""
import json, os, subprocess, sysconfig, venv
from pathlib import Path

import pytest

root, wheel = Path(__file__).resolve().parents[1], os.environ.get('DML_NB_WHEEL')
pytestmark = pytest.mark.skipif(not wheel, reason='DML_NB_WHEEL names no wheel')

@pytest.fixture(scope='module')
def away(tmp_path_factory):
    "A folder with an environment that holds the wheel; the rest (torch, fastai, ...) is borrowed from the environment of the tests"
    folder = tmp_path_factory.mktemp('away')
    venv.create(folder/'env', with_pip=True)
    call(folder, 'python', '-m', 'pip', 'install', '--no-deps', wheel)
    place = next((folder/'env'/'lib').glob('python*/site-packages'))
    (place/'borrowed.pth').write_text(sysconfig.get_path('purelib') + '\n')    # a plain path: editable installs in it stay unseen
    return folder

def call(away, *command):
    "What `command` prints, run in the folder with its environment; it must succeed"
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'} | dict(PATH=f'{away/"env"/"bin"}:{os.environ["PATH"]}')
    run = subprocess.run(command, cwd=away, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout

def test_every_module_is_there_and_imports(away):
    code = '''import dml_nb, importlib, pkgutil
print(dml_nb.__file__)
for m in pkgutil.walk_packages(dml_nb.__path__, 'dml_nb.'): print(importlib.import_module(m.name).__name__)'''
    file, *modules = call(away, 'python', '-c', code).splitlines()
    assert Path(file).is_relative_to(away/'env'), f'{file} was imported, not the wheel'
    files = (f.relative_to(root).with_suffix('').parts for f in (root/'dml_nb').rglob('*.py'))
    assert set(modules) | {'dml_nb'} == {'.'.join(p[:-1] if p[-1] == '__init__' else p) for p in files}

def test_command_says_what_it_does(away):
    text = call(away, 'dml', '--help')
    assert 'compare' in text and 'Traceback' not in text

def test_compare(away):
    call(away, 'dml', 'compare', '--losses', 'multi_similarity', '--seeds', '1', '--epochs', '1', '--out', 'out')
    results = (away/'out'/'results.json').read_text(encoding='utf-8')
    assert json.loads(results) and 'multi_similarity' in results
    assert '<html' in (away/'out'/'report.html').read_text(encoding='utf-8').lower()
