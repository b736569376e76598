"From pictures to a search, where settings are other than the page's."
import numpy as np
import pytest
from PIL import Image

from dml_nb.data import ImageSet
from dml_nb.embedding import create_embedder
from dml_nb.everyday import (
    careful_learner, held_back_of, hold_back, index_folder, search_folder, train_embedder)
from dml_nb.losses import MultiSimilarity

pytestmark = pytest.mark.usefixtures('one_thread')


@pytest.fixture(scope='module')
def vectors():
    "Ten classes of five vectors"
    draw = np.random.default_rng(0)
    return ImageSet(draw.normal(size=(50, 6)).astype('float32'), np.arange(50) % 10)


def test_what_was_held_back_is_found_again(vectors, tmp_path):
    settings = dict(held_out=.4, seed=3)
    train_embedder(vectors, tmp_path, epochs=1, classes=4, per_class=2, **settings)
    judges = hold_back(vectors, *settings.values())[1]
    assert len(judges) == 20 and judges.sha256() != hold_back(vectors, .4, 0)[1].sha256()
    assert held_back_of(tmp_path, vectors).sha256() == judges.sha256()


def test_batches_follow_the_seed(vectors, tmp_path):
    def first_batches(seed):
        embedder = create_embedder('identity', 8, 6, None, 0, None)
        learn = careful_learner(
            vectors, vectors, embedder, MultiSimilarity(), tmp_path, {}, 4, 2, 3, seed)
        return [labels.tolist() for _, labels in learn.dls.train]

    assert first_batches(1) == first_batches(1) != first_batches(2)


def test_as_many_answers_as_asked_for(tmp_path):
    for i in range(6):
        path = tmp_path/'photos'/f'{i}.png'
        path.parent.mkdir(exist_ok=True)
        Image.new('L', (12, 12), 40 * i).save(path)
    outside = tmp_path/'outside.png'
    Image.new('L', (12, 12), 100).save(outside)
    embedder = create_embedder('small_convnet', 8, 1, 12, 0, None)
    index_folder(embedder, tmp_path/'photos', tmp_path/'search')
    answers = search_folder(tmp_path/'search', [outside, tmp_path/'photos'/'2.png'], k=4)
    assert [len(answer['found']) for answer in answers] == [4, 4]
