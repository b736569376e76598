"The command from outside: a small comparison, mistakes, a kill in the middle."
import json, os, signal, subprocess, sys, time
from pathlib import Path

import pytest
from PIL import Image

small = ['compare', '--losses', 'multi_similarity', '--epochs', '1', '--no-turn']
dml = [sys.executable, '-c', 'from dml_nb.cli import main; main()']

def call(*command, **options):
    return subprocess.run([*dml, *map(str, command)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, **options)

def rows(out): return [{k: v for k, v in row.items() if k != 'seconds'} for row in json.loads((out/'results.json').read_text(encoding='utf-8'))['rows']]

@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A small comparison, never interrupted"
    out = tmp_path_factory.mktemp('whole')/'made'/'anew'
    run = call(*small, '--seeds', 2, '--out', out)
    assert run.returncode == 0, run.stderr
    assert run.stderr == '' and 'multi_similarity' in run.stdout and 'report.html' in run.stdout
    return out

def test_compare(whole):
    results = json.loads((whole/'results.json').read_text(encoding='utf-8'))
    assert results['header'].keys() >= {'machine', 'versions', 'data', 'settings', 'losses'} and len(results['header']['data']['sha256']) == 64
    assert [(r['loss'], r['seed']) for r in results['rows']] == [(name, s) for name in ('raw pixels', 'untrained', 'multi_similarity') for s in (0, 1)]
    for row in results['rows']:
        assert row.keys() == {'loss', 'seed', 'recall@1', 'map@r', 'unseen_recall@1', 'unseen_map@r', 'seconds'}
        assert all(0 < row[k] <= 1 for k in row if '@' in k) and (row['seconds'] > 0) == (row['loss'] == 'multi_similarity')
    found = {(r['loss'], r['seed']): r['map@r'] for r in results['rows']}
    assert all(found['multi_similarity', s] > found['raw pixels', s] > found['untrained', s] for s in (0, 1))
    report = (whole/'report.html').read_text(encoding='utf-8')
    assert report.startswith('<!doctype html>') and 'src="http' not in report and '<script' not in report and report.count('data:image/png;base64,') == 5

def test_one_seed_has_no_interval(tmp_path):
    run = call(*small, '--seeds', 1, '--out', tmp_path)
    assert run.returncode == 0 and '± –' in run.stdout and 'One seed, so no interval' in (tmp_path/'report.html').read_text(encoding='utf-8')

@pytest.mark.parametrize('stop, status', [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_stopped_and_started_again(whole, tmp_path, stop, status):
    other = tmp_path/'notes.txt'
    other.write_text('mine')
    process = subprocess.Popen([*dml, *small, '--seeds', '2', '--out', str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))                          # where a shell had it ignored
    limit = time.monotonic() + 200
    while not [*(tmp_path/'runs').glob('*.json')]:
        assert process.poll() is None and time.monotonic() < limit, 'no run was kept before the end'
        time.sleep(.01)
    process.send_signal(stop)
    _, said = process.communicate(timeout=100)
    assert process.returncode == status and not (tmp_path/'results.json').exists()
    if stop == signal.SIGINT: assert said.count('\n') == 1 and 'stopped' in said
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path/'runs').glob('*.json')}
    assert 1 <= len(kept) < 4
    run = call(*small, '--seeds', 2, '--out', tmp_path)
    assert run.returncode == 0, run.stderr
    assert rows(tmp_path) == rows(whole) and all(p.stat().st_mtime_ns == t for p, t in kept.items()) and other.read_text() == 'mine'
    assert not [p for p in tmp_path.rglob('.results.json*')]

def test_earlier_results_are_replaced_and_it_says_so(whole):
    before = rows(whole)
    run = call(*small, '--seeds', 2, '--out', whole)
    assert run.returncode == 0 and run.stdout.count('replaced the earlier one') == 2 and rows(whole) == before

mistakes = {'loss': (['--losses', 'tripet'], 'possible are multi_similarity, triplet, contrastive'), 'data': (['--data', 'imagenet'], 'possible are digits'),
            'missing folder': (['--data', 'folder:/nowhere/at/all'], 'no folder'), 'no number': (['--seeds', 'many'], 'integer'),
            'too small': (['--epochs', '0'], '--epochs'), 'unknown option': (['--lozzes', 'triplet'], '--lozzes')}

@pytest.mark.parametrize('mistake', mistakes)
def test_a_mistake_is_one_line_and_status_2(mistake, tmp_path):
    options, words = mistakes[mistake]
    run = call('compare', '--out', tmp_path/'out', *options)
    assert run.returncode == 2 and run.stdout == '' and run.stderr.count('\n') == 1 and words in run.stderr and 'Traceback' not in run.stderr

def test_folder_of_pictures(tmp_path):
    from sklearn.datasets import load_digits
    raw = load_digits()
    for i, (image, y) in enumerate(zip(raw.images[:120], raw.target)):
        if y < 4:
            (tmp_path/'data'/f'<{y}>').mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 15).astype('uint8')).resize((20, 24)).save(tmp_path/'data'/f'<{y}>'/f'{i}.png')
    options = *small[:-1], '--turn', '--seeds', 1, '--data', f'folder:{tmp_path/"data"}', '--out', tmp_path/'out'      # turned: pictures must be square
    run = call(*options)
    assert run.returncode == 2 and 'square' in run.stderr and run.stderr.count('\n') == 1
    run = call(*options, '--size', 16)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path/'out'/'results.json').read_text(encoding='utf-8'))['header']['data']['classes'] == 4

def test_broken_image_is_named(tmp_path):
    for c in 'abcd':
        (tmp_path/'data'/c).mkdir(parents=True)
        for i in range(5): Image.new('L', (8, 8), 50 * i).save(tmp_path/'data'/c/f'{i}.png')
    for p in (tmp_path/'data').glob('*/*.png'): p.write_bytes(b'no picture')
    run = call(*small, '--data', f'folder:{tmp_path/"data"}', '--out', tmp_path/'out')
    assert run.returncode == 2 and run.stderr.count('\n') == 1 and '.png' in run.stderr and not (tmp_path/'out'/'results.json').exists()

def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path/'file').write_text('mine')
    begin, run = time.monotonic(), call('compare', '--out', tmp_path/'file')
    assert run.returncode == 2 and run.stderr.count('\n') == 1 and str(tmp_path/'file') in run.stderr and (tmp_path/'file').read_text() == 'mine'
    assert time.monotonic() - begin < 5, 'it should be said before anything heavy is loaded'

def test_unknown_command(): assert call('comprae').returncode == 2 and call('comprae').stderr.count('\n') == 1

def test_help_is_quick():
    begin, run = time.monotonic(), call('--help')
    assert run.returncode == 0 and 'compare' in run.stdout and time.monotonic() - begin < 5
    import dml_nb
    assert call('--version').stdout.strip() == dml_nb.__version__
