"""A sweep and the embedding of a folder on a local cluster of Dask find what one process finds, also
where a machine of the cluster is lost on the way."""
import os
import signal
import time
from threading import Thread

import numpy as np
import pytest
import torch
from joblib import parallel_config
from PIL import Image

from dml_nb.experiments import Recipe, run_many, sweep
from dml_nb.search.folders import embed_readable
from dml_nb.training import create_embedder

distributed = pytest.importorskip('dask.distributed', reason='dask[distributed] is not installed')
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::UserWarning:distributed')]


@pytest.fixture
def client():
    "Two processes of one thread each"
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1,
                                  dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client, parallel_config(backend='dask'):
            yield client


@pytest.fixture(scope='module')
def recipes():
    base = Recipe('contrastive', data='digits', steps=60)
    return sweep(base, {'lr': [.01, .1]}, seeds=2)


@pytest.fixture(scope='module')
def alone(recipes, tmp_path_factory):
    "What one process finds"
    return run_many(recipes, tmp_path_factory.mktemp('alone'), workers=1, progress=False)


def untimed(results):
    return [{key: value for key, value in each.items() if key != 'seconds'} for each in results]


def test_a_sweep_finds_on_a_cluster_what_it_finds_here(recipes, alone, client, tmp_path):
    found = run_many(recipes, tmp_path, workers=2, progress=False)
    assert untimed(found) == untimed(alone)
    assert os.getpid() not in client.run(os.getpid).values()


def test_a_worker_that_is_killed_loses_nothing(recipes, alone, client, tmp_path):
    "The last of two is killed when a first run is finished; Dask starts another"
    before = client.run(os.getpid)

    def kill():
        while not [*tmp_path.glob('*.json')]:
            time.sleep(.01)
        os.kill([*before.values()][-1], signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    found = run_many(recipes, tmp_path, workers=2, progress=False)
    killer.join()
    assert untimed(found) == untimed(alone)
    assert sorted(before.values()) != sorted(client.run(os.getpid).values())


def test_a_folder_is_embedded_by_a_cluster_as_here(client, tmp_path):
    draw = np.random.default_rng(0)
    files = [tmp_path/f'{i:02}.png' for i in range(70)]
    for file in files:
        Image.fromarray(draw.integers(0, 256, (16, 16), 'uint8')).save(file)
    files[40].write_bytes(b'no picture')
    embedder, told = create_embedder(dim=8, size=16), []
    z, kept, skipped = embed_readable(embedder, files, bs=2, tell=lambda *done: told.append(done))
    assert told == [(32, 70), (64, 70), (70, 70)]               # in order, from three jobs
    assert kept == files[:40] + files[41:] and list(skipped) == [files[40]]
    torch.testing.assert_close(z, embedder.embed(kept, 2, progress=False), rtol=0, atol=1e-6)
