"""The class of a picture: the same for every command, and nothing merged or lost without a word.

Trees of folders, the same in a zip and in a table are made on the spot; what each picture's class
should be is worked out here a second time, from its path alone."""
import json
import shlex
import shutil
import sys
import types
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

from dml_nb.data import load_data, read_image
from dml_nb.data.classes import is_picture
from dml_nb.evaluation import evaluate as measure
from dml_nb.experiments.recipe import Recipe, load_images
from dml_nb.search import EmbeddingIndex, index_folder, load_pictures, search_folder
from dml_nb.search.mistakes import Collection
from dml_nb.search.pictures import hold_back, located, rule_for
from dml_nb.training import create_embedder, load_embedder, save_embedder

quick = settings(derandomize=True, max_examples=30, deadline=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture])
names = st.sampled_from(['a', 'b', 'c d', 'A', '1', '\u00b9', 'caf\u00e9', 'cafe\u0301'])
trees = st.dictionaries(                                    # folders from the root -> pictures
    st.lists(names, max_size=3).map(tuple), st.integers(1, 2), min_size=2, max_size=7)
depths = st.sampled_from(['leaf', 1, 2, 3])
number = iter(range(10**9))


def painted(root, tree, clutter=()):
    "The tree as files: {path from the root: class at each depth}"
    files = [(*place, f'{k}.png') for place, count in tree.items() for k in range(count)]
    for file in files:
        path = root.joinpath(*file)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new('L', (4, 4), 9).save(path)
    for file in clutter:
        root.joinpath(file).write_text('no picture')
    return ['/'.join(file) for file in files]


def class_by_hand(file, depth):
    *place, _ = unicodedata.normalize('NFC', file).split('/')
    if depth == 'leaf':
        return '/'.join(place)
    return '/'.join(place[:depth]) if len(place) >= depth else ''


def heard(call):
    "What it gives, and what is said meanwhile"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        found = call()
    return found, ' | '.join(str(warning.message) for warning in said)


def labelled(images, root):
    "{path from the root: class} of a set"
    paths = [str(images.source.paths[i])[len(str(root)) + 1:] for i in images.index]
    return {path: images.classes[y] for path, y in zip(paths, images.labels)}


def all_labels(data, base, rule):
    "What is read by the functions behind each command, which must agree; and all that was said"
    lenient, said = heard(lambda: load_pictures(data, 4, **rule_for(data, {}, **rule)))
    read = labelled(lenient, base)
    place = {name: rule[name] for name in rule if name == 'images'}
    for facts, given in ((rule, place), ({}, rule)):        # from the training, or typed
        (_, files, known), more = heard(lambda: located(data, facts, **given))
        labels = [fact['label'] for fact in known]
        assert {f: c for f, c in zip(files, labels) if c} == read
        said += more
    if 'depth' in rule:
        compared, _ = heard(lambda: load_images(Recipe(data=str(data), size=4, **rule)))
        assert labelled(compared, base) == read
    return read, said


@quick
@given(tree=trees, depth=depths, kind=st.sampled_from(['folder', 'zip']))
def test_no_command_merges_or_loses_in_silence(tmp_path, tree, depth, kind):
    root = tmp_path/f'{next(number)}'
    files = painted(root, tree, ['notes.txt', 'film.MP4'])
    wanted = {file: class_by_hand(file, depth) for file in files}
    read = {file: c for file, c in wanted.items() if c}
    data = base = root
    if kind == 'zip':
        tree = tree | {('b', 'b'): 1, ('A',): 1}            # so that no folder is around them all
        files = painted(root, tree)
        wanted = {file: class_by_hand(file, depth) for file in files}
        read = {file: c for file, c in wanted.items() if c}
        data = base = Path(shutil.make_archive(str(root), 'zip', root))
    strict = depth not in ('leaf', 1) and len(read) < len(files)
    try:
        found, said = all_labels(data, base, dict(depth=depth))
    except ValueError as error:
        assert len(set(read.values())) < 2 or strict, error
        return
    assert found == read
    assert 'files are not read: 1 .mp4, 1 .txt' in said or '1 .txt, 1 .mp4' in said
    holding = {place for place in tree if place}
    if len(set(read.values())) < len(holding):              # something is merged or left out
        of = f'{len(holding)} folders hold pictures; depth {depth} makes {len(set(read.values()))} '
        assert of in said, said
    lost = len(files) - len(read)
    assert not lost or f'{lost} picture' in said, said


@quick
@given(tree=trees, apart=st.sampled_from(',;\t'), absolute=st.booleans(),
       called=st.sampled_from([('file', 'label'), ('my path', 'species; or, kind')]))
def test_a_table_says_the_same_as_its_folders(tmp_path, tree, apart, absolute, called):
    root = tmp_path/f'{next(number)}'
    files = painted(root, tree)
    wanted = {file: class_by_hand(file, 'leaf') or 'none' for file in files}
    quoted = [[*called]] + [[str(root/file) if absolute else file, c] for file, c in wanted.items()]
    table = tmp_path/f'{root.name}.csv'
    table.write_text('\n'.join(apart.join(f'"{cell}"' for cell in row) for row in quoted))
    rule = dict(columns=dict(zip(('file', 'label'), called)), images=str(root))
    try:
        found, _ = all_labels(table, root, rule)
    except ValueError as error:
        assert len(set(wanted.values())) < 2, error
        return
    assert found == wanted


@pytest.fixture
def groceries(tmp_path):
    "Folders of unequal depth, a table that says otherwise, and files of other kinds"
    tree = {('fruit', 'apple', 'red'): 12, ('fruit', 'apple', 'green'): 12, ('fruit', 'pear'): 12,
            ('milk',): 12, ('bread', 'white'): 12, ('bread', 'brown'): 12}
    files = painted(tmp_path/'photos', tree, ['fruit/list.csv', 'photo.heic'])
    draw = np.random.default_rng(0)
    for k, file in enumerate(files):
        shade = 12 * (k // 12) + draw.integers(0, 150, (16, 16))
        Image.fromarray(shade.astype('uint8')).save(tmp_path/'photos'/file)
    rows = [f'{tmp_path/"photos"/file};kind {k // 12}' for k, file in enumerate(files)]
    (tmp_path/'table.csv').write_text('\n'.join(['path;species', *rows]))
    shutil.make_archive(str(tmp_path/'zipped'), 'zip', tmp_path, 'photos')
    np.savez(tmp_path/'z.npz', z=draw.normal(size=(72, 4)), labels=np.arange(72) // 12)
    return tmp_path


@pytest.fixture
def dml(dml):
    "The command in this process, which has to succeed: its standard output and its stderr"
    def call(*words):
        run = dml(*words)
        assert run.returncode == 0, run.stderr
        return run.stdout, run.stderr

    return call


of_table = ['--column', 'label=species', '--column', 'file=path', '--images', 'photos']


@pytest.mark.parametrize('data, given, count', [
    ('photos', [], 6), ('photos', ['--depth', 1], 3), ('zipped.zip', [], 6),
    ('table.csv', of_table, 6), ('features:z.npz', [], 6), ('digits', [], 10)])
def test_each_command_that_is_printed_works(data, given, count, groceries, dml, monkeypatch):
    "From the training to the last one that names another; all of them mean the same classes"
    monkeypatch.chdir(groceries)
    words = ['train', data, '--epochs', 1, '--classes', 2, '--out', 'model']
    if data not in ('digits', 'features:z.npz'):
        words += ['--size', 16, '--grey']
    seen = []
    out, said = dml(*words, *given)
    while 'next: ' in out:
        following = shlex.split(out.splitlines()[-1].partition('next: ')[2])
        assert following[0] == 'dml'
        seen.append(following[1])
        out, said = dml(*following[1:])
        assert 'were decided' not in said
    assert seen == (['index', 'search'] if seen[0] == 'index' else ['evaluate'])
    assert (seen[0] == 'index') == (data not in ('digits', 'features:z.npz'))
    images = given[-2:] if data == 'table.csv' else []
    out, said = dml('evaluate', 'model', data, *images)
    assert f'of {count} classes' in out and 'were decided' not in said
    if seen[0] == 'index':
        assert len(set(Collection('runs/index').names)) == count
        assert Collection('runs/index').file(3).read_bytes()
        dml('embed', 'model', data, '--out', 'of.npz', *images)
        assert len(set(np.load('of.npz')['labels'].tolist())) == count
        seen = Collection('runs/index')
        answer, = search_folder('runs/index', seen.root/seen.paths[0])
        assert answer['query'] not in [found['path'] for found in answer['found']]


@pytest.fixture
def without_heif(monkeypatch):
    "As where pillow-heif is not installed and nothing else registered its endings"
    monkeypatch.setitem(sys.modules, 'pillow_heif', None)
    monkeypatch.setattr(Image, 'EXTENSION', {
        ending: kind for ending, kind in Image.EXTENSION.items() if kind != 'HEIF'})
    monkeypatch.setattr(Image, 'OPEN', {
        kind: opener for kind, opener in Image.OPEN.items() if kind != 'HEIF'})
    monkeypatch.setattr(Image, 'ID', [kind for kind in Image.ID if kind != 'HEIF'])


def test_unequal_folders_and_other_files_are_said_first(groceries, dml, monkeypatch, without_heif):
    monkeypatch.chdir(groceries)
    train = ['train', 'photos', '--epochs', 1, '--classes', 2, '--out', 'model', '--size', 16,
             '--body', 'small_convnet']
    _, said = dml(*train)
    uneven = ('photos: 6 folders hold pictures; depth leaf makes 6 classes of them. They lie at '
              'depths 1 to 3; --depth 1 would make 3 and --depth 2 would make 4')
    assert uneven in said
    assert '1 .csv' in said and '1 .heic' in said and 'pip install "dml_nb[heif]"' in said
    for words in (['evaluate', 'model', 'photos'], ['index', 'model', 'photos'],
                  ['embed', 'model', 'photos'], ['compare', '--data', 'photos', '--epochs', 1,
                                                 '--seeds', 1, '--losses', 'triplet', '--size', 8,
                                                 '--body', 'small_convnet']):
        _, said = dml(*words)
        assert uneven in said and '1 .heic' in said, words
    _, said = dml('index', 'model', 'table.csv', *of_table)
    assert 'decided by the column species of a table; those that the model was trained with were ' \
        'decided by folders, at depth leaf' in said
    _, said = dml('evaluate', 'model', 'photos', '--depth', 2)
    assert 'depth 2 makes 4' in said and 'were decided by folders, at depth leaf' in said


def test_queries_are_searched_in_a_gallery(groceries, dml, monkeypatch):
    "Classes are the same where their names are, and one that is not there is counted"
    monkeypatch.chdir(groceries)
    save_embedder(create_embedder('small_convnet', 4, 1, 16, seed=0), 'model', depth='leaf')
    shutil.copytree('photos/milk', 'new/milk')
    shutil.copytree('photos/bread/white', 'new/bread/rye')
    out, said = dml('evaluate', 'model', 'new', '--gallery', 'photos', '--json')
    found = json.loads(out)
    assert (found['pictures'], found['unmatched'], found['gallery']) == (24, 12, 'photos')
    assert found['measures']['gallery'] == 72 and found['measures']['recall@1'] == 1
    names = {row['name']: row['unmatched'] for row in found['worst_classes']}
    assert names == {'milk': 0, 'bread/rye': 12}
    assert 'find themselves' not in said
    out, said = dml('evaluate', 'model', 'photos', '--gallery', 'photos')
    assert 'photos, all: 72 pictures of 6 classes, searched in photos: 72 pictures of 6' in out
    assert '72 of 72 queries are also in the gallery' in said


def test_nothing_like_it(groceries, dml, monkeypatch):
    "Of strangers the wished share finds something; said in text, in JSON and on a page"
    monkeypatch.chdir(groceries)
    save_embedder(create_embedder('small_convnet', 4, 1, 16, seed=0), 'model', depth='leaf')
    files = sorted(map(str, Path('photos/milk').iterdir()))
    shutil.copytree('photos/milk', 'new/milk')
    words = ['evaluate', 'model', 'new', '--gallery', 'photos', '--false-accepts', .25]
    out, _ = dml(*words)
    assert 'if it were missing, 25 % would still find something' in out
    threshold = json.loads(dml(*words, '--json')[0])['threshold']
    assert threshold['queries'] == 12 and threshold['true_accepts'] == 1     # its copy is there
    Path('photos/milk').rename('milk')                      # now they are strangers
    dml('index', 'model', 'photos')
    strangers = [f'new/milk/{Path(file).name}' for file in files]
    answers = json.loads(dml('search', 'runs/index', *strangers, '--json')[0])
    assert sum(bool(answer['found']) for answer in answers) == 3
    nothing = [answer['nothing_like_it'] for answer in answers if not answer['found']]
    assert all(each['nearest']['similarity'] < each['least'] == threshold['similarity']
               for each in nothing)
    out, _ = dml('search', 'runs/index', *strangers, '--html', 'like.html')
    assert out.count('nothing like it') == Path('like.html').read_text().count('nothing like it') == 9
    out, _ = dml('search', 'runs/index', *strangers, '--least', -1, '--json')
    assert all(len(answer['found']) == 10 for answer in json.loads(out))


def test_a_burst_never_answers_itself(groceries, dml, monkeypatch):
    "As evaluate does it, with groups that are worked out here; and the training keeps them"
    monkeypatch.chdir(groceries)
    for k, path in enumerate(sorted(Path('photos').rglob('*.png'))):
        path.rename(path.with_name(f'{k // 3} {path.name}'))            # three in a burst
    words = ['train', 'photos', '--epochs', 1, '--classes', 2, '--out', 'model', '--size', 16]
    dml(*words, '--grey', '--group', 'name:^\\d+', '--per-class', 2)
    record = json.loads(Path('model/training.json').read_text())
    assert record['settings']['group'] == 'name:^\\d+'
    embedder = load_embedder('model/embedder')
    images = load_pictures('photos', 16, mode='L')
    paths = [images.source.paths[i] for i in images.index]
    burst = [int(path.name.split()[0]) for path in paths]
    z = embedder.embed(images, progress=False)
    by_hand = measure(z, images.labels, groups=burst)
    for given in ([], ['--group', 'name:^\\d+']):              # kept, and given
        found = json.loads(dml('evaluate', 'model', 'photos', '--json', *given)[0])
        assert found['groups'] == 24
        assert found['measures']['map@r'] == pytest.approx(by_hand['map@r'], abs=1e-6)
    assert by_hand['map@r'] != measure(z, images.labels)['map@r']
    out, said = dml('evaluate', 'model', 'photos', '--part', 'held-out')
    held = hold_back(load_pictures('photos', 16, mode='L', group='name:^\\d+'), .2, 0)
    assert f'{len(held[1])} pictures' in out and not set(held[0].groups) & set(held[1].groups)
    shutil.copytree('photos/milk', 'new/milk')              # one class, which is enough
    for group, copies in (('folder', True), ('name:.*', False)):    # a copy has the same name
        found = json.loads(dml('evaluate', 'model', 'new', '--gallery', 'photos', '--json',
                               '--group', group)[0])
        if copies:
            assert found['measures']['recall@1'] == 1
        else:
            milk = np.flatnonzero([path.parent.name == 'milk' for path in paths])
            wanted = measure(z[milk], images.labels[milk], z, images.labels,
                             groups=[paths[i].name for i in milk],
                             gallery_groups=[path.name for path in paths])
            assert found['measures']['map@r'] == pytest.approx(wanted['map@r'], abs=1e-6)


def test_heic_is_read_where_it_can_be(tmp_path, monkeypatch, without_heif):
    "A stand-in for pillow-heif, which says that it opens what begins with its letters"
    painted(tmp_path/'photos', {('a',): 1, ('b',): 1})
    (tmp_path/'photos'/'a'/'2.HEIC').write_bytes(b'heic: a picture')
    with pytest.warns(UserWarning, match='1 file is not read: 1 .heic. HEIC is read after pip'):
        assert len(load_data(tmp_path/'photos')) == 2
    with pytest.raises(ValueError, match='2.HEIC: .* without pip install "dml_nb.heif."'):
        read_image(tmp_path/'photos'/'a'/'2.HEIC')

    from PIL import ImageFile

    class Opened(ImageFile.ImageFile):
        format = 'HEIF'

        def _open(self):
            self._size, self._mode, self.tile = (4, 4), 'L', []

        def load(self):
            self.im = Image.new('L', (4, 4), 77).im
            return Image.Image.load(self)

    def register():
        Image.register_open('HEIF', Opened, lambda start: start.startswith(b'heic'))
        Image.register_extension('HEIF', '.heic')

    module = types.ModuleType('pillow_heif')
    module.register_heif_opener = register
    monkeypatch.setitem(sys.modules, 'pillow_heif', module)
    assert is_picture('a/2.HEIC')
    images = load_data(tmp_path/'photos', mode='L')
    assert len(images) == 3 and round(255 * float(images[1][0].mean())) == 77


def test_heic_as_telephones_write_it(tmp_path):
    heif = pytest.importorskip('pillow_heif')
    heif.register_heif_opener()
    Image.new('RGB', (64, 64), (200, 100, 0)).save(tmp_path/'photo.heic')
    red, green, blue = read_image(tmp_path/'photo.heic').mean((1, 2)).tolist()
    assert abs(red - .78) < .03 and abs(green - .39) < .03 and blue < .05


def test_a_model_of_before_there_was_a_rule_reads_folders_as_they_lie(groceries):
    embedder = create_embedder('small_convnet', 4, 1, 16, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        index_folder(embedder, groceries/'photos', groceries/'index')
    assert len({fact['label'] for fact in EmbeddingIndex.open(groceries/'index').metadata()}) == 6
