"An index that follows its folder equals one made anew, whatever happens to the files"
import os
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

from dml_nb.data import pixels
from dml_nb.search import EmbeddingIndex, add_pictures, folders, index_folder, remove_pictures
from dml_nb.training import create_embedder

NAMES = [f'{label}/{i}.png' for label in 'abc' for i in range(3)]
NUMBERS = 'new', 'changed', 'gone', 'kept'
clock = iter(range(10**18, 2 * 10**18, 10**9))


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    "Times tell versions apart at once: each file that is written here gets one of its own"
    monkeypatch.setattr(pixels, 'SETTLED', -10**30)


@pytest.fixture(scope='module')
def embedder():
    return create_embedder('small_convnet', 8, 3, 12, 0, None)


def put(root, name, seed):
    "A picture of the seed; files of all seeds are of equal size"
    path = root/name
    path.parent.mkdir(parents=True, exist_ok=True)
    shade = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), 'uint8')
    Image.fromarray(shade).save(path.with_suffix('.bmp'))
    path.with_suffix('.bmp').rename(path)
    time = next(clock)
    os.utime(path, ns=(time, time))


def rows(out):
    "What an index holds: path -> label and row"
    index = EmbeddingIndex.open(out)
    return dict(zip((fact['path'] for fact in index.metadata()),
                    zip((fact['label'] for fact in index.metadata()), index.vectors())))


def check_same(first, second):
    found, wanted = rows(first), rows(second)
    assert {path: label for path, (label, _) in found.items()} == {
        path: label for path, (label, _) in wanted.items()}
    for path, (_, row) in found.items():
        torch.testing.assert_close(row, wanted[path][1], rtol=0, atol=1e-5)


step = st.tuples(st.sampled_from(['write', 'break', 'delete', 'move', 'table']),
                 st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(0, 9))


def happen(root, what, name, other, seed):
    "One thing that people do to a folder; gives the names that were written"
    path = root/name
    if what == 'write':
        put(root, name, seed)
    elif what == 'break' and path.exists():
        path.write_bytes(path.read_bytes()[:-1 - seed])
        os.utime(path, ns=(next(clock), next(clock)))
    elif what == 'delete':
        path.unlink(missing_ok=True)
    elif what == 'move' and path.exists():
        (root/other).parent.mkdir(exist_ok=True)
        path.replace(root/other)


@pytest.mark.filterwarnings('ignore')
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(rounds=st.lists(st.lists(step, max_size=4), min_size=1, max_size=4),
       kind=st.sampled_from([None, 'hnsw']), depth=st.sampled_from([None, 1, 2]))
def test_it_equals_an_index_made_anew(embedder, tmp_path_factory, rounds, kind, depth):
    root = tmp_path_factory.mktemp('follow')
    photos, decoded = root/'photos', []
    whole = folders.embed_readable

    def counted(embedder, files, **options):
        decoded.extend(files)
        return whole(embedder, files, **options)

    for name in NAMES[::2]:
        put(photos, name, len(name))
    put(photos, 'deep/er/1.png', 5)
    index_folder(embedder, photos, root/'index', kind)
    for number, steps in enumerate(rounds):
        before = rows(root/'index')
        for each in steps:
            happen(photos, *each)
        rule = dict(depth=depth if number % 2 else None)
        try:
            index_folder(embedder, photos, root/'anew', 'flat', fresh=True, **rule)
        except ValueError as error:                     # there is no picture
            with pytest.raises(ValueError, match=str(error)[:20]):
                index_folder(embedder, photos, root/'index', **rule)
            continue
        decoded.clear()
        with patch.object(folders, 'embed_readable', counted):
            found = index_folder(embedder, photos, root/'index', **rule)
        check_same(root/'index', root/'anew')
        now = rows(root/'index')
        assert EmbeddingIndex.open(root/'index').kind == (kind or 'flat')
        assert found['pictures'] == len(now) == sum(found[n] for n in ('new', 'changed', 'kept'))
        assert (found['new'], found['gone']) == (len(now.keys() - before), len(before.keys() - now))
        assert len(decoded) == found['new'] + found['changed'] + len(found['skipped'])
        assert index_folder(embedder, photos, root/'index', **rule)['kept'] == len(now)


@pytest.fixture
def photos(tmp_path, embedder):
    for i, name in enumerate(NAMES):
        put(tmp_path/'photos', name, i)
    index_folder(embedder, tmp_path/'photos', tmp_path/'index')
    return tmp_path/'photos'


def test_a_picture_replaced_by_one_of_equal_size_and_time_is_found(photos, embedder, tmp_path):
    "As copying tools do that keep times; then only the time of any change tells"
    there = photos/NAMES[0]
    found = there.stat()
    shutil.copy2(photos/NAMES[1], tmp_path/'other')
    os.utime(tmp_path/'other', ns=(found.st_mtime_ns, found.st_mtime_ns))
    os.replace(tmp_path/'other', there)
    assert there.stat().st_size == found.st_size and there.stat().st_mtime_ns == found.st_mtime_ns
    assert index_folder(embedder, photos, tmp_path/'index')['changed'] == 1


def test_a_file_that_has_only_just_changed_is_embedded_again(photos, embedder, tmp_path, monkeypatch):
    "It may change once more within the same tick of the clock"
    monkeypatch.setattr(pixels, 'SETTLED', 10**30)
    assert index_folder(embedder, photos, tmp_path/'index')['changed'] == 9
    monkeypatch.setattr(pixels, 'SETTLED', -10**30)
    assert index_folder(embedder, photos, tmp_path/'index')['changed'] == 9
    assert index_folder(embedder, photos, tmp_path/'index')['kept'] == 9


def test_an_index_of_another_network_is_replaced_and_of_another_folder_if_asked(photos, embedder, tmp_path):
    other = create_embedder('small_convnet', 8, 3, 12, 1, None)
    wider = create_embedder('small_convnet', 8, 3, 14, 0, None)         # the same weights
    for each in (other, wider, embedder):
        found = index_folder(each, photos, tmp_path/'index')
        assert [found[name] for name in NUMBERS] == [9, 0, 0, 0]
    shutil.copytree(photos, tmp_path/'copy')
    for other_folder in (tmp_path/'copy', photos/'a'):
        with pytest.raises(ValueError, match='holds an index of .*photos. --out'):
            index_folder(embedder, other_folder, tmp_path/'index')
    assert len(rows(tmp_path/'index')) == 9
    assert index_folder(embedder, tmp_path/'copy', tmp_path/'index', fresh=True)['new'] == 9
    with pytest.raises(ValueError, match='embedder: expected the one with hash'):
        add_pictures(other, photos, tmp_path/'index')
    (tmp_path/'index'/'index.json').write_text('damaged')
    assert index_folder(embedder, photos, tmp_path/'index')['new'] == 9


def test_added_pictures_that_are_gone_leave_it(photos, embedder, tmp_path):
    for i in range(2):
        put(tmp_path/'elsewhere', f'd/{i}.png', 80 + i)
    add_pictures(embedder, f"folder:{tmp_path/'elsewhere'}", tmp_path/'index')
    (tmp_path/'elsewhere'/'d'/'0.png').unlink()
    found = index_folder(embedder, photos, tmp_path/'index')
    assert found['gone'] == 1 and found['pictures'] == 10
    assert remove_pictures(tmp_path/'index', f"folder:{tmp_path/'elsewhere'}")['pictures'] == 9


@pytest.mark.parametrize('stop', [KeyboardInterrupt, OSError])
def test_an_update_that_is_stopped_at_any_write_is_the_old_one(
        stop, photos, embedder, tmp_path, failing_write):
    done = 0
    shutil.copytree(tmp_path/'index', tmp_path/'old')
    put(photos, NAMES[0], 77)
    put(photos, 'd/1.png', 78)
    (photos/NAMES[1]).unlink()
    index_folder(embedder, photos, tmp_path/'anew', fresh=True)
    for failing in range(6):
        try:
            with failing_write(failing, stop(28, 'no space left')):
                found = index_folder(embedder, photos, tmp_path/'index')
                done += 1
        except stop:
            check_same(tmp_path/'index', tmp_path/'old')
    assert done == 1 and [found[name] for name in NUMBERS] == [1, 1, 1, 7]
    check_same(tmp_path/'index', tmp_path/'anew')


def test_what_is_added_and_removed_is_as_if_indexed_so(photos, embedder, tmp_path):
    put(photos, 'b/new.png', 50)
    added = add_pictures(embedder, photos/'b'/'new.png', tmp_path/'index')
    assert [added[name] for name in NUMBERS] == [1, 0, 0, 9]
    index_folder(embedder, photos, tmp_path/'anew')
    check_same(tmp_path/'index', tmp_path/'anew')
    removed = remove_pictures(tmp_path/'index', photos/'b')
    assert (removed['gone'], removed['pictures']) == (4, 6)
    shutil.rmtree(photos/'c')
    removed = remove_pictures(tmp_path/'index', photos/'c'/'0.png')     # it is there no more
    assert removed['gone'] == 1 and not removed['first'].endswith('c/0.png')
    assert add_pictures(embedder, photos/'b', tmp_path/'index')['new'] == 4
    index_folder(embedder, photos, tmp_path/'index')
    index_folder(embedder, photos, tmp_path/'anew')
    check_same(tmp_path/'index', tmp_path/'anew')
    before = rows(tmp_path/'index')
    for wrong in (photos, tmp_path/'elsewhere'):
        with pytest.raises(ValueError, match='expected some of the 7 pictures'):
            remove_pictures(tmp_path/'index', wrong)
    assert rows(tmp_path/'index').keys() == before.keys()


def test_pictures_from_elsewhere_are_found_shown_and_stay(photos, embedder, tmp_path):
    from dml_nb.search.mistakes import Collection
    put(tmp_path/'more', 'z/1.png', 60)
    add_pictures(embedder, tmp_path/'more', tmp_path/'index')
    there = (tmp_path/'more'/'z'/'1.png').resolve()
    found = index_folder(embedder, photos, tmp_path/'index')
    assert [found[name] for name in NUMBERS] == [0, 0, 0, 10]
    answer, = folders.search_folder(tmp_path/'index', there, k=20)
    assert str(there) not in [each['path'] for each in answer['found']]
    answer, = folders.search_folder(tmp_path/'index', photos/NAMES[0], k=20)
    assert (str(there), 'z') in [(each['path'], each['label']) for each in answer['found']]
    collection = Collection(tmp_path/'index')
    assert Path(collection.file(collection.paths.index(str(there)))) == there
    with pytest.raises(ValueError, match='found none'):
        add_pictures(embedder, tmp_path/'index', tmp_path/'index')
    put(tmp_path/'more', 'z/1.png', 61)
    assert add_pictures(embedder, tmp_path/'more', tmp_path/'index')['changed'] == 1
    assert remove_pictures(tmp_path/'index', tmp_path/'more')['pictures'] == 9
