"The index against a dictionary and NumPy; its files against kills, readers meanwhile and damage."
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save as save_tensors
from torch import nn

from dml_nb.support import storage
from dml_nb.search.index import _INDEX as index_store
from dml_nb.search import EmbeddingIndex

served = multiprocessing.get_context('forkserver') if hasattr(os, 'fork') else None
needs_fork = pytest.mark.skipif(served is None, reason='this system cannot fork')
each_kind = pytest.mark.parametrize('kind', ['flat', 'hnsw', 'ivfpq'])


def unit_row(row):
    "A row of length one as 32-bit numbers, computed in double precision"
    row = np.asarray(row, dtype=np.float32).astype(np.float64)
    scale = np.abs(row).max()
    if scale == 0:
        return row.astype(np.float32)
    row = row / scale
    return (row / np.sqrt(np.square(row).sum())).astype(np.float32)


def brute(stored, query, k, own=None, allowed=None):
    "The k best of {id: unit row}: by similarity rounded to 32 bits, then by id"
    scored = []
    for id, row in stored.items():
        if id != own and (allowed is None or id in allowed):
            similarity = np.multiply(row, query, dtype=np.float64).sum()
            scored.append((-np.float32(min(1, max(-1, similarity))), id))
    scored.sort()
    pad = [(np.inf, -1)] * max(0, k - len(scored))
    best = (scored + pad)[:k]
    return [-float(s) for s, _ in best], [id for _, id in best]


def agree(index, stored, query, k, **options):
    "The index answers as `brute` does, to the last bit"
    sims, ids = index.search(torch.tensor(query)[None], k, **options)
    wanted = options.get('where')
    if callable(wanted):
        everything = index.ids.tolist()
        wanted = {id for id, value in zip(everything, index.metadata(everything)) if wanted(value)}
    expected = brute(stored, unit_row(query), k, allowed=wanted)
    assert ids[0].tolist() == expected[1]
    assert sims[0].tolist() == expected[0]


# Few different numbers, so that equal rows, equal similarities and zero rows come up often.
number = st.sampled_from([-1., -.5, 0., 0., 1., 1., 2., 3., 1e-30, 1e30])
row = st.lists(number, min_size=3, max_size=3)
some_ids = st.sets(st.integers(0, 30), min_size=1, max_size=12)
operation = st.one_of(
    st.tuples(st.just('add'), some_ids, st.data()),
    st.tuples(st.just('append'), st.lists(row, min_size=1, max_size=8)),
    st.tuples(st.just('replace'), some_ids, st.data()),
    st.tuples(st.just('remove'), some_ids),
    st.tuples(st.just('search'), row, st.integers(1, 40)),
    st.tuples(st.just('filter'), row, st.integers(1, 40), some_ids),
    st.tuples(st.just('condition'), row, st.integers(1, 5)),
    st.tuples(st.just('itself'), st.integers(1, 40)),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(operation, min_size=1, max_size=25))
def test_random_work_as_with_a_dictionary(operations):
    index, stored, facts, next_id = EmbeddingIndex(3), {}, {}, 0
    for name, *arguments in operations:
        if name in ('add', 'replace'):
            ids, data = sorted(arguments[0]), arguments[1]
            rows = [data.draw(row) for _ in ids]
            values = [{'odd': id % 2 == 1, 'round': len(facts)} for id in ids]
            clash = stored.keys() & set(ids)
            if name == 'add' and clash:
                with pytest.raises(ValueError, match='is here already'):
                    index.add(torch.tensor(rows), ids, values)
                continue
            index.add(torch.tensor(rows), ids, values, replace=name == 'replace')
            stored.update(zip(ids, map(unit_row, rows)))
            facts.update(zip(ids, values))
            next_id = max(next_id, ids[-1] + 1)
        elif name == 'append':
            ids = index.add(torch.tensor(arguments[0])).tolist()
            assert ids == list(range(next_id, next_id + len(ids)))
            stored.update(zip(ids, map(unit_row, arguments[0])))
            facts.update(dict.fromkeys(ids))
            next_id += len(ids)
        elif name == 'remove':
            if arguments[0] <= stored.keys():
                index.remove(arguments[0])
                for id in arguments[0]:
                    del stored[id], facts[id]
            else:
                with pytest.raises(ValueError, match='ids of this index'):
                    index.remove(arguments[0])
        elif name == 'search':
            agree(index, stored, *arguments)
        elif name == 'filter':
            agree(index, stored, *arguments[:2], where=arguments[2])
        elif name == 'condition':
            agree(index, stored, *arguments, where=lambda value: value is not None and value['odd'])
        elif stored:
            sims, ids = index.search(ids=list(stored), k=arguments[0])
            for i, id in enumerate(stored):
                expected = brute(stored, stored[id], arguments[0], own=id)
                assert ids[i].tolist() == expected[1]
                assert sims[i].tolist() == expected[0]
        assert len(index) == len(stored) and index.ids.tolist() == sorted(stored)
    assert index.metadata() == [facts[id] for id in sorted(stored)]
    if stored:
        assert np.array_equal(index.vectors().numpy(), [stored[id] for id in sorted(stored)])


def rows(n, dim=16, seed=0, groups=50, spread=.5):
    "Points about some centres, as trained embeddings are"
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(groups, dim, generator=g)
    member = torch.randint(groups, (n,), generator=g)
    return centres[member] + spread * torch.randn(n, dim, generator=g)


def test_near_duplicates_are_ordered_exactly():
    "Differences below the rounding of faiss' sums: the first proposals are not enough"
    g = torch.Generator().manual_seed(1)
    z = torch.randn(1, 64, generator=g) + 1e-6 * torch.randn(3000, 64, generator=g)
    index = EmbeddingIndex(64)
    index.add(z)
    stored = dict(enumerate(map(unit_row, z.numpy())))
    sims, ids = index.search(z[:5], 7)
    for q in range(5):
        expected = brute(stored, stored[q], 7)
        assert ids[q].tolist() == expected[1]
        assert sims[q].tolist() == expected[0]
        agree(index, stored, z[q].numpy(), 7, where=range(0, 3000, 2))


def test_among_equal_rows_each_query_leaves_itself_out():
    "More equal rows than the first proposals hold"
    index = EmbeddingIndex(4)
    index.add(torch.ones(40, 4))
    sims, ids = index.search(ids=[3, 1], k=4)
    assert ids.tolist() == [[0, 1, 2, 4], [0, 2, 3, 4]]
    assert (sims == 1).all()


def test_result_does_not_depend_on_batch_order_or_history():
    z = rows(3000)
    z[2000:2100] = z[:100]
    one, other = EmbeddingIndex(16), EmbeddingIndex(16)
    one.add(z)
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(2))
    other.add(z[order].flip(0), order.flip(0))
    other.add(rows(500, seed=3), range(5000, 5500))
    other.remove(range(5000, 5500))
    other.add(z[:40], range(40), replace=True)
    whole = one.search(z[:200], 20)
    alone = [one.search(z[i:i + 1], 20) for i in range(200)]
    for sims, ids in (other.search(z[:200], 20), map(torch.cat, zip(*alone))):
        assert torch.equal(sims, whole[0]) and torch.equal(ids, whole[1])


def test_gpu_answers_are_only_proposals(monkeypatch):
    "A stand-in for faiss on a GPU: asked, made anew when rows change, its rounding never shows"
    index, plain, made = EmbeddingIndex(16), EmbeddingIndex(16), []

    class Rounding:
        def __init__(self, rows):
            self.rows = faiss.clone_index(rows)
            made.append(self)

        def search(self, x, count):
            sims, places = self.rows.search(x, count)
            return np.sort(sims - 1e-7)[:, ::-1], places

    monkeypatch.setattr(faiss, 'index_cpu_to_all_gpus', Rounding, raising=False)
    z = rows(2000)
    plain.add(z)
    index.add(z[:1000])
    third = range(0, 2000, 3)
    expected = plain.search(z[:50], 10), plain.search(z[:50], 10, where=third)
    monkeypatch.setattr(faiss, 'get_num_gpus', lambda: 1)
    index.search(z[:50], 10)
    index.search(z[:50], 10)
    assert len(made) == 1
    index.add(z[1000:])
    answers = index.search(z[:50], 10), index.search(z[:50], 10, where=third)
    for found, wanted in zip(answers, expected):
        assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    assert len(made) == 2


@each_kind
def test_kinds_find_exact_similarities_and_never_too_few(kind):
    z = rows(1500)
    index, exact = EmbeddingIndex(16, kind), EmbeddingIndex(16)
    index.add(z)
    exact.add(z)
    assert index.recall(300) >= .9
    assert exact.recall(300) == 1
    sims, ids = index.search(z[:20], 1500)
    assert torch.equal(sims, exact.search(z[:20], 1500)[0]) and (ids >= 0).all()
    sims, ids = index.search(z[:20], 1600)
    assert (ids[:, :1500] >= 0).all() and (ids[:, 1500:] == -1).all()
    assert (sims[:, 1500:] == -torch.inf).all()
    few = [one.search(ids=range(20), k=9, where={1, 700, 3}) for one in (index, exact)]
    assert torch.equal(few[0][0], few[1][0]) and torch.equal(few[0][1], few[1][1])
    sims, ids = index.search(ids=range(100), k=5)
    assert (ids != torch.arange(100)[:, None]).all()
    assert torch.allclose(sims, torch.cosine_similarity(z[:100, None], z[ids], dim=2), atol=1e-6)


@each_kind
def test_kinds_follow_changes(kind, tmp_path):
    "Removed rows never come back, new and replaced ones are found, and so after opening"
    z = rows(1400)
    index = EmbeddingIndex(16, kind)
    index.add(z)
    index.search(z[:1])
    index.remove(range(0, 200))
    index.add(rows(100, seed=5), range(5000, 5100))
    index.add(-z[300:310], range(300, 310), replace=True)
    again = EmbeddingIndex.open(index.save(tmp_path/'index'))
    again.add(rows(10, seed=6), range(6000, 6010))
    index.add(rows(10, seed=6), range(6000, 6010))
    for one in (index, again):
        sims, ids = one.search(z[:200], 10)
        assert (ids >= 200).all()
        queries = rows(100, seed=5), -z[300:310], rows(10, seed=6)
        hits = [one.search(q, 1)[1][:, 0] for q in queries]
        wanted = [torch.arange(5000, 5100), torch.arange(300, 310), torch.arange(6000, 6010)]
        assert torch.cat([a == b for a, b in zip(hits, wanted)]).double().mean() >= .9
        assert (one.search(z[300:310], 3)[1] != torch.arange(300, 310)[:, None]).all()
        one.add(1.01 * z[400:450] + .01, range(400, 450), replace=True)
        assert all(len(set(row)) == 10 for row in one.search(z[400:450], 10)[1].tolist())
        one.remove(one.ids[:900])
        assert (one.search(z, 10)[1] >= one.ids.min()).all()
    assert torch.equal(index.search(z, 5)[1], again.search(z, 5)[1])


@each_kind
def test_same_calls_give_same_results(kind, tmp_path):
    "To the last bit of the files, whatever number of threads faiss is allowed"
    z, answers, names, threads = rows(1500), [], [], faiss.omp_get_max_threads()
    for allowed in (1, 4):
        index = EmbeddingIndex(16, kind, effort=10)
        try:
            faiss.omp_set_num_threads(allowed)
            index.add(z[:1200])
            index.search(z[:1])
            index.add(z[1200:])
            answers.append(index.search(z, 10))
        finally:
            faiss.omp_set_num_threads(threads)
        names.append([p.name for p in data_files(index.save(tmp_path/str(allowed)))])
    assert torch.equal(answers[0][0], answers[1][0]) and torch.equal(answers[0][1], answers[1][1])
    assert names[0] == names[1]                          # each file is named by its hash


def test_settings_may_change():
    z = rows(2000, groups=2000)
    index = EmbeddingIndex(16, 'ivfpq', effort=12)
    index.add(z)
    few = index.recall(300)
    shares = [index.recall(50, seed=seed) for seed in (1, 1, 2, 3, 4)]
    assert shares[0] == shares[1] and len(set(shares)) > 1     # each seed asks other rows
    index.effort = 256
    assert index.recall(300) > few
    index.kind = 'flat'
    assert index.recall(300) == 1
    index.kind = 'ivf'
    with pytest.raises(ValueError, match="flat, hnsw, ivfpq, got 'ivf'"):
        index.search(z[:1])


def test_refused():
    index = EmbeddingIndex(3)
    index.add(torch.eye(3), [5, 6, 7], ['a', 'b', 'c'])
    nan = torch.tensor([[1., 2., 3.], [0., float('nan'), 0.]])
    wrong = [
        (dict(z=torch.eye(2)), 'z: expected rows of 3 numbers, got rows of 2'),
        (dict(z=nan), 'z: expected finite numbers, got NaN or infinity in row 1'),
        (dict(z=nan.nan_to_num(torch.inf)), 'got NaN or infinity in row 1'),
        (dict(z=torch.eye(3), ids=[5, 8, 9]), 'ids: expected new ids, 5 is here already'),
        (dict(z=torch.eye(3), ids=[8, 9]), 'ids: expected one for each of the 3 rows, got 2'),
        (dict(z=torch.eye(3), ids=[8, 9, 8]), 'ids: expected each id once, got 8 twice'),
        (dict(z=torch.eye(3), metadata=[1]), 'metadata: expected one for each of the 3 rows, got 1'),
        (dict(z=torch.eye(3), metadata=[1, 2, {3}]), 'metadata: expected JSON values'),
    ]
    for arguments, message in wrong:
        with pytest.raises(ValueError, match=message):
            index.add(**arguments)
    assert index.ids.tolist() == [5, 6, 7] and index.metadata() == ['a', 'b', 'c']
    assert torch.equal(index.vectors(), torch.eye(3))
    wrong = [dict(), dict(z=torch.eye(3), ids=[5]), dict(z=torch.eye(3), k=0), dict(ids=[9]),
             dict(z=torch.eye(3), k=1.5), dict(z=nan), dict(images=torch.eye(3)),
             dict(z=torch.ones(3))]
    for arguments in wrong:
        with pytest.raises(ValueError, match='expected'):
            index.search(**arguments)
    for ids in ([5, 9], [-1]):
        with pytest.raises(ValueError, match='expected'):
            index.remove(ids)
    with pytest.raises(ValueError, match='expected'):
        EmbeddingIndex(3).recall()
    assert index.metadata([7, -1]) == ['c', None]
    assert index.search(torch.zeros(1, 3), 4)[1].tolist() == [[5, 6, 7, -1]]
    assert index.search(torch.eye(3), 2, where=[])[1].tolist() == [[-1, -1]] * 3
    assert EmbeddingIndex(3).search(torch.eye(3), 2)[1].tolist() == [[-1, -1]] * 3


@pytest.mark.parametrize('size', [1e200, 1e-200, 5e-324])
def test_squares_neither_overflow_nor_vanish(size):
    index = EmbeddingIndex(2)
    index.add(torch.tensor([[3 * size, 4 * size], [size, 0.]], dtype=torch.float64))
    assert torch.allclose(index.vectors(), torch.tensor([[.6, .8], [1., 0.]]))


def test_rounding_takes_no_similarity_beyond_1():
    z = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    index = EmbeddingIndex(3)
    index.add(z)
    x = index.vectors()
    assert (x.double().square().sum(1).float() > 1).any()       # rows a little too long
    assert index.search(z, 1)[0].max() == 1
    assert index.search(-z, 500)[0].min() == -1


def test_metadata_is_a_copy():
    index, value = EmbeddingIndex(2), {'tags': ['one']}
    index.add(torch.eye(2), metadata=[value, None])
    value['tags'].append('two')
    index.metadata([0])[0]['tags'].append('three')
    assert index.metadata([0]) == [{'tags': ['one']}]


def test_pictures_and_embedders(tmp_path):
    torch.manual_seed(0)
    def network():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).eval()
    net, other, images = network(), network(), torch.rand(600, 1, 4, 4)
    index = EmbeddingIndex(4, embedder=net)
    index.add(index.embed(images))
    assert index.search(images=images[7], k=1)[1].tolist() == [[7]]
    again = EmbeddingIndex.open(index.save(tmp_path/'index'))
    with pytest.raises(ValueError, match='got none'):
        again.search(images=images[:1])
    with pytest.raises(ValueError, match='embedder: expected the one with hash'):
        again.search(images=images[:1], embedder=other)
    with pytest.raises(ValueError, match='got one without a hash'):
        again.search(images=images[:1], embedder=lambda x: x.flatten(1)[:, :4])
    with pytest.raises(ValueError, match='embedder: expected the one with hash'):
        EmbeddingIndex.open(tmp_path/'index', embedder=other)
    assert again.search(images=images[:9], k=1, embedder=net)[1][:, 0].tolist() == list(range(9))
    net.train()
    with pytest.raises(ValueError, match='evaluation mode'):
        again.search(images=images[:1], embedder=net)
    net.eval()[1].weight.data.add_(.1)
    with pytest.raises(ValueError, match='embedder: expected the one with hash'):
        index.search(images=images[:1])

    class Named:
        sha256 = 'a name of its own'
        def embed(self, images):
            return images.flatten(1)[:, :4]
    named = EmbeddingIndex(4, embedder=Named())
    assert named.embedder_hash == 'a name of its own' and named.embed(images[:3]).shape == (3, 4)


@each_kind
def test_saved_and_opened(kind, tmp_path):
    z = rows(1200)
    index = EmbeddingIndex(16, kind, effort=33)
    index.add(z, metadata=[{'n': i, 'text': 'ü\u2028"'} for i in range(1200)])
    index.remove(range(1190, 1200))
    again = EmbeddingIndex.open(index.save(tmp_path/'new'/'index'))
    assert (again.dim, again.kind, again.effort, len(again)) == (16, kind, 33, 1190)
    assert again.metadata() == index.metadata() and torch.equal(again.vectors(), index.vectors())
    for a, b in zip(index.search(z, 5), again.search(z, 5)):
        assert torch.equal(a, b)
    assert again.add(z[:2]).tolist() == [1200, 1201]                     # never 1190 again
    folder = tmp_path/'new'/'index'
    theirs = ['my_index.json.bak', 'notes', 'index.json.old', 'x' + data_files(folder)[0].name]
    for name in theirs:
        (folder/name).touch()
    names = sorted(p.name for p in folder.iterdir())
    unfinished = [f'.index.json.{os.getpid()}', f'.{data_files(folder)[0].name}.12345']
    for name in unfinished:
        (folder/name).touch()
    index.save(folder)
    assert sorted(p.name for p in folder.iterdir()) == names    # nobody else's file, no litter
    empty = EmbeddingIndex.open(EmbeddingIndex(3, kind).save(tmp_path/'empty'))
    assert len(empty) == 0 and empty.add(torch.eye(3)).tolist() == [0, 1, 2]


class Harm:
    "A pickle that would leave a trace if anything opened it"
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def data_files(folder):
    return sorted(p for p in folder.iterdir() if not p.name.startswith('.'))


def sealed(folder, **facts):
    "Other facts in index.json, with a hash that is right"
    path = folder/'index.json'
    content = json.loads(path.read_text()) | facts
    del content['sha256']
    path.write_text(json.dumps(content | dict(sha256=storage.hash_of(content))))


def forged(folder, role, data):
    "Other contents of a file, by somebody who can also make hashes"
    facts, contents = index_store.read(folder)
    index_store.write(folder, facts, contents | {role: data})


def refused(folder, words):
    "In one line with these words and what to do"
    with pytest.raises(ValueError, match=words) as error:
        EmbeddingIndex.open(folder)
    assert '\n' not in str(error.value) and str(error.value).endswith('; make the index again')


def test_damaged_files_are_refused_by_name(tmp_path):
    index, folder = EmbeddingIndex(8, 'hnsw'), tmp_path/'index'
    harm = pickle.dumps(Harm(tmp_path/'trace'))
    index.add(rows(100, 8), metadata=list(range(100)))
    index.save(folder)
    assert len(data_files(folder)) == 5
    for file in data_files(folder):
        whole = file.read_bytes()
        middle = len(whole) // 2
        changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1:]
        for bad in (b'', whole[:middle], whole[:-2], whole + b'x', changed, harm):
            file.write_bytes(bad)
            refused(folder, file.name)
        file.unlink()
        with pytest.raises(FileNotFoundError, match=file.name):
            EmbeddingIndex.open(folder)
        if hasattr(os, 'mkfifo') and file.name != 'index.json':
            os.mkfifo(file)                              # opening it would wait for a writer
            refused(folder, f'{file.name}: expected a file')
            file.unlink()
        file.write_bytes(whole)
    facts = (folder/'index.json').read_text()
    assert '"effort": 64' in facts
    (folder/'index.json').write_text(facts.replace('"effort": 64', '"effort": 65'))
    refused(folder, 'index.json')
    (folder/'index.json').write_text(facts)
    for role in index_store.read(folder)[1]:
        for bad in (harm, index_store.read(folder)[1][role][:99], b'[]', b'null', b'', b'IxFI'):
            forged(folder, role, bad)
            refused(folder, role)
            index.save(folder)
    assert not (tmp_path/'trace').exists()
    assert len(EmbeddingIndex.open(folder)) == 100


def as_bytes(index):
    return faiss.serialize_index(index).tobytes()


def row_files():
    "Rows that no index saves"
    x = np.eye(8, dtype=np.float32)[np.arange(100) % 8]
    for what in ('nan', 'long', 'distance', 'narrow'):
        y, kind = x.copy(), faiss.IndexFlatL2 if what == 'distance' else faiss.IndexFlatIP
        y[7] *= dict(nan=np.nan, long=1.1).get(what, 1)
        y = np.ascontiguousarray(y[:, :4]) if what == 'narrow' else y
        searcher = kind(y.shape[1])
        searcher.add(y)
        yield what, as_bytes(searcher)


ids = torch.arange(100)
wrong_ids = {
    'negative': dict(ids=ids - 200, owners=ids - 200),
    'beyond next_id': dict(ids=ids + 1, owners=ids + 1),
    'twice': dict(ids=ids // 2),
    'too few': dict(ids=ids[:99]),
    'fractions': dict(ids=ids.float()),
    'another name': dict(ids=ids, more=ids),
    'owner out of range': dict(ids=ids, owners=ids + (ids == 5) * 1000),
    'owner twice': dict(ids=ids, owners=ids - (ids == 5) * 1),
    'owner below -1': dict(ids=ids, owners=ids - (ids == 5) * 9),
}


wrong_contents = {
    **{f'rows {name}': ('rows.faiss', data) for name, data in row_files()},
    **{f'ids {name}': ('ids.safetensors', save_tensors(
        {role: t.clone() for role, t in (dict(owners=ids) | tensors).items()}))
       for name, tensors in wrong_ids.items()},
    'no list': ('metadata.json', b'{"0": 1}'),
    'a short list': ('metadata.json', b'[1, 2]'),
}


@pytest.mark.parametrize('fault', wrong_contents)
def test_contents_that_do_not_fit_are_refused_by_name(fault, tmp_path):
    "Hashes are right: only a look at the contents finds them"
    index, (role, data) = EmbeddingIndex(8, 'hnsw'), wrong_contents[fault]
    index.add(torch.eye(8)[ids % 8])
    forged(index.save(tmp_path), role, data)
    refused(tmp_path, f'{role}: expected')


@pytest.mark.parametrize('entry, becomes', [(777, 10**6), (777, 778), (777, -1)])
def test_entries_of_cells_are_checked(entry, becomes, tmp_path):
    index = EmbeddingIndex(8, 'ivfpq')
    index.add(rows(1200, 8))
    index.save(tmp_path)
    whole = index_store.read(tmp_path)[1]['structure.faiss']
    sought = np.array([entry], dtype=np.int64).tobytes()
    assert whole.count(sought) == 1
    place = whole.find(sought)
    changed = bytearray(whole)
    changed[place:place + 8] = np.array([becomes], dtype=np.int64).tobytes()
    assert as_bytes(faiss.deserialize_index(np.frombuffer(changed, np.uint8))) == bytes(changed)
    forged(tmp_path, 'structure.faiss', bytes(changed))
    refused(tmp_path, 'structure.faiss: expected each of the 1,200 entries in one cell')


@pytest.mark.parametrize('cells, dim', [(9000, 8), (0, 8), (None, 12)])
def test_centres_of_cells_are_checked(cells, dim, tmp_path):
    "Others would be searched, and cells asked for that are not there"
    index = EmbeddingIndex(8, 'ivfpq')
    index.add(rows(1200, 8))
    index.save(tmp_path)
    whole = index_store.read(tmp_path)[1]['structure.faiss']
    searcher = faiss.deserialize_index(np.frombuffer(whole, np.uint8))
    centres = faiss.IndexFlatIP(dim)
    centres.add(rows(searcher.nlist if cells is None else cells, dim).numpy())
    searcher.quantizer = centres
    forged(tmp_path, 'structure.faiss', as_bytes(searcher))
    refused(tmp_path, 'structure.faiss: expected a ')


@pytest.mark.parametrize('facts', [
    dict(dim='8'), dict(dim=True), dict(dim=0), dict(dim=9), dict(kind=['flat']), dict(kind='ivf'),
    dict(kind='flat'), dict(kind='ivfpq'), dict(effort=0), dict(effort=1.5), dict(rows=7),
    dict(rows=None), dict(next_id=99), dict(next_id=-1), dict(next_id='100'), dict(embedder=7),
    dict(trained=None), dict(trained=-1), dict(trained='many'), dict(pictures=[]),
    dict(pictures={}), dict(pictures=dict(root=3)), dict(files=[]), dict(files={}),
    dict(files=dict.fromkeys(('rows.faiss', 'ids.safetensors', 'metadata.json'))),
], ids=str)
def test_facts_that_cannot_be_are_refused(facts, tmp_path):
    index = EmbeddingIndex(8, 'hnsw')
    index.add(torch.eye(8)[ids % 8])
    index.save(tmp_path)
    sealed(tmp_path, **facts)
    refused(tmp_path, ': expected')


@pytest.mark.parametrize('change', [
    dict(name='..'), dict(name='../rows.faiss'), dict(name='/etc/passwd'), dict(name=3),
    dict(name=''), dict(size='many'), dict(sha256=None)], ids=str)
def test_files_of_an_odd_description_are_refused(change, tmp_path):
    index = EmbeddingIndex(8)
    index.add(torch.eye(8))
    index.save(tmp_path/'index')
    shutil.copy(next((tmp_path/'index').glob('*.rows.faiss')), tmp_path/'rows.faiss')
    files = json.loads((tmp_path/'index'/'index.json').read_text())['files']
    files['rows.faiss'] |= change
    sealed(tmp_path/'index', files=files)
    refused(tmp_path/'index', f'index.json: {next(iter(change))}: expected')
    del files['rows.faiss']
    sealed(tmp_path/'index', files=files)
    refused(tmp_path/'index', 'index.json: files: expected files for rows.faiss')


def test_missing_folder(tmp_path):
    for folder in (tmp_path/'nowhere', tmp_path):
        with pytest.raises(FileNotFoundError, match='a file index.json, found none'):
            EmbeddingIndex.open(folder)


def versions():
    "Two indexes whose rows, ids, metadata and structure all tell them apart"
    both = []
    for n, sign in ((20, 1), (30, -1)):
        index = EmbeddingIndex(4, 'hnsw')
        z = sign * torch.ones(n, 4) + torch.eye(4).repeat(10, 1)[:n] / 2
        index.add(z, [n * i for i in range(n)], [n] * n)
        index.search(torch.ones(1, 4))
        both.append(index)
    return both


def is_one_of_two(index):
    n = len(index)
    sign = {20: 1, 30: -1}[n]
    return (index.ids.tolist() == [n * i for i in range(n)] and index.metadata() == [n] * n
            and bool((index.vectors().sign() == sign).all())
            and len(index._approximation.owners) == n)


def save_forever(folder, started):
    faiss.omp_set_num_threads(1)
    both = versions()
    started.set()
    while True:
        for index in both:
            index.save(folder)


@pytest.mark.long
@needs_fork
def test_kill_while_saving_leaves_old_or_new(tmp_path):
    folder, random, seen = tmp_path/'index', np.random.default_rng(0), set()
    versions()[0].save(folder)
    longest = .05                                       # seconds until the kill
    for attempt in range(250):
        if attempt >= 50:
            if len(seen) == 2:
                break
            longest *= 1.05                             # where a disk is slow one takes longer
        started = served.Event()
        child = served.Process(target=save_forever, args=(folder, started))
        child.start()
        assert started.wait(60)
        time.sleep(random.uniform(.001, min(longest, 5)))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        index = EmbeddingIndex.open(folder)
        assert is_one_of_two(index)
        seen.add(len(index))
    assert seen == {20, 30}
    versions()[0].save(folder)
    assert len(list(folder.iterdir())) == 5    # index.json and four files: no litter


@needs_fork
def test_readers_see_old_or_new_while_another_process_saves(tmp_path):
    folder, started, seen = tmp_path/'index', served.Event(), []
    versions()[0].save(folder)
    child = served.Process(target=save_forever, args=(folder, started))
    child.start()

    def read():
        end = time.monotonic() + 60
        while len(seen) < 300 or len(set(seen)) < 2 and time.monotonic() < end:
            index = EmbeddingIndex.open(folder)
            seen.append(len(index) if is_one_of_two(index) else 'a mixture')

    try:
        assert started.wait(60)
        with ThreadPoolExecutor() as pool:
            for reader in [pool.submit(read) for _ in range(3)]:
                reader.result()
        assert child.is_alive()
    finally:
        child.kill()
        child.join()
    assert set(seen) == {20, 30}


def test_reader_that_loses_to_the_same_content_again(tmp_path, monkeypatch):
    "Between the two looks of a reader others saved something else and then the same once more"
    old, new = versions()
    folder, whole, lost = tmp_path/'index', storage.read_files, []
    old.save(folder)

    def losing(*given):
        if len(lost) < 3:
            lost.append(given)
            new.save(folder)
            old.save(folder)
            raise FileNotFoundError(2, 'gone', 'a file')
        return whole(*given)

    monkeypatch.setattr(storage, 'read_files', losing)
    assert len(EmbeddingIndex.open(folder)) == 20 and len(lost) == 3


def test_failed_save_keeps_the_old_index(tmp_path, failing_write):
    "Every write fails once, as on a full disk"
    old, new = versions()
    folder = tmp_path/'index'
    for failing in range(5):
        old.save(folder)
        with failing_write(failing, OSError('no space left')):
            with pytest.raises(OSError, match='no space left'):
                new.save(folder)
        assert len(EmbeddingIndex.open(folder)) == 20
        new.save(folder)
        assert len(EmbeddingIndex.open(folder)) == 30 and len(data_files(folder)) == 5


def test_of_two_that_save_at_once_one_is_refused(tmp_path, monkeypatch):
    old, new = versions()
    folder, whole, came, answers = tmp_path/'index', storage.write_atomically, [], []
    with ThreadPoolExecutor() as pool:
        def write(path, data):
            if not came:                                 # the other one, while this one writes
                came.append(path)
                answers.append(pool.submit(new.save, folder).exception())
            whole(path, data)

        monkeypatch.setattr(storage, 'write_atomically', write)
        old.save(folder)
    assert isinstance(answers[0], BlockingIOError)
    assert f'expected no other writer, got process {os.getpid()}' in str(answers[0])
    assert len(EmbeddingIndex.open(folder)) == 20
    new.save(folder)
    assert len(EmbeddingIndex.open(folder)) == 30


@pytest.mark.long
def test_another_library_that_patches_faiss_changes_nothing():
    "pytorch-metric-learning imports `faiss.contrib.torch_utils`, which replaces faiss' methods"
    script = """
import {}
import torch
from dml_nb.search import EmbeddingIndex
z = torch.randn(1200, 8, generator=torch.Generator().manual_seed(0))
for kind in ('flat', 'hnsw', 'ivfpq'):
    index = EmbeddingIndex(8, kind)
    index.add(torch.cat([z, z[:1].expand(300, 8)]), ids=range(1500))
    found = [index.search(z[:5], k=4, where=where)[1].tolist() for where in (None, range(99))]
    print(*found)
"""
    answers = [
        subprocess.run([sys.executable, '-c', script.format(module)],
                       capture_output=True, text=True, check=True).stdout
        for module in ('faiss', 'faiss.contrib.torch_utils')
    ]
    assert answers[0] == answers[1] and answers[0].count('\n') == 3


def test_rows_removed_before_they_joined_the_structure():
    torch.manual_seed(0)
    index = EmbeddingIndex(8, 'hnsw')
    index.add(torch.randn(50, 8))
    index.search(torch.randn(1, 8))
    new = index.add(torch.randn(2, 8))
    index.remove(new[:1])
    assert new[1] in index.search(ids=[0], k=50)[1]


def test_a_row_that_came_after_a_removal_leaves_alone():
    z = rows(101)
    index = EmbeddingIndex(16, 'hnsw')
    index.add(z[:100])
    index.search(z[:1])
    index.remove([3])
    index.search(z[:1])
    index.add(z[100:], [500])
    index.search(z[:1])
    index.remove([500])
    kept = torch.arange(100)[torch.arange(100) != 3]
    assert torch.equal(index.search(z[kept], 1)[1][:, 0], kept)
