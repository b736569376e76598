"What leaves for other programs gives there what it gives here"
import json

import numpy as np
import pytest
import torch
from PIL import Image

for name in ('onnx', 'onnxscript', 'onnxruntime', 'pyarrow'):
    pytest.importorskip(name, reason='the extra export is not installed')

from dml_nb.search import EmbeddingIndex, export_onnx, export_parquet      # noqa: E402
from dml_nb.search import export                                          # noqa: E402
from dml_nb.training import Embedder, create_embedder, save_embedder      # noqa: E402


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    root, draw = tmp_path_factory.mktemp('photos'), np.random.default_rng(0)
    for i in range(4):
        pixels = draw.integers(0, 256, (30, 40, 3), 'uint8')
        Image.fromarray(pixels).save(root/f'{i}.png')
    return root


def run(path, x):
    import onnxruntime
    session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
    return torch.from_numpy(session.run(None, {'pictures': x.numpy()})[0])


KINDS = {
    'rgb weights on grey': dict(channels=1, normalize=([.4], [.2]), fit='pad'),
    'squeezenet': dict(arch='squeezenet1_1', size=(40, 48), head=None,
                       normalize=([.485, .456, .406], [.229, .224, .225]), fit='squash'),
    'resnet18, frozen, gem, mlp': dict(arch='resnet18', size=40, pooling='gem', head='mlp',
                                       batch_norm=True, dropout=.5, frozen=True),
    'held batch norm': dict(frozen_batch_norm=True, pooling='average'),
    'vectors': dict(arch='identity', channels=7, size=None, batch_norm=True),
}


@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_of_network_gives_the_same(kind, photos, tmp_path):
    options = dict(dict(arch='small_convnet', dim=8, size=20, seed=0), **KINDS[kind])
    embedder = create_embedder(**options).train()       # as after a training
    with torch.no_grad():
        for x in embedder.parameters():
            x.add_(.1 * torch.randn_like(x))
    before = [module.training for module in embedder.modules()]
    facts = export_onnx(embedder, tmp_path/'net.onnx', None if kind == 'vectors' else photos)
    assert [module.training for module in embedder.modules()] == before
    assert facts == json.loads((tmp_path/'net.json').read_text())
    assert facts['fit'] == embedder.fit and facts['embedder'] == embedder.sha256()
    assert (facts['mean'], facts['std']) == tuple(options.get('normalize', (None, None)))
    assert facts['checked']['pictures'] == (5 if kind == 'vectors' else 4)
    shape = facts['input']['shape'][1:]
    for count in (1, 2, 9):
        x = torch.rand(count, *shape)
        with torch.no_grad():
            torch.testing.assert_close(run(tmp_path/'net.onnx', x), embedder.eval()(x),
                                       rtol=0, atol=1e-5)
    if kind != 'vectors':
        assert facts['mode'] == ('L' if options.get('channels') == 1 else 'RGB')
        assert facts['size'] == shape[1:]


def test_what_the_json_says_is_enough_to_embed_a_file(photos, tmp_path):
    embedder = create_embedder('squeezenet1_1', 8, 3, (40, 48), 0, fit='squash',
                               normalize=([.485, .456, .406], [.229, .224, .225]))
    save_embedder(embedder, tmp_path/'model')
    facts = export_onnx(tmp_path/'model', tmp_path/'net.onnx')
    picture = Image.open(photos/'2.png').convert(facts['mode'])
    picture = picture.resize(facts['size'][::-1], Image.Resampling.BILINEAR)
    x = torch.from_numpy(np.asarray(picture, dtype='float32') / 255).permute(2, 0, 1)[None]
    torch.testing.assert_close(run(tmp_path/'net.onnx', x), embedder.embed(photos/'2.png'),
                               rtol=0, atol=1e-5)


def test_a_file_that_gives_something_else_is_not_written(tmp_path, monkeypatch):
    embedder, other = (create_embedder('small_convnet', 8, 3, 12, seed) for seed in (0, 1))
    whole = export.onnx_content
    monkeypatch.setattr(export, 'onnx_content', lambda embedder, x: whole(other.eval(), x))
    with pytest.raises(ValueError, match='differ from those of PyTorch by at most 0.0001, got'):
        export_onnx(embedder, tmp_path/'net.onnx')
    assert not list(tmp_path.iterdir())
    own = Embedder(torch.nn.Flatten(), 4, 12)
    with pytest.raises(ValueError, match='a network from create_embedder'):
        export_onnx(own, tmp_path/'net.onnx')


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(export, 'find_spec', lambda name: None if name == 'onnxruntime' else name)
    with pytest.raises(ImportError, match=r'onnxruntime cannot.*dml_nb\[export\]'):
        export_onnx(create_embedder(dim=4), tmp_path/'net.onnx')


def test_a_table_holds_the_index_in_order_of_ids(tmp_path):
    from pyarrow import parquet
    index, draw = EmbeddingIndex(5), torch.Generator().manual_seed(0)
    facts = [dict(path=f'{i} é.png', label='ab'[i % 2], state=[i]) for i in range(9)]
    index.add(torch.randn(9, 5, generator=draw), metadata=facts)
    index.remove([2, 3])
    index.save(tmp_path/'index')
    told = export_parquet(tmp_path/'index', tmp_path/'index.parquet')
    assert told == dict(rows=7, dim=5, columns=['id', 'path', 'label', 'vector'])
    table = parquet.read_table(tmp_path/'index.parquet').to_pylist()
    assert [row['id'] for row in table] == index.ids.tolist() == [0, 1, 4, 5, 6, 7, 8]
    for row, fact, vector in zip(table, index.metadata(), index.vectors().tolist()):
        assert (row['path'], row['label'], row['vector']) == (fact['path'], fact['label'], vector)
