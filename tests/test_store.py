"""Folders of models, indexes and embeddings under kills: with two models and two writers each of
them opens afterwards and is of one model."""
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import time

import faiss
import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from dml_nb.search.browser import create_app
from dml_nb.search.mistakes import Collection
from dml_nb.support.storage import one_writer, write_atomically
from dml_nb.cli import app
from dml_nb.data import ImageSet
from dml_nb.training import create_embedder, load_embedder, save_embedder
from dml_nb.search import index_folder, train_embedder
from dml_nb.training.recovery import loss_text
from dml_nb.search.folders import open_search
from dml_nb.losses import Contrastive, MultiSimilarity

served = multiprocessing.get_context('forkserver') if hasattr(os, 'fork') else None
pytestmark = [
    pytest.mark.usefixtures('one_thread'),
    pytest.mark.skipif(served is None, reason='this system cannot fork')]
#: How many processes are killed.
KILLS = int(os.environ.get('DML_NB_KILLS', '40'))


def embedders():
    "Two that place the same pictures elsewhere"
    return [create_embedder('small_convnet', 8, 3, 12, seed, None) for seed in (0, 1)]


def vectors():
    draw = np.random.default_rng(0)
    return ImageSet(draw.normal(size=(50, 6)).astype('float32'), np.arange(50) % 10)


def index(root, model):
    index_folder(embedders()[model], root/'photos', root/'index', ('flat', 'hnsw')[model])


def train(root, model):
    loss = (MultiSimilarity, Contrastive)[model]()
    train_embedder(vectors(), root/'model', loss, epochs=2, classes=4, per_class=2, fresh=True)


def embed(root, model):
    "What `dml embed` does, on a folder of vectors"
    app(['embed', f'{root}/{model}', f'{root}/photos', '--out', f'{root}/z.npz'],
        standalone_mode=False)


def browse(root, model):
    "Opens what another one may be writing; the pages keep small pictures in the folder"
    client = TestClient(create_app(Collection(root/'index')))
    for i in range(12):
        assert client.get(f'/thumb/{i}').status_code == 200


WORKS = [index, train, embed, browse]


def again_and_again(work, root, seed, started):
    "In a process of its own: both models in turn, as fast as it can once it has done it slowly"
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for step in itertools.count(seed):
        try:
            work(root, step % 2)
        except BlockingIOError:                         # the other one writes
            time.sleep(.001)
        started.set()


def check_index(root):
    "Rows and network are of the same model, so that each picture finds itself"
    found, embedder, _ = open_search(root/'index')
    files = sorted((root/'photos').rglob('*.png'))
    similarities = found.search(embedder.embed(files, progress=False), 1)[0]
    assert len(found) == len(files) and similarities.min() > .9999
    return embedder.sha256()


def check_model(root):
    "The same call goes on to its end, and record and network are of the same loss"
    path = root/'model'/'training.json'
    found = json.loads(path.read_text())['settings']['loss'] if path.is_file() else None
    losses = [MultiSimilarity(), Contrastive()]
    loss = next((loss for loss in losses if loss_text(loss) == found), losses[0])
    record = train_embedder(vectors(), root/'model', loss, epochs=2, classes=4, per_class=2)
    kept = load_embedder(root/'model'/'embedder')
    assert kept.facts['loss'] == record['settings']['loss'] == loss_text(loss)
    assert kept.sha256() == record['embedder'] and record['finished']
    return loss_text(loss)


def check_arrays(root):
    "Rows are of one of both models"
    with np.load(root/'z.npz') as arrays:
        z, labels = torch.tensor(arrays['features']), arrays['labels']
    assert len(z) == len(labels) == 12
    files = sorted((root/'photos').rglob('*.png'))
    fits = [torch.allclose(model.embed(files, progress=False), z, atol=1e-5)
            for model in embedders()]
    assert sum(fits) == 1
    return fits.index(True)


@pytest.fixture
def root(tmp_path):
    "Pictures, two models, and everything that is written once"
    draw = np.random.default_rng(0)
    for i in range(12):
        path = tmp_path/'photos'/f'{i % 3}'/f'{i:02}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (12, 12, 3), 'uint8')).save(path)
    for model, embedder in enumerate(embedders()):
        save_embedder(embedder, tmp_path/f'{model}')
    for work in WORKS:
        work(tmp_path, 0)
    return tmp_path


@pytest.mark.long
def test_after_any_kill_each_folder_is_of_one_model(root):
    random = np.random.default_rng(0)
    seen = {check_index: set(), check_arrays: set(), check_model: set()}
    for attempt in range(KILLS):
        pair = WORKS[attempt % 3], WORKS[(attempt % 3, 3)[attempt % 2]]
        started = served.Event(), served.Event()
        children = [served.Process(target=again_and_again, args=(work, root, seed, started[seed]))
                    for seed, work in enumerate(pair)]
        for child in children:
            child.start()
        assert all(each.wait(60) for each in started)
        for child in children:
            time.sleep(random.uniform(.001, .6))
            os.kill(child.pid, signal.SIGKILL)
        for child in children:
            child.join()
            assert child.exitcode == -signal.SIGKILL    # it met no error of another kind
        for check, found in seen.items():
            found.add(check(root))
    assert {check.__name__: len(found) for check, found in seen.items()} == dict(
        check_index=2, check_arrays=2, check_model=2)
    for work in WORKS:
        work(root, 1)
    for folder in (root/'index', root/'model'/'embedder'):
        assert not list(folder.glob('.*'))              # no litter


def hold(folder, started):
    with one_writer(folder):
        started.set()
        time.sleep(600)


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path):
    started = served.Event()
    child = served.Process(target=hold, args=(tmp_path, started))
    child.start()
    assert started.wait(60)
    with pytest.raises(BlockingIOError, match=f'got process {child.pid} '):
        with one_writer(tmp_path):
            pass
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with one_writer(tmp_path):
        with one_writer(tmp_path/'.'):
            write_atomically(tmp_path/'file', b'7')
        with pytest.raises(BlockingIOError, match=f'got process {os.getpid()} '):
            in_a_thread(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ['file']


def test_a_command_with_a_name_that_is_no_utf8_holds_a_lock(tmp_path, monkeypatch):
    monkeypatch.setattr('sys.argv', ['dml', 'train', os.fsdecode(b'caf\xe9')])
    with one_writer(tmp_path):
        with pytest.raises(BlockingIOError, match='dml train .*caf'):
            in_a_thread(tmp_path)


def test_a_folder_that_another_one_made_anew_keeps_its_lock(tmp_path):
    started = served.Event()
    child = served.Process(target=hold, args=(tmp_path/'out', started))
    with one_writer(tmp_path/'out'):
        shutil.rmtree(tmp_path/'out')
        child.start()
        assert started.wait(60)
    with pytest.raises(BlockingIOError, match=f'got process {child.pid} '):
        in_a_thread(tmp_path/'out')
    os.kill(child.pid, signal.SIGKILL)
    child.join()


def in_a_thread(folder):
    from concurrent.futures import ThreadPoolExecutor

    def write():
        with one_writer(folder):
            pass

    with ThreadPoolExecutor() as pool:
        pool.submit(write).result()
