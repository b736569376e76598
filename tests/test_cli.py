"""The command from outside: a small comparison, mistakes, a kill in the middle, a full disk.

Importing fastai takes seconds, so what needs no process of its own runs in this one."""
import inspect
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from typer.main import get_command

import dml_nb
from dml_nb.support import storage
from dml_nb.data import sources as data
from dml_nb.experiments import benchmark, compare, store
from dml_nb.search import (
    browser as pages, card, choices, copies, everyday, export, folders, pictures)
from dml_nb.support.storage import one_writer
from dml_nb.cli import app
from dml_nb.training import create_embedder, embedding, load_embedder, save_embedder
from dml_nb.papers.exhibits import Exhibit
from dml_nb.training.recovery import finished_folders

command = [sys.executable, '-c', 'from dml_nb.cli import main; main()']
small = ['compare', '--data', 'digits', '--losses', 'multi_similarity']
small += ['--epochs', '1', '--no-turn']
heavy = ['torch', 'torchvision', 'fastai', 'sklearn', 'matplotlib', 'sympy', 'numpy']
against_hanging = 500       # seconds; nothing is asserted about time


def in_a_process(*words):
    "The command as a user gives it"
    return subprocess.run(
        [*command, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=against_hanging)


def results(out):
    return json.loads((out/'results.json').read_text(encoding='utf-8'))


def rows(out):
    return [{k: v for k, v in row.items() if k != 'seconds'} for row in results(out)['rows']]


def changed_at(out):
    "When each finished run was written"
    return {path.name: path.stat().st_mtime_ns for path in (out/'runs').glob('*.json')}


def parts(out):
    "What was begun and not finished"
    return [path for path in out.rglob('.*') if path.is_file()]


def is_one_line(run, *words, status=2):
    assert run.returncode == status, run.stdout + run.stderr
    assert run.stdout == '' and run.stderr.count('\n') == 1 and 'Traceback' not in run.stderr
    assert not [word for word in words if str(word) not in run.stderr], run.stderr
    return True


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A small comparison, never interrupted"
    out = tmp_path_factory.mktemp('whole')/'made'/'anew'
    run = in_a_process(*small, '--seeds', 2, '--out', out)
    assert run.returncode == 0, run.stderr
    assert run.stderr == '' and 'multi_similarity' in run.stdout and 'report.html' in run.stdout
    assert 'replaced' not in run.stdout
    return out


def test_compare(whole):
    found = results(whole)
    assert list(found)[:10] == ['machine', 'versions', 'code', 'commit', 'threads', 'date', 'seed',
                                'data', 'settings', 'losses']
    assert len(found['data']['sha256']) == 64 and found['seed'] == [0, 1] and found['threads'] == 1
    names = ['raw pixels', 'untrained', 'multi_similarity']
    rows = [(row['loss'], row['seed']) for row in found['rows']]
    assert rows == [(name, seed) for name in names for seed in (0, 1)]
    for row in found['rows']:
        measures = ['recall@1', 'map@r', 'unseen_recall@1', 'unseen_map@r']
        assert list(row) == ['loss', 'seed', *measures, 'seconds']
        assert all(0 < row[measure] <= 1 for measure in measures)
        assert (row['seconds'] > 0) == (row['loss'] == 'multi_similarity')
    value = {(r['loss'], r['seed']): r['map@r'] for r in found['rows']}
    for seed in (0, 1):
        pixels, untrained, trained = (value[name, seed] for name in names)
        assert trained > pixels > untrained
    report = (whole/'report.html').read_text(encoding='utf-8')
    assert report.startswith('<!doctype html>') and report.count('data:image/png;base64,') == 5
    assert 'src="http' not in report and '<script' not in report


@pytest.mark.long
def test_again_and_afresh(whole, dml):
    before, at = rows(whole), changed_at(whole)
    again = dml(*small, '--seeds', 2, '--out', whole)
    assert again.returncode == 0 and again.stdout.count('replaced the earlier one') == 2
    assert rows(whole) == before and changed_at(whole) == at and len(at) == 4
    afresh = dml(*small, '--seeds', 2, '--out', whole, '--fresh')
    assert afresh.returncode == 0 and rows(whole) == before
    later = changed_at(whole)
    assert later.keys() == at.keys() and all(later[name] > at[name] for name in at)


def test_a_comparison_says_which_runs_are_of_other_code(whole, tmp_path, dml):
    "They are used only where that is asked for, and the code of each is in the results"
    (tmp_path/'runs').mkdir()
    for path in (whole/'runs').glob('*.json'):
        run = json.loads(path.read_text(encoding='utf-8')) | dict(code='0123456789abcdef')
        name = f'{path.stem.rpartition("-")[0]}-01234567.json'
        (tmp_path/'runs'/name).write_text(json.dumps(run), encoding='utf-8')
    at, words = changed_at(tmp_path), [*small, '--seeds', 1, '--out', tmp_path]
    accepted = dml(*words, '--accept-other-code')
    assert 'used: 2 kept runs of other code of dml_nb than this; without' in accepted.stdout
    assert changed_at(tmp_path) == at and results(tmp_path)['code'] == '0123456789abcdef'
    anew = dml(*words)
    assert 'trained again: 2 kept runs of other code of dml_nb than this; --acc' in anew.stdout
    assert len(changed_at(tmp_path)) == len(at) + 2
    assert results(tmp_path)['code'] == results(whole)['code'] != '0123456789abcdef'
    assert 'other code' not in dml(*words).stdout


@pytest.mark.long
def test_one_seed_has_no_interval(tmp_path, dml):
    run = dml(*small, '--seeds', 1, '--out', tmp_path)
    assert run.returncode == 0 and results(tmp_path)['seed'] == 0
    assert 'one seed, too few to compare losses; intervals need three' in run.stdout
    assert 'raw pixels' in run.stdout and '(' not in run.stdout
    report = (tmp_path/'report.html').read_text(encoding='utf-8')
    assert 'one seed, too few to compare losses; intervals need three' in report


@pytest.mark.long
@pytest.mark.parametrize('stop, status', [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_stopped_and_started_again(whole, tmp_path, dml, stop, status):
    (tmp_path/'notes.txt').write_text('mine')
    process = subprocess.Popen(
        [*command, *small, '--seeds', '2', '--out', str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))   # a shell may ignore it
    limit = time.monotonic() + against_hanging
    while not changed_at(tmp_path):
        assert process.poll() is None and time.monotonic() < limit, 'no run was kept before the end'
        time.sleep(.01)
    process.send_signal(stop)
    _, said = process.communicate(timeout=against_hanging)
    assert process.returncode == status and not (tmp_path/'results.json').exists()
    if stop == signal.SIGINT:
        assert said.count('\n') == 1 and 'stopped' in said and str(tmp_path/'runs') in said
    kept = changed_at(tmp_path)
    assert 1 <= len(kept) < 4
    run = dml(*small, '--seeds', 2, '--out', tmp_path)
    assert run.returncode == 0, run.stderr
    assert rows(tmp_path) == rows(whole) and (tmp_path/'notes.txt').read_text() == 'mine'
    assert all(changed_at(tmp_path)[name] == at for name, at in kept.items())
    assert not [path for path in parts(tmp_path) if path.name.startswith('.results.json')]


mistakes = {
    'loss': (['--losses', 'tripet'],
             'dml: --losses: expected a known name, got tripet; did you mean triplet? Known are con'),
    'data': (['--data', 'imagenet'], 'digits', 'imagenet'),
    'no size': (['--data', 'digits', '--size', '8'], '--size', 'digits'),
    'no depth of what is taken without a name': (['--depth', '2'], '--depth', '--data glyphs'),
}


@pytest.mark.parametrize('mistake', mistakes)
def test_a_mistake_is_one_line_and_status_2(mistake, tmp_path, dml):
    options, *words = mistakes[mistake]
    assert is_one_line(dml('compare', '--out', tmp_path/'out', *options), *words)
    assert not (tmp_path/'out').exists()


probe = f'''
import sys
from dml_nb.cli import main
try:
    main()
finally:
    print(*sorted({{*{heavy}}} & set(sys.modules)), file=sys.stderr)
'''
known_at_once = {
    'a file in place of the folder': (['compare', '--out', 'FILE'], '--out', 'FILE'),
    'a folder below a file': (['compare', '--out', 'FILE/below'], '--out', 'FILE/below'),
    'a file named runs': (['compare', '--out', 'TAKEN'], '--out', 'TAKEN', 'runs'),
    'no folder': (['compare', '--out', ''], '--out'),
    'no loss': (['compare', '--losses', ','], '--losses'),
    'missing folder': (
        ['compare', '--data', 'folder:/nowhere/at/all'], '--data', '/nowhere/at/all'),
    'missing pictures': (['train', './nowhere'], 'got ./nowhere', 'no such folder'),
    'missing folder below': (['train', 'no/where'], 'got no/where', 'no such folder'),
    'missing at home': (['train', '~/no-such-folder'], 'got ~/no-such-folder'),
    'nobody at home': (['train', '~nobody-here/photos'], 'got ~nobody-here/photos'),
    'missing table': (['train', 'photos.csv'], 'got photos.csv', 'no such file'),
    'missing table to compare': (['compare', '--data', 'photos.csv'], '--data: ', 'no such file'),
    'missing zip to measure': (['evaluate', 'MODEL', 'photos.zip'], 'got photos.zip'),
    'missing vectors to embed': (
        ['embed', 'MODEL', 'features:z.npz'], 'got features:z.npz', 'no such file'),
    'model without a network': (['embed', 'nowhere', 'photos'], 'got nowhere'),
    'model to index with': (['index', 'nowhere', 'MODEL'], 'got nowhere'),
    'share': (['train', 'digits', '--held-out', '1'], '--held-out: expected a finite number above 0 and be'),
    'rate': (['train', 'digits', '--lr', 'nan'], '--lr: expected a finite number above 0'),
    'no number': (['compare', '--seeds', 'many'], 'integer'),
    'too small': (['compare', '--epochs', '0'], '--epochs'),
    'unknown option': (['compare', '--lozzes', 'triplet'], '--lozzes', 'See: dml compare --help'),
    'unknown command': (['comprae'], 'comprae', 'See: dml --help'),
    'model that is none': (['evaluate', 'nowhere', 'photos'], 'got nowhere'),
    'folder to index': (['index', 'nowhere', 'photos'], 'got photos'),
    'index that is none': (['search', 'nowhere', 'photo.jpg'], 'got nowhere'),
    'a file of vectors below a file': (
        ['embed', 'nowhere', 'photos', '--out', 'FILE/z.npz'], '--out', 'FILE'),
    'nothing to browse': (['browse', 'nowhere'], 'got nowhere'),
    'a model of nobody': (['train', 'digits', '--out', '~nobody-here/x'], '~NAME: expected a user'),
    'an index of nobody': (['search', '~nobody-here/x', 'photo.jpg'], '~NAME: expected a user'),
}


@pytest.mark.parametrize('mistake', known_at_once)
def test_said_before_anything_heavy_is_imported(mistake, tmp_path):
    (tmp_path/'file').write_text('mine')
    (tmp_path/'taken').mkdir()
    (tmp_path/'taken'/'runs').write_text('mine')

    def filled(text):
        for name in ('FILE', 'TAKEN', 'MODEL'):
            text = text.replace(name, f'{tmp_path}/{name.lower()}')
        return text

    (tmp_path/'model').mkdir()
    (tmp_path/'model'/'embedder.json').write_text('{}')
    words, *said = known_at_once[mistake]
    makes = words[0] in ('compare', 'train', 'index') and '--out' not in words
    out = ['--out', f'{tmp_path}/out'] if makes else []
    run = subprocess.run(
        [sys.executable, '-c', probe, *map(filled, words), *out], capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=against_hanging)
    *lines, imported = run.stderr.splitlines()
    assert run.returncode == 2 and run.stdout == '' and len(lines) == 1, run.stderr
    assert all(filled(word) in lines[0] for word in said) and imported == ''
    for path in (tmp_path/'file', tmp_path/'taken'/'runs'):
        assert path.read_text() == 'mine'
    assert not (tmp_path/'out').exists()


COMMANDS = 'train evaluate embed index search duplicates browse export compare reproduce bench'.split()


@pytest.mark.parametrize('words, said', [
    (['--help'], 'compare'), (['--version'], dml_nb.__version__),
    *(([name, '--help'], f'Example: dml {name}') for name in COMMANDS)])
def test_help_imports_nothing_heavy(words, said):
    run = subprocess.run(
        [sys.executable, '-c', probe, *words], capture_output=True, text=True,
        timeout=against_hanging)
    assert run.returncode == 0 and said in run.stdout and run.stderr == '\n'


@pytest.mark.long
def test_commands_that_do_not_train_load_no_library_for_it(drawings, tmp_path):
    save_embedder(create_embedder('squeezenet1_1', size=32, seed=0), tmp_path/'model')
    picture = next(drawings.rglob('*.png'))
    for words in (['evaluate', 'model', drawings], ['index', 'model', drawings, '--out', 'index'],
                  ['search', 'index', picture]):
        run = subprocess.run([sys.executable, '-c', probe, *map(str, words)], cwd=tmp_path,
                             capture_output=True, text=True, timeout=against_hanging)
        assert run.returncode == 0 and run.stderr.splitlines()[-1] == 'numpy torch', run.stderr


shell = f"{shlex.quote(sys.executable)} -c 'from dml_nb.cli import main; main()'"


@pytest.mark.long
@pytest.mark.parametrize('words, unbuffered', [('--version', ''), ('--help', '1')])
@pytest.mark.parametrize('where, status, said', [
    ('>&-', 2, 'dml: standard output: expected an open file'),
    ('>/dev/full', 2, 'No space left on device'), ('>&- 2>&-', 2, ''), ('| true', 1, '')])
def test_output_that_cannot_be_written(where, status, said, words, unbuffered, monkeypatch):
    monkeypatch.setenv('PYTHONUNBUFFERED', unbuffered)
    run = subprocess.run(
        ['bash', '-c', f'set -o pipefail; {shell} {words} {where}'], capture_output=True, text=True,
        timeout=against_hanging)
    assert run.stdout == '' and run.returncode == status, run.stderr
    assert run.stderr.count('\n') == (1 if said else 0) and (said or '') in run.stderr


def test_a_paragraph_of_help_is_as_wide_as_the_terminal(dml, monkeypatch):
    monkeypatch.setattr('typer.rich_utils.MAX_WIDTH', 1000)
    monkeypatch.setenv('COLUMNS', '1000')
    assert 'is a picture\'s nearest neighbour of its own class (R@1)' in dml('train', '--help').stdout


wrong = {
    'share': (['--held-out', '2'], '--held-out: expected a finite number above 0 and below 1'),
    'rate': (['--lr', '-1'], '--lr: expected a finite number above 0'),
    'setting': (['--set', 'gamma=3'], '--set: ', 'temperature=0.1', 'got gamma=3'),
    'value': (['--set', 'temperature=two'], '--set: ', 'got temperature=two', 'above 0'),
    'name': (['--loss', 'circel'], 'dml: --loss: expected a known name, got circel; did you mean circle? Known are'),
    'body': (['--body', 'resnet17'], "got 'resnet17'; like it are resnet1", 'embedding.html'),
    'device': (['--device', 'gpu'], "device: expected cpu, cuda, cuda:1 or mps, got 'gpu'"),
    'augmentation': (['--augment', 'wild'], 'augment: expected', "got 'wild'"),
    'log': (['--log', 'tensorbord'], 'log: expected', "got 'tensorbord'"),
    'workers': (['--workers', '-1'], '--workers'),
    'frozen': (['--freeze', '1.5'], '--freeze'),
    'no file of losses': (['--loss', 'my_loses.py:Mine'], 'my_loses.py:Mine', 'there is no file'),
    'no loss in a file': (['--loss', f'{__file__}:Mine'], 'it has none'),
}


@pytest.mark.parametrize('mistake', wrong)
def test_an_option_is_judged_before_pictures_are_read(mistake, tmp_path, dml):
    options, *words = wrong[mistake]
    (tmp_path/'empty').mkdir()
    is_one_line(dml('train', tmp_path/'empty', '--out', tmp_path/'out', *options), *words)
    assert not (tmp_path/'out').exists()


@pytest.mark.parametrize('name', ['tensorboard', 'wandb'])
def test_a_log_that_is_not_installed_is_said_before_pictures_are_read(
        name, tmp_path, dml, monkeypatch):
    for module in [name, f'fastai.callback.{name}']:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, name, None)            # as where it is not installed
    (tmp_path/'empty').mkdir()
    run = dml('train', tmp_path/'empty', '--out', tmp_path/'out', '--log', name)
    is_one_line(run, f'log: expected {name} to be installed', f'; pip install {name}')
    assert not (tmp_path/'out').exists()


def test_without_a_terminal_each_epoch_is_a_line_and_nothing_else(drawings, tmp_path):
    "Also where a CI asks for colours, which makes rich believe in a terminal"
    words = map(str, train_words(drawings, tmp_path/'model', '--epochs', 3))
    run = subprocess.run(
        [sys.executable, '-c', 'from dml_nb.cli import main; main()', *words], capture_output=True,
        text=True, env=os.environ | dict(FORCE_COLOR='1'), timeout=against_hanging)
    assert run.returncode == 0, run.stderr
    begun, *epochs, best, where = run.stdout.splitlines()
    assert 'judge it' in begun and best.startswith('best after') and where.startswith('the model is')
    assert [line[:13] for line in epochs] == [f'epoch  {i} of 3' for i in (1, 2, 3)]
    assert not {'\r', '\x1b'} & set(run.stdout + run.stderr) and '━' not in run.stdout + run.stderr


def test_what_evaluate_measures_stands_on_the_card(drawings, tmp_path, dml):
    assert dml(*train_words(drawings, tmp_path/'model', '--epochs', 1)).returncode == 0
    card = tmp_path/'model'/'README.md'
    before = card.read_text(encoding='utf-8')
    words = ['evaluate', tmp_path/'model', drawings]
    for more in ([], ['--part', 'held-out'], []):
        assert dml(*words, *more).returncode == 0
    after = card.read_text(encoding='utf-8')
    command = shlex.join(['dml', *map(str, words)])
    assert after.replace('\n', ' ').count(f'    {command} ') == 2 and '| mrr |' not in before
    assert after.count('| mrr |') == 2 and f'    {command} --part held-out' in after
    card.write_text('mine')
    run = dml(*words)
    assert run.returncode == 0 and 'stays as it is' in run.stderr and card.read_text() == 'mine'


def test_folder_of_pictures(tmp_path, dml):
    from sklearn.datasets import load_digits
    raw = load_digits()
    for i, (image, y) in enumerate(zip(raw.images[:120], raw.target)):
        if y < 4:
            path = tmp_path/'data'/f'<{y}>'/f'{i}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 15).astype('uint8')).resize((20, 24)).save(path)
    options = [*small[:-1], '--turn', '--seeds', 1]         # what is turned must be square
    options += ['--data', f'folder:{tmp_path/"data"}', '--out', tmp_path/'out']
    assert is_one_line(dml(*options), 'square')
    (tmp_path/'data'/'<2>'/'broken.png').write_bytes(b'no picture')
    (tmp_path/'data'/'later').mkdir()
    run = dml(*options, '--size', 16, '--body', 'small_convnet')
    assert run.returncode == 0, run.stderr
    assert 'small_convnet from scratch, 16 × 16 pixels' in run.stdout
    empty, broken = run.stderr.splitlines()
    assert 'later first' in empty and 'broken.png' in broken
    assert results(tmp_path/'out')['data']['classes'] == 4


def test_broken_image_is_named(tmp_path, dml):
    for name in 'abcd':
        (tmp_path/'data'/name).mkdir(parents=True)
        for i in range(5):
            (tmp_path/'data'/name/f'{i}.png').write_bytes(b'no picture')
    run = dml(*small, '--data', f'folder:{tmp_path/"data"}', '--out', tmp_path/'out')
    assert run.returncode == 2 and not (tmp_path/'out'/'results.json').exists()
    broken, none_left = run.stderr.splitlines()
    assert '.png' in broken and 'expected a picture of each class' in none_left


@pytest.mark.parametrize('content', ['{"half": ', '[]', '{}', '{"recipe": {}}'])
def test_a_run_file_that_holds_no_run_is_named(content, whole, tmp_path, dml):
    (tmp_path/'runs').mkdir()
    for path in (whole/'runs').glob('*.json'):
        (tmp_path/'runs'/path.name).write_text(content)
    run = dml(*small, '--seeds', 2, '--out', tmp_path)
    assert is_one_line(run, tmp_path/'runs', '.json', 'delete the file', '--fresh')
    assert not (tmp_path/'results.json').exists()


@pytest.mark.parametrize('file', ['runs', 'results.json'])
def test_a_full_disk_names_the_file_and_leaves_no_part(file, whole, tmp_path, dml):
    (tmp_path/'runs').mkdir()
    room = 2_000                                            # bytes: less than a run
    if file == 'results.json':                              # its runs are there already
        for path in (whole/'runs').glob('*.json'):
            (tmp_path/'runs'/path.name).write_bytes(path.read_bytes())
        room = (whole/'results.json').stat().st_size // 2
    (tmp_path/'report.html').write_text('an earlier one')
    before, (soft, hard) = changed_at(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))     # a file can grow no further
    try:
        run = dml(*small, '--seeds', 2, '--out', tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    lines = run.stderr.splitlines()
    assert run.returncode == 2 and len(lines) == 1 and str(tmp_path/file) in lines[0], run.stderr
    assert parts(tmp_path) == [] and changed_at(tmp_path) == before
    assert not (tmp_path/'results.json').exists()
    assert (tmp_path/'report.html').read_text() == 'an earlier one'


@pytest.fixture(scope='module')
def drawings(tmp_path_factory):
    "A folder as people have them: odd names, several sizes, one file that is no picture"
    root = tmp_path_factory.mktemp('drawings')/'my "drawings" né'
    for i in range(160):
        place = root/f'class {i % 8}, better'
        place.mkdir(parents=True, exist_ok=True)
        Image.new('L', (20 + i % 5, 24), 20 * (i % 8) + i % 7).save(place/f'#{i} %20 é.png')
    (root/'class 1, better'/'broken.jpg').write_bytes(b'no picture')
    return root


def train_words(drawings, out, *more):
    return ['train', drawings, '--out', out, '--body', 'small_convnet', '--size', 16, '--epochs', 6,
            '--patience', 9, *more]


typed = {                   # each parameter of each command, at a value that is not its default
    'train': 'digits --out out --loss proxy_anchor --set alpha=16 --body lenet --weights none '
             '--dim 7 --size 20 --grey --depth 3 --column label=kind --images x --group folder '
             '--multi-label , --levels --level genus --coarse 0.3 '
             '--epochs 6 --patience 2 --classes 5 --per-class 3 '
             '--lr 0.02 --held-out 0.3 --seed 4 --device cpu --workers 2 --augment none --freeze 3 '
             '--log wandb --fresh --json',
    'evaluate': 'model photos --gallery others --part held-out --classes 2 --depth 4 '
                '--column label=kind --images x --group folder --false-accepts 0.3 '
                '--multi-label , --levels --level genus --json',
    'embed': 'model photos --out new/z.npz --depth 4 --column label=kind --images x '
             '--multi-label , --json',
    'index': 'model photos --out out --kind hnsw --fresh --add --remove --depth 4 '
             '--column label=kind --images x --multi-label , --levels --level genus --json',
    'search': 'index a.png b.png -k 3 --expand 2 --rerank --least .4 --label wren --html like.html --json',
    'duplicates': 'photos --out copies.csv --html copies.html --least .9 --depth 4 '
                  '--column label=kind --images x --json',
    'browse': 'index --other older --port 1234',
    'export': 'index --onnx a.onnx --pictures x --parquet b.parquet --json',
    'compare': '--data folder:photos --losses cit,triplet --seeds 2 --epochs 5 --out out --turn '
               '--body resnet18 --weights DEFAULT --size 9 --depth 2 --threads 3 --fresh --accept-other-code',
    'reproduce': '003/figure5 --scale medium --out out --workers 2 --json --accept-other-code',
    'bench': 'losses --out out --quick --threads 2 --json',
}


def test_every_option_is_tried():
    "One that is new has to be typed above and looked for below"
    commands = get_command(app).commands
    assert set(commands) == set(typed) == set(COMMANDS)
    for name, words in typed.items():
        given = commands[name].make_context(name, shlex.split(words)).params
        assert given
        for option in commands[name].params:
            assert given[option.name] != option.default, f'dml {name}: {option.name}'


@pytest.fixture
def pressed(dml, tmp_path, monkeypatch):
    "A command of the table, in an empty folder, with or without some of its words"
    def call(name, *without):
        return dml(name, *(word for word in shlex.split(typed[name]) if word not in without))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choices, 'check_log', lambda log: None)     # of what is not installed
    return call


@pytest.fixture
def arriving(monkeypatch):
    "What a function is given, by name, which in its place only answers"
    def listen(place, name, answer=None):
        def instead(*given, **named):
            seen.clear()
            seen.update(signature.bind(*given, **named).arguments)
            return answer

        seen, signature = {}, inspect.signature(getattr(place, name))
        monkeypatch.setattr(place, name, instead)
        return seen

    return listen


@pytest.fixture(scope='module')
def shades():
    "Four classes of six grey pictures, alike within each, two classes of them for training"
    draw = np.random.default_rng(0)
    labels = np.arange(24) % 4
    pixels = 40 * labels[:, None, None] + draw.integers(0, 60, (24, 8, 12))
    split = np.where(labels < 2, 'train', 'rest')
    return data.ImageSet(pixels.astype('uint8'), labels, list('abcd'), split=split, name='shades')


@pytest.fixture
def model(tmp_path):
    "Of grey pictures that are higher than wide and are padded: nothing as by default"
    made = create_embedder('small_convnet', 4, 1, (8, 12), seed=0, fit='pad')
    save_embedder(made, tmp_path/'model', depth=3)
    (tmp_path/'photos').mkdir()
    return made


def ruled(depth, **more):
    "What was typed of the classes"
    return dict(depth=depth, columns={'label': 'kind'}, images='x') | more


reached = {'epoch': 1, 'loss': .5, 'recall@1': .75, 'map@r': .5}


def test_train_passes_every_option_on(pressed, arriving, shades, tmp_path):
    record = dict(best=reached, before=reached, curve=[reached])
    reading = arriving(pictures, 'load_pictures', shades)
    training = arriving(everyday, 'train_embedder', record)
    structure = '--multi-label , --levels --level genus'.split()     # no proxies with these
    refused = pressed('train')
    assert refused.returncode == 2 and 'make one for each' in refused.stderr
    logging = arriving(choices, 'check_log')
    assert json.loads(pressed('train', *structure).stdout) == record
    assert logging == dict(log='wandb')
    reading.pop('tell')(1, 24)
    assert reading.pop('kept').folder.resolve() == tmp_path/'out'/'pixels'
    assert reading == dict(data='digits', size=20, mode='L', rule=ruled(3), group='folder')
    loss, tell = training['loss'](5, 7), training['tell']
    assert loss.alpha == 16 and loss.weight.shape == (5, 7)
    assert tell.quiet and tell.bar.console.stderr
    options = dict(body='lenet', weights='none', dim=7, epochs=6, patience=2, classes=5,
                   per_class=3, lr=.02, held_out=.3, seed=4, fresh=True, device='cpu', workers=2,
                   augment='none', freeze=3, log='wandb', coarse=.3,
                   command='dml train ' + typed['train'].replace(f"{' '.join(structure)} ", ''))
    wanted = dict(options, images=shades, out=training['out'], loss=training['loss'], tell=tell)
    assert training == wanted and training['out'].resolve() == tmp_path/'out'
    said = pressed('train', '--json', '--fresh', '--grey', *structure).stdout
    assert not training['fresh'] and not training['tell'].quiet and reading['mode'] is None
    assert not training['tell'].bar.console.stderr
    assert 'stopped after epoch 1: no better result for 2' in said
    assert said.endswith('the model is in out; next: dml evaluate out digits --part held-out\n')


def test_evaluate_passes_every_option_on(pressed, arriving, shades, model, tmp_path):
    (tmp_path/'others').mkdir()
    judges = shades.subset(shades.labels != 1)
    reading = arriving(pictures, 'load_pictures', shades)
    asking = arriving(pictures, 'held_back_of', judges)
    adding = arriving(card, 'add_evaluation')
    found = json.loads(pressed('evaluate').stdout)
    reading.pop('tell')(1, 24)
    assert reading.pop('kept').folder == Path('model/pixels')
    assert reading == dict(data='others', size=[8, 12], fit='pad', mode='L',
                           rule=ruled(4, multi_label=',', levels='genus'),
                           on_error='later', group='folder')
    assert asking == dict(out='model', images=shades)
    assert (found['part'], found['pictures'], len(found['worst_classes'])) == ('held-out', 18, 2)
    assert found['threshold']['false_accepts'] == .3
    assert load_embedder(tmp_path/'model').facts == dict(depth=3, threshold=found['threshold'])
    assert load_embedder(tmp_path/'model').sha256() == model.sha256()
    kept = json.loads(json.dumps(adding.pop('facts')))
    assert {name: found[name] for name in kept} == kept
    assert adding == dict(out=Path('model'), command=f"dml evaluate {typed['evaluate']}")
    text = pressed('evaluate', '--json', '--depth', '4').stdout
    assert reading['rule']['depth'] == 3                            # as the model was trained
    assert text.startswith('shades, held-out: 18 pictures of 3 classes, searched in shades: 24 '
                           'pictures of 4 classes\n')
    least_found = text.partition('least found (MAP@R in %): ')[2].splitlines()[0]
    assert len(least_found.split(',')) == 2
    text = pressed('evaluate', '--json', '--gallery', 'others').stdout
    reading.pop('tell'), reading.pop('kept')
    assert reading == dict(data='photos', size=[8, 12], fit='pad', mode='L',
                           rule=ruled(4, multi_label=',', levels='genus'),
                           on_error='skip', group='folder')
    assert text.startswith('shades, held-out: 18 pictures of 3 classes\n')


@pytest.mark.parametrize('part, count', [('train', 12), ('rest', 12), ('all', 24)])
def test_a_part_to_measure_on(part, count, dml, arriving, shades, model, tmp_path):
    arriving(pictures, 'load_pictures', shades)
    words = [tmp_path/'model', tmp_path/'photos', '--part', part, '--json']
    found = json.loads(dml('evaluate', *words).stdout)
    assert (found['part'], found['pictures']) == (part, count)


@pytest.mark.parametrize('labels', [[3], [3, -1], [-1]])
def test_one_class_is_too_few_to_evaluate(labels, dml, arriving, shades, model, tmp_path):
    few = data.ImageSet(shades.source, np.resize(labels, 24), list('abcd'))
    arriving(pictures, 'load_pictures', few)
    said = f'24 pictures of {int(3 in labels)} classes'
    assert is_one_line(dml('evaluate', tmp_path/'model', tmp_path/'photos'), 'or a --gallery', said)


def test_embed_passes_every_option_on(pressed, arriving, shades, model, tmp_path):
    reading = arriving(pictures, 'load_pictures', shades)
    found = json.loads(pressed('embed').stdout)
    reading.pop('tell')(1, 24)
    assert reading.pop('kept').folder == Path('model/pixels')
    assert reading == dict(data='photos', size=[8, 12], fit='pad', mode='L',
                           rule=ruled(4, multi_label=','),
                           on_error='later')
    assert found == dict(file='new/z.npz', pictures=24, dim=4)
    written = np.load(tmp_path/'new'/'z.npz')
    assert np.array_equal(written['features'], model.embed(shades, progress=False).numpy())
    assert written['labels'].tolist() == list('abcd') * 6
    assert '24 embeddings of 4 numbers are in new/z.npz' in pressed('embed', '--json').stdout


def test_index_passes_every_option_on(pressed, arriving, model, tmp_path):
    answer = dict(root='photos', pictures=9, new=1, changed=2, gone=3, kept=6,
                  first='photos/a b.png', skipped={'x.png': 'x.png is none'})
    making = arriving(folders, 'index_folder', answer)
    without = '--add', '--remove'
    run = pressed('index', *without)
    assert json.loads(run.stdout) == dict(answer, index='out')
    assert run.stderr == 'dml: left out x.png is none\n'
    making.pop('tell')(3, 9)
    embedder = making.pop('embedder')
    assert (embedder.size, embedder.fit, embedder.dim) == ([8, 12], 'pad', 4)
    assert making.pop('out').resolve() == tmp_path/'out'
    assert making.pop('kept').folder == Path('model/pixels')
    assert making == dict(folder='photos', kind='hnsw', fresh=True, **ruled(4, multi_label=',',
                                                                           levels='genus'))
    text = pressed('index', '--json', *without).stdout
    said = '9 pictures are in out (1 new, 2 changed, 3 gone, 6 kept), 1 left out'
    assert text == f"{said}; next: dml search out 'photos/a b.png'\n"


def test_export_passes_every_option_on(pressed, dml, arriving, model, index_folders, tmp_path):
    made = create_embedder('small_convnet', 4, 1, 12, seed=0)
    opened = arriving(folders, 'open_search', (None, made, None))
    checked = dict(checked=dict(pictures=7, largest_difference=2e-7))
    network = arriving(export, 'export_onnx', checked)
    vectors = arriving(export, 'export_parquet', dict(rows=9, dim=4))
    is_one_line(pressed('export'), '--pictures: expected a folder or a file, got x')
    (tmp_path/'x').mkdir()
    found = json.loads(pressed('export').stdout)
    assert found == dict(onnx=checked, parquet=dict(rows=9, dim=4))
    assert network == dict(embedder=made, path='a.onnx', pictures='x') and opened
    assert vectors == dict(index='index', path='b.parquet')
    text = pressed('export', '--json').stdout.splitlines()
    assert text == ['the network is in a.onnx; on 7 pictures it differs from PyTorch by 2e-07 at most',
                    '9 vectors of 4 numbers are in b.parquet']
    assert dml('export', 'model', '--onnx', 'a.onnx').returncode == 0
    assert network['embedder'].size == [8, 12]
    is_one_line(dml('export', 'model', '--parquet', 'b.parquet'), 'no index in it')
    is_one_line(dml('export', 'x', '--onnx', 'a.onnx'), 'expected a folder made by dml train')
    is_one_line(dml('export', 'model'), '--onnx, --parquet: expected a file to write, got none')
    is_one_line(dml('export', 'index', '--parquet', 'b.csv'), 'ends in .parquet, got b.csv')


@pytest.mark.parametrize('words', [[], ['--body', 'resnet18'], ['--weights', 'DEFAULT']])
def test_weights_that_cannot_be_had_are_said_before_a_picture_is_read(
        dml, words, tmp_path, monkeypatch):
    def download(*args, **kwargs):
        raise OSError('no network')

    for i in range(4):
        (tmp_path/'photos'/str(i)).mkdir(parents=True)
        (tmp_path/'photos'/str(i)/'1.png').write_bytes(b'never read')
    monkeypatch.setenv('DML_NB_DATA', str(tmp_path))
    monkeypatch.setattr('torchvision.models._api.load_state_dict_from_url', download)
    words = ['train', tmp_path/'photos', '--out', tmp_path/'out', *words]
    is_one_line(dml(*words), 'no network', '--weights FILE', '--weights none (weights=None)')
    assert not (tmp_path/'out').exists()
    assert 'pictures could not be read' in dml(*words[:4], '--weights', 'none').stderr


def test_adding_and_removing_pass_every_option_on(dml, arriving, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ['index', 'model', 'photos', '--out', 'out', '--json']
    is_one_line(dml(*words, '--add'), 'no index in it')
    (tmp_path/'out').mkdir()
    (tmp_path/'out'/'index.json').write_text('{}')
    answer = dict(pictures=9, gone=1, kept=9, first='a.png')
    making = arriving(folders, 'add_pictures', answer)
    rule = '--depth 4 --column label=kind --images x --multi-label , --level genus'.split()
    assert json.loads(dml(*words, *rule, '--add').stdout) == answer | dict(index='out')
    for name in ('embedder', 'tell', 'kept'):
        assert making.pop(name)
    assert making == dict(data='photos', out=making['out'],
                          **ruled(4, multi_label=',', levels='genus'))
    taking = arriving(folders, 'remove_pictures', answer)
    text = dml(*words[:-1], '--remove').stdout
    assert text == '9 pictures are in out (1 gone, 9 kept); next: dml search out a.png\n'
    assert taking == dict(data='photos', out=making['out'])
    for more in (['--add', '--remove'], ['--add', '--kind', 'flat'], ['--remove', '--fresh']):
        is_one_line(dml(*words, *more), 'expected one of them')


@pytest.fixture
def index_folders(tmp_path):
    "Two that look like indexes from outside"
    for name in ('index', 'older'):
        (tmp_path/name).mkdir()
        (tmp_path/name/'index.json').write_text('{}')


def test_search_passes_every_option_on(pressed, arriving, index_folders, tmp_path):
    for name in 'ab':
        (tmp_path/f'{name}.png').write_bytes(b'')
    found = [dict(path='c.png', label='', similarity=.5)]
    answers = [dict(query=f'{name}.png', found=found) for name in 'ab']
    searching = arriving(folders, 'search_folder', answers)
    writing = arriving(folders, 'search_page')
    assert json.loads(pressed('search').stdout) == answers
    assert searching == dict(out='index', images=['a.png', 'b.png'], k=3, expand=2, rerank=True,
                             least=.4, label='wren')
    assert writing.pop('path').resolve() == tmp_path/'like.html' and writing == {'answers': answers}
    text = pressed('search', '--json').stdout.splitlines()
    line = '   1  0.500  c.png'
    assert text == ['a.png', line, 'b.png', line, 'wrote like.html']


def test_duplicates_passes_every_option_on(pressed, arriving, tmp_path):
    (tmp_path/'photos').mkdir()
    group = dict(files=['b.png', 'a.png'], likeness=.95)
    answer = dict(root='photos', pictures=9, least=.9, groups=[group], rows=[],
                  skipped={'x.png': 'x.png is none'})
    finding = arriving(copies, 'find_duplicates', answer)
    writing, showing = (arriving(copies, f'duplicates_{what}') for what in ('table', 'page'))
    run = pressed('duplicates')
    assert json.loads(run.stdout) == {name: answer[name] for name in answer if name != 'rows'}
    assert run.stderr == 'dml: left out x.png is none\n'
    finding.pop('tell')(3, 9)
    assert finding == dict(data='photos', least=.9, rule=ruled(4))
    assert writing == dict(found=answer, path=Path('copies.csv'), columns=ruled(4)['columns'])
    assert showing == dict(found=answer, path=Path('copies.html'))
    assert pressed('duplicates', '--json').stdout.splitlines() == [
        'photos: 2 of 9 pictures have near-copies, in 1 group, by a likeness of 0.900 or more',
        '   2  0.950  b.png, a.png', 'wrote copies.html',
        'wrote copies.csv; next: dml evaluate MODEL copies.csv --images photos --group group']


def test_browse_passes_every_option_on(pressed, arriving, index_folders, capsys):
    serving = arriving(pages, 'browse')
    assert pressed('browse').returncode == 0
    serving.pop('ready')('http://here')
    assert serving == dict(out='index', other='older', port=1234)
    assert capsys.readouterr().out == 'http://here shows index; Ctrl-C ends it\n'


def test_compare_passes_every_option_on(pressed, monkeypatch, arriving, shades, tmp_path):
    def run_all(recipes, images, folder, fresh, progress):
        seen.extend(recipes)
        raise ValueError(f'fresh is {fresh}, folder is {folder}')

    seen = []
    (tmp_path/'photos').mkdir()
    reading = arriving(data, 'load_data', shades)
    monkeypatch.setattr(compare, 'run_all', run_all)
    accepting = arriving(store, 'other_code', nullcontext(store.OtherCode(False)))
    less = pressed('compare', '--fresh', '--accept-other-code')
    assert is_one_line(less, 'fresh is False', 'folder is out/runs')
    assert accepting == dict(accepted=False)
    assert is_one_line(pressed('compare'), 'fresh is True') and accepting == dict(accepted=True)
    reading['options'].pop('tell')(1, 24)
    options = {'size': 9, 'on_error': 'skip', 'depth': 2}
    assert reading == dict(name_or_path='folder:photos', options=options)
    for recipe in seen:
        assert (recipe.threads, recipe.epochs, recipe.data) == (3, 5, 'folder:photos')
        assert (recipe.size, recipe.depth) == (9, 2) and recipe.turned == (recipe.split == 'class')
    assert {(recipe.arch, recipe.weights, recipe.lr) for recipe in seen} == {
        ('resnet18', 'DEFAULT', 3e-4)}
    assert {(recipe.loss, recipe.seed) for recipe in seen} == {
        ('cit', 0), ('cit', 1), ('triplet', 0), ('triplet', 1)}


def test_reproduce_passes_every_option_on(pressed, arriving, tmp_path):
    result = dict(scale='medium', rows=[], trainings=2, seconds=3.)
    measuring = arriving(Exhibit, 'reproduce', result)
    other = store.OtherCode(False)
    accepting = arriving(store, 'other_code', nullcontext(other))
    found = json.loads(pressed('reproduce').stdout)
    assert accepting == dict(accepted=True)
    assert [each['key'] for each in found] == ['003/figure5a', '003/figure5b']
    assert measuring.pop('self').key == '003/figure5b' and found[-1].items() >= result.items()
    assert measuring.pop('folder').resolve() == tmp_path/'out'/'runs'
    assert measuring == dict(scale='medium', workers=2, progress=False)
    assert '2 trainings, 3 s of training.' in pressed('reproduce', '--json').stdout
    other.passed_over.add('a.json')
    assert 'trained again: 1 kept run of other code' in pressed('reproduce', '--json').stdout
    result['trainings'] = 0                                 # counted, or trained by its own code
    assert 'Measured in 3 s.' in pressed('reproduce', '--json').stdout


def test_bench_passes_every_option_on(pressed, arriving, tmp_path):
    rows = [dict(group='losses', name='triplet', who='a peer')]
    timing = arriving(benchmark, 'bench', dict(rows=rows, path='out/here.json'))
    assert json.loads(pressed('bench').stdout) == rows
    assert timing.pop('folder').resolve() == tmp_path/'out'
    timing.pop('progress')('triplet, B = 8')
    assert timing == dict(what='losses', quick=True, threads=2)
    text = pressed('bench', '--json').stdout
    assert 'absent' in text and text.endswith(', 2 threads; wrote out/here.json\n')


def default_interrupt():
    "Ctrl-C as in a terminal, also where the tests run in the background of a shell, which ignores it"
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.long
def test_train_goes_on_after_ctrl_c(drawings, tmp_path):
    more = '--epochs', 20, '--patience', 20             # that it cannot end before the signal
    words = list(map(str, train_words(drawings, tmp_path/'model', *more)))
    running = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, text=True,
                               preexec_fn=default_interrupt)
    for line in running.stdout:
        if line.startswith('epoch'):
            running.send_signal(signal.SIGINT)
            break
    _, said = running.communicate(timeout=against_hanging)
    assert running.returncode == 130 and 'Traceback' not in said
    goes_on = 'goes on' if finished_folders(tmp_path/'model'/'checkpoints') else 'begins anew'
    assert f'the same command {goes_on}' in said.splitlines()[-1]
    best = json.loads((tmp_path/'model'/'embedder'/'embedder.json').read_text())['facts']['reached']
    assert f"epoch {best['epoch']}, is kept in {tmp_path}/model/embedder" in said.splitlines()[-1]
    assert (tmp_path/'model'/'embedder'/'embedder.json').is_file()
    again = in_a_process(*words, '--json')
    whole = in_a_process(*train_words(drawings, tmp_path/'whole', *more), '--json')
    curves = [json.loads(run.stdout)['curve'] for run in (again, whole)]
    assert curves[0] == curves[1] and len(curves[0]) == 20


@pytest.mark.parametrize('steps, kept', [(3, 'nothing is kept yet'), (27, 'its steps are kept')])
def test_ctrl_c_in_the_first_epoch(drawings, tmp_path, dml, monkeypatch, steps, kept):
    "It says what is kept, and no more"
    def stop(teller, what, facts):
        seen.append(what)
        if seen.count('batch') == steps:
            raise KeyboardInterrupt

    seen, words = [], train_words(drawings, tmp_path, '--classes', 2, '--per-class', 2)
    monkeypatch.setattr('dml_nb.cli.train.Teller.__call__', stop)
    said = dml(*words)
    assert said.returncode == 130 and kept in said.stderr.splitlines()[-1]
    assert not (tmp_path/'embedder').exists() and 'epoch' not in seen
    assert ('and the same command goes on' in said.stderr) == (steps > 25)
    seen.clear()
    afresh = dml(*words, '--fresh')
    assert ('without --fresh goes on' in afresh.stderr) == (steps > 25)


def test_ctrl_c_before_training(tmp_path, dml, monkeypatch):
    def stop(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(pictures, 'load_pictures', stop)
    is_one_line(dml('train', 'digits', '--out', tmp_path), 'before training began', status=130)


def test_ctrl_c_says_which_comparison_uses_the_runs(tmp_path, dml, monkeypatch):
    def stop(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(data, 'load_data', stop)
    (tmp_path/'runs').mkdir()
    (tmp_path/'runs'/'a.json').write_text('{}')
    words = 'compare', '--out', tmp_path
    is_one_line(dml(*words), '1 finished run in', 'the same command uses', status=130)
    is_one_line(dml(*words, '--fresh'), 'the same command without --fresh uses', status=130)


def test_ctrl_c_says_what_the_folder_holds_now(model, drawings, tmp_path, dml, monkeypatch):
    "Before the new index, in the moment after it, and where there was none"
    def stops(patched, place, name, when):
        whole = getattr(place, name)

        def stopping(*given, **named):
            if when == 'after':
                whole(*given, **named)
            raise KeyboardInterrupt

        patched.setattr(place, name, stopping)

    words = ['index', tmp_path/'model', drawings, '--out', tmp_path/'out']
    arrays = ['embed', tmp_path/'model', drawings, '--depth', 1, '--out', tmp_path/'z.npz']
    for command, what, when, said in [
            (words, 'index', 'before', 'there is no index in'),
            (words, 'index', 'after', 'is new, and whole'),
            (words, 'index', 'before', 'is the same as before'),
            (arrays, 'file', 'before', 'there is no file'),
            (arrays, 'file', 'after', 'is new, and whole'),
            (arrays, 'file', 'before', 'is the same as before')]:
        with monkeypatch.context() as patched:
            place = folders.EmbeddingIndex if what == 'index' else storage
            stops(patched, place, 'save' if what == 'index' else 'write_atomically', when)
            run = dml(*command)
        assert run.returncode == 130 and said in run.stderr.splitlines()[-1], run.stderr
    assert len(pages.Collection(tmp_path/'out')) == 160


def test_ctrl_c_after_a_training_says_that_it_is_finished(drawings, tmp_path, dml, monkeypatch):
    def stopping(*given, **named):
        everyday_train(*given, **named)
        raise KeyboardInterrupt

    everyday_train = everyday.train_embedder
    monkeypatch.setattr(everyday, 'train_embedder', stopping)
    said = dml(*train_words(drawings, tmp_path/'model', '--epochs', 1))
    assert said.returncode == 130
    assert said.stderr.splitlines()[-1].endswith(f'{tmp_path}/model holds a finished training')


@pytest.mark.parametrize('name', ['train', 'index', 'embed', 'compare', 'reproduce', 'bench'])
def test_each_command_that_writes_refuses_a_second_one(
        name, pressed, arriving, shades, model, tmp_path, monkeypatch):
    "The other one is a thread here, which a lock does not tell from a process"
    def begin(place, name):
        monkeypatch.setattr(place, name, lambda *given, **named: pytest.fail('it began'))

    for place, function in ((everyday, 'train_embedder'), (folders, 'embed_readable'),
                            (embedding, '_rows_of'), (compare, 'run_all'),
                            (Exhibit, 'reproduce'), (benchmark, 'bench')):
        begin(place, function)
    arriving(data, 'load_data', shades)
    Image.new('L', (12, 8)).save(tmp_path/'photos'/'1.png')
    held, done = threading.Event(), threading.Event()
    no_others = dict(train=('--multi-label', ',', '--levels', '--level', 'genus'),
                     index=('--add', '--remove'))       # what does not go with the other words

    def hold():
        with one_writer(*(('new', 'z.npz') if name == 'embed' else ('out',))):
            held.set()
            done.wait(against_hanging)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(against_hanging)
    try:
        said = pressed(name, *no_others.get(name, ()))
    finally:
        done.set()
        other.join()
    assert is_one_line(said, 'expected no other writer', f'process {os.getpid()} (')


def test_more_epochs_are_refused_with_what_to_type_instead(drawings, tmp_path, dml):
    words = train_words(drawings, tmp_path/'model')
    assert dml(*words, '--epochs', 1).returncode == 0
    refused = dml(*words, '--epochs', 2)
    assert refused.returncode == 2 and 'none can be added' in refused.stderr
    new = refused.stderr.partition('The same with ')[2].split(' (')[0].split()
    assert new == ['--out', f'{tmp_path}/model-new']
    assert dml(*words, '--epochs', 2, *new).returncode == 0


def test_a_broken_picture_is_named_with_the_reason(drawings, tmp_path, dml):
    said = dml(*train_words(drawings, tmp_path, '--epochs', 1)).stderr
    assert 'broken.jpg: expected a picture' in said and '.skipped' not in said


own_losses = '''from dml_nb.losses import Contrastive, ProxyAnchor


class Mine(Contrastive):
    "On pairs"


class Anchors(ProxyAnchor):
    "With rows of its own, which must know how many classes there are"
'''


@pytest.mark.long
def test_a_loss_in_a_file_of_your_own(drawings, tmp_path, dml):
    file = tmp_path/'my losses.py'
    file.write_text(own_losses)
    out, words = tmp_path/'out', [*small[:-1], '--losses', f'{file}:Mine', '--seeds', 1]
    first = dml(*words, '--out', out)
    assert first.returncode == 0, first.stderr
    assert results(out)['rows'][-1]['loss'] == f'{file}:Mine'
    kept = changed_at(out)
    dml(*words, '--out', out)
    assert changed_at(out) == kept
    training = train_words(drawings, tmp_path/'model', '--epochs', 1, '--loss', f'{file}:Anchors')
    assert dml(*training, '--set', 'alpha=16').returncode == 0
    assert dml(*training, '--set', 'alpha=16').returncode == 0
    file.write_text(own_losses.replace('On pairs', 'As before'))
    dml(*words, '--out', out)
    later = changed_at(out)
    assert len(later) == 2 * len(kept) and later.items() >= kept.items()
    changed = dml(*training, '--set', 'alpha=16')
    assert changed.returncode == 2 and 'with loss ' in changed.stderr
    file.write_text('def half:')
    is_one_line(dml(*words, '--out', out), 'my losses.py', 'SyntaxError')


failing_losses = '''import sys

from dml_nb.losses import Contrastive


class Early(Contrastive):
    def __init__(self):
        raise KeyError('a key')


class Late(Contrastive):
    def forward(self, *given):
        return given[99]


class Leaves(Contrastive):
    def forward(self, *given):
        sys.exit(3)


class Nothing(Contrastive):
    def forward(self, *given):
        pass
'''


@pytest.mark.parametrize('name, error', [
    ('Early', "KeyError: 'a key'"), ('Late', 'IndexError: tuple index out of range'),
    ('Leaves', 'SystemExit: 3'), ('Nothing', 'Error: ')])
def test_a_loss_of_your_own_that_fails_is_named(name, error, drawings, tmp_path, dml):
    file = tmp_path/'failing.py'
    file.write_text(failing_losses)
    words = train_words(drawings, tmp_path/'model', '--loss', f'{file}:{name}')
    lines = dml(*words).stderr.splitlines()
    assert f'{file}:{name} failed, ' in lines[-1] and error in lines[-1]
    assert not [line for line in lines if not line.startswith('dml: ')]
    is_one_line(dml(*small[:-1], '--losses', f'{file}:{name}', '--seeds', 1, '--out', tmp_path/'o'),
                f'{file}:{name} failed, ', error)


def test_an_own_loss_may_stop_no_command(tmp_path, dml):
    (tmp_path/'leaves.py').write_text('raise SystemExit(3)')
    for words in (['train', 'digits', '--loss'], ['compare', '--losses']):
        is_one_line(dml(*words, f'{tmp_path}/leaves.py:Mine', '--out', tmp_path/'out'),
                    'leaves.py; SystemExit: 3')


def test_output_inside_of_the_pictures_holds_no_pictures(drawings, tmp_path, dml):
    photos = tmp_path/'photos'
    shutil.copytree(drawings, photos)
    words = train_words(photos, photos/'model', '--epochs', 1)
    assert dml(*words).returncode == 0
    index = ['index', photos/'model', photos, '--out', photos/'ix', '--json']
    for _ in range(2):
        assert json.loads(dml(*index).stdout)['pictures'] == 160
        client = TestClient(pages.create_app(pages.Collection(photos/'ix')))
        assert client.get('/thumb/7').status_code == 200
        assert dml('search', photos/'ix', next(photos.rglob('#0*.png')), '--html',
                   photos/'class 0, better'/'like.html').returncode == 0
        measured = dml('evaluate', photos/'model', photos, '--json')
        assert json.loads(measured.stdout)['pictures'] == 160
        assert '2 folders hold no pictures and will not be read, ix first' in measured.stderr


def test_a_class_may_be_called_minus_one(tmp_path, dml, arriving, shades, model):
    images = data.ImageSet(shades.source, np.where(shades.labels == 3, -1, shades.labels),
                           ['-1', 'b', 'c'])
    arriving(pictures, 'load_pictures', images)
    words = tmp_path/'model', tmp_path/'photos', '--out', tmp_path/'z.npz'
    assert dml('embed', *words).returncode == 0
    again = data.load_data(tmp_path/'z.npz')
    assert again.classes == images.classes and again.labels.tolist() == images.labels.tolist()


def test_from_a_folder_to_a_search(dml, drawings, tmp_path):
    made = dml(*train_words(drawings, tmp_path/'model', '--epochs', 1, '--loss', 'circle',
                            '--set', 'gamma=20'))
    assert made.returncode == 0 and 'broken.jpg' in made.stderr
    following = shlex.split(made.stdout.splitlines()[-1].partition('next: ')[2])
    assert following == ['dml', 'index', str(tmp_path/'model'), str(drawings)]
    measured = json.loads(dml('evaluate', tmp_path/'model', drawings, '--json').stdout)
    assert measured['pictures'] == 160 and 0 <= measured['measures']['map@r'] <= 1
    indexed = json.loads(dml('index', tmp_path/'model', drawings, '--out', tmp_path/'index',
                             '--json').stdout)
    assert indexed['pictures'] == 160 and len(indexed['skipped']) == 1
    query = next(drawings.rglob('#0*.png'))
    answer, = json.loads(dml('search', tmp_path/'index', query, '-k', 3, '--json').stdout)
    assert len(answer['found']) == 3 and str(query) not in [f['path'] for f in answer['found']]
    is_one_line(dml('search', tmp_path/'index', drawings), 'that is a folder')
    before = query.read_bytes()
    refused = dml('search', tmp_path/'index', query, '--html', query)
    assert is_one_line(refused, '--html: expected a new file') and query.read_bytes() == before
    before = (tmp_path/'index'/'index.json').read_bytes()
    is_one_line(dml('index', tmp_path/'model', drawings/'nowhere', '--out', tmp_path/'index'),
                'nowhere')
    changed = (tmp_path/'index'/'index.json').read_bytes()
    assert changed == before
    arrays = dml('embed', tmp_path/'model', drawings, '--out', tmp_path/'z.npz')
    assert arrays.returncode == 0
    of_vectors = dml('train', f"features:{tmp_path/'z.npz'}", '--out', tmp_path/'head',
                     '--epochs', 1)
    assert of_vectors.returncode == 0 and 'a head on them' in of_vectors.stdout
    before = (tmp_path/'z.npz').read_bytes()
    refused = dml('embed', tmp_path/'head', f"features:{tmp_path/'z.npz'}", '--out',
                  tmp_path/'head'/'..'/'z.npz')
    assert is_one_line(refused, '--out: expected another file than the data')
    assert (tmp_path/'z.npz').read_bytes() == before


@pytest.mark.parametrize('fit', ['cut', 'squash', 'pad'])
def test_pictures_are_brought_to_size_as_the_model_was_made_for(fit, drawings, tmp_path, dml):
    model = create_embedder('small_convnet', 4, 1, (16, 16), seed=0, fit=fit)
    save_embedder(model, tmp_path/'model')
    done = dml('embed', tmp_path/'model', drawings, '--out', tmp_path/'z.npz')
    assert done.returncode == 0, done.stderr
    images = pictures.load_pictures(drawings, (16, 16), fit, 'L')
    wanted = model.embed(images, progress=False).numpy()
    assert np.array_equal(np.load(tmp_path/'z.npz')['features'], wanted)


def test_the_depth_of_the_training_is_that_of_all_that_follows(dml, tmp_path):
    photos = tmp_path/'photos'
    for i in range(48):
        place = photos/f'group {i % 2}'/f'class {i % 8}'/('old' if i % 3 else 'new')
        place.mkdir(parents=True, exist_ok=True)
        Image.new('L', (16, 16), 30 * (i % 8) + i % 7).save(place/f'{i}.png')
    classes = {f'group {i % 2}/class {i}' for i in range(8)}
    words = train_words(photos, tmp_path/'model', '--epochs', 1)
    made = dml(*words, '--depth', 2)
    assert ' 6 classes train ' in made.stdout and '16 folders hold pictures; depth 2 makes 8 classes '\
        'of them' in made.stderr
    refused = dml(*words[:-2], '--epochs', 1)
    assert is_one_line(refused, "depth 2 there, 'leaf' now")
    measured = dml('evaluate', tmp_path/'model', photos)
    assert 'photos, all: 48 pictures of 8 classes' in measured.stdout
    assert 'see --part held-out' in measured.stderr
    assert dml('embed', tmp_path/'model', photos, '--out', tmp_path/'z.npz').returncode == 0
    assert set(np.load(tmp_path/'z.npz')['labels'].tolist()) == classes
    assert dml('index', tmp_path/'model', photos, '--out', tmp_path/'index').returncode == 0
    assert set(pages.Collection(tmp_path/'index').names) == classes
    rows = [f'{path.relative_to(photos)},{path.parts[-3]}' for path in photos.rglob('*.png')]
    (photos/'table.csv').write_text('\n'.join(['file,label', *rows]))
    of_a_table = dml('evaluate', tmp_path/'model', photos/'table.csv')
    assert 'table, all: 48 pictures of 8 classes' in of_a_table.stdout, of_a_table.stderr
    assert 'were decided by folders, at depth 2' in of_a_table.stderr


def test_a_depth_is_refused_where_it_means_nothing(tmp_path, dml):
    run = dml('train', 'digits', '--depth', 2, '--out', tmp_path)
    assert is_one_line(run, 'depth: expected an option of digits')


def test_no_empty_folder_is_left_by_what_failed(tmp_path, dml, model):
    "Only what the command made goes, and only while it is empty"
    (tmp_path/'mine').mkdir()
    for words in (['compare', '--data', 'imagenet'], ['train', 'imagenet'],
                  ['index', tmp_path/'model', tmp_path/'photos'],
                  ['embed', tmp_path/'model', 'imagenet']):
        for out in (tmp_path/'a'/'b', tmp_path/'mine'/'c', tmp_path/'mine'):
            run = dml(*words, '--out', out/'z.npz' if words[0] == 'embed' else out)
            assert run.returncode == 2, run.stderr
            assert sorted(path.name for path in tmp_path.iterdir()) == ['mine', 'model', 'photos']
            assert list((tmp_path/'mine').iterdir()) == []


def test_what_was_written_stays_when_the_rest_fails(tmp_path, dml, monkeypatch):
    def stop(*given, **named):
        (tmp_path/'a'/'b'/'notes.txt').write_text('mine')
        raise ValueError('no')

    monkeypatch.setattr(pictures, 'load_pictures', stop)
    assert is_one_line(dml('train', 'digits', '--out', tmp_path/'a'/'b'), 'no')
    assert (tmp_path/'a'/'b'/'notes.txt').read_text() == 'mine'
