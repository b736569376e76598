"""The command from outside: a small comparison, mistakes, a kill in the middle, a full disk.

Importing fastai takes seconds, so what needs no process of its own runs in this one."""
import inspect
import json
import resource
import shlex
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from PIL import Image

import dml_nb
from dml_nb import everyday, experiment
from dml_nb.cli import main

command = [sys.executable, '-c', 'from dml_nb.cli import main; main()']
small = ['compare', '--losses', 'multi_similarity', '--epochs', '1', '--no-turn']
heavy = ['torch', 'torchvision', 'fastai', 'sklearn', 'matplotlib', 'sympy', 'numpy']
against_hanging = 500       # seconds; nothing is asserted about time


def in_a_process(*words):
    "The command as a user gives it"
    return subprocess.run(
        [*command, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=against_hanging)


@pytest.fixture
def dml(capsys, monkeypatch):
    "The command in this process"
    def call(*words):
        monkeypatch.setattr(sys, 'argv', ['dml', *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code, stdout=said.out, stderr=said.err)
    return call


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
    assert list(found)[:8] == [
        'machine', 'versions', 'threads', 'date', 'seed', 'data', 'settings', 'losses']
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


def test_every_option_reaches_the_recipes(tmp_path, dml, monkeypatch):
    def run_all(recipes, images, folder, fresh, progress):
        seen.extend(recipes)
        raise ValueError(f'fresh is {fresh}, folder is {folder}')

    seen = []
    monkeypatch.setattr(experiment, 'run_all', run_all)
    options = ['--seeds', 2, '--threads', 3, '--epochs', 5, '--turn', '--losses', 'cit,triplet']
    run = dml('compare', *options, '--out', tmp_path)
    assert is_one_line(run, 'fresh is False', tmp_path/'runs')
    assert is_one_line(dml('compare', *options, '--fresh', '--out', tmp_path), 'fresh is True')
    for recipe in seen:
        assert (recipe.threads, recipe.epochs, recipe.data) == (3, 5, 'digits')
        assert recipe.turned == (recipe.split == 'class')
    assert {(recipe.loss, recipe.seed) for recipe in seen} == {
        ('cit', 0), ('cit', 1), ('triplet', 0), ('triplet', 1)}


def test_one_seed_has_no_interval(tmp_path, dml):
    run = dml(*small, '--seeds', 1, '--out', tmp_path)
    assert run.returncode == 0 and '± –' in run.stdout and results(tmp_path)['seed'] == 0
    assert 'One seed, so no interval' in (tmp_path/'report.html').read_text(encoding='utf-8')


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
    'loss': (['--losses', 'tripet'], 'names among contrastive, binomial', 'tripet was given'),
    'data': (['--data', 'imagenet'], 'digits', 'imagenet'),
    'no size': (['--size', '8'], '--size', 'digits'),
}


@pytest.mark.parametrize('mistake', mistakes)
def test_a_mistake_is_one_line_and_status_2(mistake, tmp_path, dml):
    options, *words = mistakes[mistake]
    assert is_one_line(dml('compare', '--out', tmp_path/'out', *options), *words)
    assert not changed_at(tmp_path/'out')


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
    'no number': (['compare', '--seeds', 'many'], 'integer'),
    'too small': (['compare', '--epochs', '0'], '--epochs'),
    'unknown option': (['compare', '--lozzes', 'triplet'], '--lozzes', 'See: dml compare --help'),
    'unknown command': (['comprae'], 'comprae', 'See: dml --help'),
    'model that is none': (['evaluate', 'nowhere', 'photos'], 'nowhere was given'),
    'folder to index': (['index', 'nowhere', 'photos'], 'photos was given'),
    'index that is none': (['search', 'nowhere', 'photo.jpg'], 'nowhere was given'),
    'a file of vectors below a file': (
        ['embed', 'nowhere', 'photos', '--out', 'FILE/z.npz'], '--out', 'FILE'),
    'nothing to browse': (['browse', 'nowhere'], 'nowhere was given'),
}


@pytest.mark.parametrize('mistake', known_at_once)
def test_said_before_anything_heavy_is_imported(mistake, tmp_path):
    (tmp_path/'file').write_text('mine')
    (tmp_path/'taken').mkdir()
    (tmp_path/'taken'/'runs').write_text('mine')

    def filled(text):
        return text.replace('FILE', f'{tmp_path}/file').replace('TAKEN', f'{tmp_path}/taken')

    words, *said = known_at_once[mistake]
    out = [] if '--out' in words or words[0] != 'compare' else ['--out', f'{tmp_path}/out']
    run = subprocess.run(
        [sys.executable, '-c', probe, *map(filled, words), *out], capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=against_hanging)
    *lines, imported = run.stderr.splitlines()
    assert run.returncode == 2 and run.stdout == '' and len(lines) == 1, run.stderr
    assert all(filled(word) in lines[0] for word in said) and imported == ''
    for path in (tmp_path/'file', tmp_path/'taken'/'runs'):
        assert path.read_text() == 'mine'
    assert not (tmp_path/'out'/'runs').exists()


COMMANDS = 'train evaluate embed index search browse compare reproduce bench'.split()


@pytest.mark.parametrize('words, said', [
    (['--help'], 'compare'), (['--version'], dml_nb.__version__),
    *(([name, '--help'], f'Example: dml {name}') for name in COMMANDS)])
def test_help_imports_nothing_heavy(words, said):
    run = subprocess.run(
        [sys.executable, '-c', probe, *words], capture_output=True, text=True,
        timeout=against_hanging)
    assert run.returncode == 0 and said in run.stdout and run.stderr == '\n'


def test_a_paragraph_of_help_is_as_wide_as_the_terminal(dml, monkeypatch):
    monkeypatch.setattr('typer.rich_utils.MAX_WIDTH', 1000)
    monkeypatch.setenv('COLUMNS', '1000')
    assert 'is a picture\'s nearest neighbour of its own class (R@1)' in dml('train', '--help').stdout


wrong = {
    'share': (['--held-out', '2'], '--held-out: a finite number above 0 and below 1'),
    'rate': (['--lr', '-1'], '--lr: a finite number above 0'),
    'setting': (['--set', 'gamma=3'], '--set: ', 'alpha=2', 'epsilon=', 'gamma=3 was given'),
    'value': (['--set', 'alpha=two'], '--set: ', 'alpha=two was given', 'above 0'),
    'name': (['--loss', 'circel'], 'circel was given; is circle meant?'),
}


@pytest.mark.parametrize('mistake', wrong)
def test_an_option_is_judged_before_pictures_are_read(mistake, tmp_path, dml):
    options, *words = wrong[mistake]
    is_one_line(dml('train', tmp_path/'nowhere', '--out', tmp_path/'out', *options), *words)


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
    run = dml(*options, '--size', 16)
    assert run.returncode == 0, run.stderr
    assert results(tmp_path/'out')['data']['classes'] == 4


def test_broken_image_is_named(tmp_path, dml):
    for name in 'abcd':
        (tmp_path/'data'/name).mkdir(parents=True)
        for i in range(5):
            (tmp_path/'data'/name/f'{i}.png').write_bytes(b'no picture')
    run = dml(*small, '--data', f'folder:{tmp_path/"data"}', '--out', tmp_path/'out')
    assert is_one_line(run, '.png') and not (tmp_path/'out'/'results.json').exists()


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
    "A folder as people have them: nested, odd names, several sizes, one file that is no picture"
    root = tmp_path_factory.mktemp('drawings')/'my "drawings" né'
    for i in range(160):
        place = root/f'class {i % 8}'/('old' if i % 3 else 'new, better')
        place.mkdir(parents=True, exist_ok=True)
        Image.new('L', (20 + i % 5, 24), 20 * (i % 8) + i % 7).save(place/f'#{i} %20 é.png')
    (root/'class 1'/'broken.jpg').write_bytes(b'no picture')
    return root


def train_words(drawings, out, *more):
    return ['train', drawings, '--out', out, '--body', 'small_convnet', '--size', 16, '--epochs', 6,
            '--patience', 9, *more]


def test_every_option_reaches_the_training(tmp_path, dml, monkeypatch):
    def instead(*given, **named):
        seen.update(signature.bind(*given, **named).arguments)
        raise ValueError('enough was seen')

    seen, signature = {}, inspect.signature(everyday.train_embedder)
    monkeypatch.setattr(everyday, 'train_embedder', instead)
    options = dict(body='lenet', weights='none', dim=7, epochs=6, patience=2, classes=5,
                   per_class=3, lr=.02, held_out=.3, seed=4)
    words = [word for name, value in options.items()
             for word in (f"--{name.replace('_', '-')}", value)]
    words += ['--loss', 'proxy_anchor', '--set', 'alpha=16', '--out', tmp_path]
    assert is_one_line(dml('train', 'digits', *words), 'enough was seen')
    assert {name: seen[name] for name in options} == options
    assert seen['out'] == tmp_path and seen['images'].name == 'digits' and not seen['fresh']
    loss = seen['loss'](5, 7)
    assert loss.alpha == 16 and loss.weight.shape == (5, 7)
    dml('train', 'digits', *words, '--fresh')
    assert seen['fresh']


def default_interrupt():
    "Ctrl-C as in a terminal, also where the tests run in the background of a shell, which ignores it"
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_train_goes_on_after_ctrl_c(drawings, tmp_path):
    words = list(map(str, train_words(drawings, tmp_path/'model')))
    running = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, text=True,
                               preexec_fn=default_interrupt)
    for line in running.stdout:
        if line.startswith('epoch'):
            running.send_signal(signal.SIGINT)
            break
    _, said = running.communicate(timeout=against_hanging)
    assert running.returncode == 130 and 'Traceback' not in said
    assert 'the same command goes on' in said.splitlines()[-1]
    assert (tmp_path/'model'/'embedder'/'embedder.json').is_file()
    again = in_a_process(*words, '--json')
    whole = in_a_process(*train_words(drawings, tmp_path/'whole'), '--json')
    curves = [json.loads(run.stdout)['curve'] for run in (again, whole)]
    assert curves[0] == curves[1] and len(curves[0]) == 6


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
    before = (tmp_path/'index'/'search.json').read_bytes()
    is_one_line(dml('index', tmp_path/'model', drawings/'nowhere', '--out', tmp_path/'index'),
                'nowhere')
    changed = (tmp_path/'index'/'search.json').read_bytes()
    assert changed == before
    arrays = dml('embed', tmp_path/'model', drawings, '--out', tmp_path/'z.npz')
    assert arrays.returncode == 0
    of_vectors = dml('train', f"features:{tmp_path/'z.npz'}", '--out', tmp_path/'head',
                     '--epochs', 1)
    assert of_vectors.returncode == 0 and 'a head on them' in of_vectors.stdout
