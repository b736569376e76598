"""`evaluate` against plain loops on small random cases, and what it holds in memory."""
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_nb.evaluation import evaluate, evaluate_relevance, paired

KS = (1, 2, 5)


def measures_by_loops(ranks):
    R, found = len(ranks), {}
    for k in KS:
        found[f'recall@{k}'] = found[f'cmc@{k}'] = float(ranks[0] <= k)
        found[f'precision@{k}'] = sum(r <= k for r in ranks) / k
    found['map'] = sum(j / r for j, r in enumerate(ranks, 1)) / R
    found['map@r'] = sum(j / r for j, r in enumerate(ranks, 1) if r <= R) / R
    found['r_precision'] = sum(r <= R for r in ranks) / R
    found['mrr'] = 1 / ranks[0]
    found['minp'] = R / ranks[-1]
    return found


def evaluate_by_loops(angles, labels, gallery, gallery_labels, cameras, gallery_cameras, no_match):
    "Points on a circle at whole degrees: what is tied is tied exactly"
    alone = gallery is None
    if alone:
        gallery, gallery_labels, gallery_cameras = angles, labels, cameras
    rows, rivals, asked = [], {}, 0     # of each confused query the classes that are nearest to it
    for i, label in enumerate(labels):
        if label in (-1, ''):
            continue
        asked += 1
        ranking = []
        for k, other in enumerate(gallery_labels):
            own = alone and i == k
            seen = cameras is not None and other == label and cameras[i] == gallery_cameras[k]
            if other == -1 or own or (seen and cameras[i] != -1):
                continue
            turn = abs(angles[i] - gallery[k]) % 360
            ranking.append((min(turn, 360 - turn), other == label, k))
        ranking.sort()      # False sorts before True: wrong first
        ranks = [place for place, (_, right, _) in enumerate(ranking, 1) if right]
        if ranks:
            rows.append(measures_by_loops(ranks))
            if ranks[0] > 1:
                least = ranking[0][0]
                rivals[i] = {gallery_labels[k] for turn, right, k in ranking
                             if turn == least and not right}
    n = len(rows) if no_match == 'skip' else asked
    means = {key: sum(row[key] for row in rows) / n for key in rows[0]} if rows else {}
    return means, rivals, asked - len(rows)


def on_circle(angles):
    radians = torch.tensor(angles, dtype=torch.float64).deg2rad()
    return torch.stack([radians.cos(), radians.sin()], 1)


@st.composite
def sides(draw, n):
    "Angles, labels and cameras of n points; few different ones, so that they tie"
    step = draw(st.sampled_from([7, 40, 90]))
    angles = [step * draw(st.integers(0, 12)) for _ in range(n)]
    labels = [draw(st.integers(-1, 4)) for _ in range(n)]
    cameras = [draw(st.integers(-1, 2)) for _ in range(n)]
    return angles, labels, cameras


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_equal_to_loops(data):
    size = st.integers(1, 14)
    angles, labels, cameras = data.draw(sides(data.draw(size)))
    gallery, gallery_labels, gallery_cameras = data.draw(sides(data.draw(size)))
    if data.draw(st.booleans()):
        gallery = gallery_labels = gallery_cameras = None
    if data.draw(st.booleans()):
        cameras = gallery_cameras = None
    no_match = data.draw(st.sampled_from(['skip', 'miss']))
    sizes = dict(labels=labels, other=labels if gallery is None else gallery_labels)
    points = None if gallery is None else on_circle(gallery)
    args = (on_circle(angles), labels, points, gallery_labels, cameras, gallery_cameras)
    if any(max(side) < 0 for side in sizes.values()):
        with pytest.raises(ValueError, match='labelled'):
            evaluate(*args, ks=KS, no_match=no_match)
        return
    report = evaluate(*args, ks=KS, no_match=no_match)
    means, rivals, unmatched = evaluate_by_loops(
        angles, labels, gallery, gallery_labels, cameras, gallery_cameras, no_match)
    assert report['unmatched'] == unmatched
    for key, value in means.items():
        assert report[key] == pytest.approx(value, abs=1e-12), key
    wrong = {i: sizes['other'][k] for i, k in enumerate(report.nearest_wrong.tolist()) if k >= 0}
    assert wrong.keys() == rivals.keys()
    assert all(wrong[i] in classes for i, classes in rivals.items())
    pairs = Counter((labels[i], other) for i, other in wrong.items())
    table = report.confusions(10**6)
    assert {(row['class'], row['taken_for']): row['queries'] for row in table} == pairs


@pytest.mark.parametrize('args', [
    (torch.empty(0, 3), []),
    (np.empty((0, 3), dtype=np.float32), []),
    (iter([]), []),
    (torch.ones(3, 2), [-1, -1, -1]),
    (torch.ones(3, 2), [0, 0, 0], torch.ones(2, 2), [-1, -1]),
    (torch.ones(3, 2), [-1, -1, -1], torch.ones(2, 2), [0, 0]),
    (torch.ones(3, 2), [0, 0, 0], torch.empty(0, 2), [])])
def test_nothing_to_evaluate_is_an_error(args):
    with pytest.raises(ValueError, match='labels?|z|gallery'):
        evaluate(*args)


def test_threads_agree_and_are_given_back():
    torch.manual_seed(0)
    labels = torch.randint(400, (2500,))
    z = torch.randint(-2, 3, (2500, 8)).float()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(evaluate(z, labels))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert dict(other) == dict(found[0])
        assert other.nearest_wrong.equal(found[0].nearest_wrong)


def test_labels_of_pandas():
    pandas = pytest.importorskip('pandas')
    z, labels = torch.randn(6, 3), [3, 1, 3, 1, 1, 3]
    names = [f'c{k}' for k in labels]
    expected = dict(evaluate(z, labels))
    for column in (pandas.Series(labels, index=[9, 8, 7, 6, 5, 4]),
                   pandas.Series(labels, dtype='Int64'), pandas.Series(labels, dtype='uint8'),
                   pandas.Series(names), pandas.Series(names, dtype='category')):
        assert dict(evaluate(z, column)) == expected


def test_relevances_that_a_function_holds_stay_as_they_are():
    z, table = torch.randn(6, 3), torch.rand(6, 6, dtype=torch.float64)
    before = table.clone()
    evaluate_relevance(z, lambda rows: table)
    assert table.equal(before)


def test_paired_needs_the_same_queries():
    z, labels = torch.randn(8, 3), [0, 0, 1, 1, 2, 2, 3, 3]
    a, b = evaluate(z, labels), evaluate(z, labels[::-1][:7] + [9])
    assert paired(a, evaluate(z * 2, labels), 'map').p == 1
    with pytest.raises(ValueError, match='same queries'):
        paired(a, b)


MEMORY = """
import sys, threading, time
import numpy as np, torch
from dml_nb.evaluation import evaluate

def held():        # MiB of memory that is not a file's
    lines = open('/proc/self/status').read().splitlines()
    return int(next(line for line in lines if line.startswith('RssAnon')).split()[1]) / 1024

gallery = np.load(sys.argv[1], mmap_mode='r')
labels = np.arange(len(gallery)) % 5000
z = np.array(gallery[:64])
evaluate(z, labels[:64], gallery[:2000], labels[:2000])
before, peak, done = held(), [0.], threading.Event()

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], held())
        time.sleep(.002)

thread = threading.Thread(target=watch)
thread.start()
report = evaluate(z, labels[:64], gallery, labels)
done.set()
thread.join()
assert report['recall@1'] == 1 and report['gallery'] == len(gallery)
print(peak[0] - before)
"""


@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='wants Linux')
def test_a_gallery_on_a_disk_is_not_copied(tmp_path):
    rows, dim = 150_000, 256        # 147 MiB
    path = tmp_path / 'gallery.npy'
    table = np.lib.format.open_memmap(path, 'w+', np.float32, (rows, dim))
    rng = np.random.default_rng(0)
    for lo in range(0, rows, 10_000):
        table[lo:lo + 10_000] = rng.standard_normal((10_000, dim), dtype=np.float32)
    table.flush()
    del table
    # freed memory goes back to the system, so that it is not counted
    env = os.environ | {'MALLOC_TRIM_THRESHOLD_': '0', 'OMP_NUM_THREADS': '2'}
    done = subprocess.run([sys.executable, '-c', MEMORY, str(path)], env=env, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 110, f'{float(done.stdout):.0f} MiB for a gallery of 147 MiB'
