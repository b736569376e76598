"""The pages of `dml browse` in a real browser, as a person uses them.

They need Chromium or Chrome and playwright; without them they are skipped."""
import contextlib
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from dml_nb.data import load_data
from dml_nb.search import browse
from dml_nb.search.browser import create_app
from dml_nb.search.mistakes import Collection
from dml_nb.search import EmbeddingIndex, index_folder, search_folder
from dml_nb.training import create_embedder

programs = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable']
chromium = next(filter(None, map(shutil.which, programs)), None)
against_hanging = 120       # seconds; nothing is asserted about time


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "Two indexes of the same 40 pictures in 4 classes, with names that want care"
    root = tmp_path_factory.mktemp('browse')
    torch.manual_seed(0)
    paths, labels = [], torch.arange(40) % 4
    for i, label in enumerate(labels.tolist()):
        path = root/'pictures'/f'class "{label}" né'/f"{i} 'x' & <b>.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (20 + i, 30), (60 * label, 5 * i, 90)).save(path)
        paths.append(path)
    centres = torch.eye(8)[labels]
    for name, noise in (('good', .1), ('bad', .6)):
        index = EmbeddingIndex(8)
        index.add(centres + noise * torch.randn(40, 8), metadata=[
            dict(path=path.relative_to(root/'pictures').as_posix(), label=path.parent.name)
            for path in paths])
        index._pictures = dict(root=str(root/'pictures'))
        index.save(root/name)
    return root


@contextlib.contextmanager
def served(*words):
    "The command as a user gives it; Ctrl-C must end it in peace"
    program = [sys.executable, '-c', 'from dml_nb.cli import main; main()']
    running = subprocess.Popen([*program, 'browse', *map(str, words), '--port', '0'],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield running.stdout.readline().split()[0]
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=against_hanging)
    assert 'Traceback' not in errors and running.returncode in (0, 130)


@pytest.fixture(scope='module')
def address(folders):
    with served(folders/'good', '--other', folders/'bad') as at:
        yield at


@pytest.fixture(scope='module')
def crowd_index(tmp_path_factory):
    "120 pictures in 30 classes of long names, each class taken for the next one"
    root = tmp_path_factory.mktemp('crowd')
    names = [f'{i:03}.Yellow_headed_Blackbird of the {"Plains" * (1 + i % 4)}' for i in range(30)]
    labels = np.arange(120) % 30
    angles = 2 * np.pi * (labels + 1.4 * (np.arange(120) // 30 == 3)) / 30
    known = []
    for i, (label, angle) in enumerate(zip(labels, angles)):
        path = root/'pictures'/names[label]/f'IMG_20230514_1422{i:02}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (24, 18), (8 * int(label), 2 * i, 90)).save(path)
        known.append(dict(path=f'{path.parent.name}/{path.name}', label=names[label]))
    index = EmbeddingIndex(3)
    z = np.stack([np.cos(angles), np.sin(angles), .2 + .001 * np.arange(120)], 1)
    index.add(torch.tensor(z).float(), metadata=known)
    index._pictures = dict(root=str(root/'pictures'))
    index.save(root/'out')
    return root/'out'


@pytest.fixture(scope='module')
def crowd(crowd_index):
    with served(crowd_index) as at:
        yield at


def status(url):
    try:
        return urllib.request.urlopen(url).status
    except urllib.error.HTTPError as error:
        return error.code


def test_addresses(address):
    assert status(f'{address}/item/39') == 200
    for wrong in ('item/40', 'item/..%2f..%2fetc%2fpasswd', 'thumb/99', 'nowhere', 'static/../x'):
        assert status(f'{address}/{wrong}') == 404, wrong
    for wrong in ('item/x', 'item/-1', 'weights?loss=%3Cb%3E', 'worst?page=x'):
        assert status(f'{address}/{wrong}') == 400, wrong
    asked = urllib.request.Request(address, headers={'Host': 'rebound.example'})
    assert status(asked) == 400


def settled_text(client, address):
    "A page that computes, once it is done"
    for study in client.studies:
        study.finished()
        study.join(against_hanging)
    return client.get(address).text


@pytest.fixture(scope='module')
def client(folders):
    "Of the same pictures, the other index has one less, and the rest in another order"
    bad = EmbeddingIndex.open(folders/'bad')
    order = torch.arange(39, 0, -1)
    turned = EmbeddingIndex(8)
    turned.add(bad.vectors(order), metadata=bad.metadata(order))
    turned._pictures = bad._pictures
    turned.save(folders/'turned')
    collections = [Collection(folders/name) for name in ('good', 'turned')]
    with pytest.warns(UserWarning, match='39 are in both, of 40 in .*good and 39 in .*turned'):
        opened = TestClient(create_app(*collections))
    opened.seen, opened.other = collections
    opened.studies = [collection.studied for collection in collections]
    return opened


def test_pictures_of_the_other_index_keep_their_names(client):
    place = {path: i for i, path in enumerate(client.seen.paths)}
    twin = client.other.paths.index(client.seen.paths[5])
    wanted = [place[client.other.paths[j]] for j, _, _ in client.other.neighbours(twin, 24)]
    shown = client.get('/item/5').text.split('neighbours in the other embedding')[1]
    assert [int(i) for i in re.findall(r'src="/thumb/(\d+)"', shown)] == wanted
    assert 'it is not in the other index' in client.get('/item/0').text
    raw = client.get('/map.bin?of=other').content
    places = np.frombuffer(raw[:8 * 40], '<f4').reshape(-1, 2)
    assert np.allclose(places[5], client.other.xy[twin]) and (places[0] == -9).all()


def test_an_index_of_other_pictures_is_told_apart(client, folders, recwarn):
    for address in ('/', '/item/5', '/compare'):
        assert '39 are in both' in settled_text(client, address), address
    assert 'are in both' not in client.get('/weights').text
    same = TestClient(create_app(*[Collection(folders/name) for name in ('good', 'bad')]))
    assert 'are in both' not in same.get('/').text
    assert not [warning for warning in recwarn if 'other' in str(warning.message)]
    moved = folders/'moved'
    index = EmbeddingIndex.open(folders/'bad')
    index._pictures = dict(root=str(folders))
    index.save(moved)
    with pytest.warns(UserWarning, match='^other: The pictures are in .* taken for the same'):
        create_app(Collection(folders/'good'), Collection(moved))


def test_a_thumbnail_is_of_its_picture_after_the_index_was_made_again(folders, tmp_path):
    "Kept copies are known by their pictures and not by places in an index that has gone"
    index = EmbeddingIndex.open(folders/'good')
    index.save(tmp_path)
    before = [TestClient(create_app(Collection(tmp_path))).get(f'/thumb/{i}').content
              for i in range(40)]
    turned = EmbeddingIndex(8)
    turned.add(index.vectors().flip(0), metadata=index.metadata()[::-1])
    turned._pictures = index._pictures
    turned.save(tmp_path)
    after = [TestClient(create_app(Collection(tmp_path))).get(f'/thumb/{i}').content
             for i in range(40)]
    assert after == before[::-1] and before[0] != before[39]


def test_gained_and_lost(client):
    text = settled_text(client, '/compare')
    pattern = r'AP ([\d.]+) → ([\d.]+)'
    gained, lost = [
        [float(here) - float(there) for there, here in re.findall(pattern, part)]
        for part in text.split('Most gained')[1].split('Most lost')]
    assert len(gained) == len(lost) == 30
    assert gained[0] > .1 and gained[0] > lost[0]         # this index has the better embedding
    assert np.diff(gained).max() < .011 and np.diff(lost).min() > -.011      # but for rounding
    here, there = (study.report.measure('map').numpy() for study in client.studies)
    twins = [(client.seen.paths.index(path), j) for j, path in enumerate(client.other.paths)]
    better = sum(here[i] > there[j] for i, j in twins)
    assert f'Of 39 pictures {better} are found better' in text


def few_pictures(root, colours):
    "An index of one-coloured pictures in two classes, each colour being of the picture of its name"
    for name, colour in colours.items():
        path = os.fsencode(root/'pictures') + b'/' + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as file:
            Image.new('RGB', (9, 9), colour).save(file, 'png')
    paths = [os.fsdecode(name) for name in sorted(colours)]
    index = EmbeddingIndex(4)
    index.add(torch.eye(4)[:len(paths)] + .1,
              metadata=[dict(path=path, label=path.split('/')[0]) for path in paths])
    index._pictures = dict(root=str(root/'pictures'))
    index.save(root/'pictures'/'out')
    seen = Collection(root/'pictures'/'out')
    return TestClient(create_app(seen)), seen


def colour_of(answer):
    return Image.open(io.BytesIO(answer.content)).resize((1, 1)).getpixel((0, 0))


def test_small_copies_are_of_the_index_as_it_is_and_nothing_is_written(tmp_path):
    colours = {b'a/2.png': (250, 0, 0), b'a/3.png': (0, 250, 0), b'b/4.png': (0, 0, 250)}
    client, _ = few_pictures(tmp_path, colours)
    before = sorted(tmp_path.rglob('*'))
    first = client.get('/thumb/0')
    assert colour_of(first)[0] > 240 and sorted(tmp_path.rglob('*')) == before
    known = {'if-none-match': first.headers['etag']}
    assert client.get('/thumb/0', headers=known).status_code == 304
    assert client.get('/thumb/1', headers=known).status_code == 200
    client, _ = few_pictures(tmp_path, {b'a/1.png': (9, 9, 9), **colours})     # all others move on
    os.utime(tmp_path/'pictures'/'a'/'1.png', (0, 0))
    moved = client.get('/thumb/0', headers=known)
    assert first.headers['cache-control'] == 'no-cache' and moved.status_code == 200
    assert max(colour_of(moved)) < 20 and colour_of(client.get('/thumb/1'))[0] > 240


def test_names_that_are_no_utf8_are_shown(tmp_path):
    colours = {b'a/1.png': (9, 0, 0), b'caf\xe9/n\xff.png': (0, 9, 0), b'b/3.png': (0, 0, 9),
               b'caf\xe9/2.png': (9, 9, 0)}
    client, seen = few_pictures(tmp_path, colours)
    study = seen.studied
    study.finished()
    study.join(against_hanging)
    for address in ('/', '/worst', '/labels', '/classes', '/weights', '/weights.json?classes=2',
                    '/map.json', '/map.bin', '/thumb/3', '/image/3', '/item/0', '/item/3'):
        answer = client.get(address)
        assert answer.status_code == 200, (address, answer.text[:300])
    assert 'n?.png' in client.get('/item/3').text
    assert client.get('/map.json').json()['names'][2] == 'caf\udce9'


def test_pictures_without_a_class_are_of_none(tmp_path):
    "They are shown, but they are neither right nor wrong, nor a class of their own"
    paths = ['1.png', '2.png', 'a/3.png', 'a/4.png', 'b/5.png', 'b/6.png', '7.png']
    rows = torch.eye(3)[[0, 0, 0, 0, 1, 1, 1]] + .1 * torch.rand(7, 3)
    index = EmbeddingIndex(3)
    index.add(rows, metadata=[dict(path=path, label=path.rpartition('/')[0]) for path in paths])
    index._pictures = dict(root=str(tmp_path))
    index.save(tmp_path/'index')
    for path in paths:
        (tmp_path/path).parent.mkdir(exist_ok=True)
        Image.new('L', (9, 9)).save(tmp_path/path)
    seen = Collection(tmp_path/'index')
    client = TestClient(create_app(seen))
    assert '7 pictures, 2 classes' in client.get('/').text
    assert seen.labels.tolist() == [-1, -1, 0, 0, 1, 1, -1] and seen.class_name(0) == ''
    assert [right for _, _, right in seen.neighbours(1, 6)] == [''] * 6
    assert {paths[j]: right for j, _, right in seen.neighbours(2, 6)} == {
        'a/4.png': 'right', 'b/5.png': 'wrong', 'b/6.png': 'wrong', '1.png': '', '2.png': '',
        '7.png': ''}
    seen.studied.finished()
    seen.studied.join(against_hanging)
    assert {row['class'] for row in seen.studied.report.per_class('map@r')} == {0, 1}
    assert not {0, 1, 6} & {*seen.studied.worst().tolist(), *seen.studied.doubted().tolist()}
    by_hand = torch.nn.functional.normalize(rows) @ torch.nn.functional.normalize(rows[2:3]).T
    by_hand = by_hand[[3, 4, 5], 0].tolist()                # the labelled neighbours of a/3.png
    doubt = (by_hand[1] + by_hand[2] - by_hand[0]) / sum(by_hand)
    assert seen.studied.doubt[2] == pytest.approx(doubt, abs=1e-4)
    found = client.get('/weights.json?per_class=2').json()
    assert found['labels'] == ['a', 'a', 'b', 'b'] and found['pictures'] == [2, 3, 4, 5]
    assert client.get('/map.json').json()['names'] == ['a', 'b', '']
    codes = np.frombuffer(client.get('/map.bin').content[8 * 7:], '<i4')
    assert codes.tolist() == [2, 2, 0, 0, 1, 1, 2]
    assert '1.png, no class' in client.get('/item/0').text
    flat = EmbeddingIndex(3)
    flat.add(rows[:3], metadata=[dict(path=path, label='') for path in paths[:3]])
    flat._pictures = index._pictures
    flat.save(tmp_path/'flat')
    client = TestClient(create_app(Collection(tmp_path/'flat')))
    assert '3 pictures, 0 classes' in client.get('/').text
    refused = client.get('/weights.json')
    assert refused.status_code == 400 and 'pictures with a class' in refused.json()['error']


def test_a_picture_may_be_a_link(tmp_path):
    client, _ = few_pictures(tmp_path, {name: (9, 0, 0) for name in (b'a/1', b'a/2', b'b/3')})
    os.rename(tmp_path/'pictures'/'a'/'1', tmp_path/'elsewhere.png')
    (tmp_path/'pictures'/'a'/'1').symlink_to(tmp_path/'elsewhere.png')
    assert client.get('/thumb/0').status_code == client.get('/image/0').status_code == 200
    assert client.get('/item/0').status_code == 200


@pytest.fixture(scope='module')
def browser():
    playwright = pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
    if chromium is None:
        pytest.skip('no Chromium or Chrome was found')
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=['--no-sandbox'])
        yield opened
        opened.close()


@pytest.fixture(params=[pytest.param(look, marks=pytest.mark.long)
                        for look in ('light', 'dark', 'phone')])
def tab(browser, request):
    "A page on which no error may come up, and which is never wider than the screen"
    size = dict(width=390, height=800) if request.param == 'phone' else dict(width=1200, height=900)
    scheme = 'dark' if request.param == 'dark' else 'light'
    context = browser.new_context(viewport=size, color_scheme=scheme,
                                  has_touch=request.param == 'phone')
    page, errors = context.new_page(), []
    page.on('pageerror', lambda error: errors.append(str(error)))
    page.on('request', lambda sent: errors.append(sent.url) if '127.0.0.1' not in sent.url
            and not sent.url.startswith('data:') else None)
    yield page
    assert page.evaluate('document.documentElement.scrollWidth <= innerWidth')
    assert errors == []
    context.close()


def test_map_leads_to_neighbours_and_back(tab, address):
    tab.goto(address)
    tab.wait_for_selector('#map[data-ready=this]')
    assert tab.locator('#legend button').count() == 4
    tab.focus('#map')
    tab.keyboard.press('Enter')                         # the picture nearest to the middle
    tab.wait_for_url(re.compile('/item/'))
    assert tab.locator('figure.right').count() + tab.locator('figure.wrong').count() == 48
    assert ' & <b>.png' in tab.locator('h1').inner_text()
    before = tab.url
    tab.keyboard.press('ArrowRight')
    tab.wait_for_url(lambda url: url != before and '/item/' in url)
    tab.go_back()
    assert tab.url == before
    tab.keyboard.press('Escape')
    tab.wait_for_url(f'{address}/')


def test_lasso_and_zoom(tab, address):
    tab.goto(address)
    tab.wait_for_selector('#map[data-ready=this]')
    tab.click('#lasso')
    box = tab.locator('#map').bounding_box()
    left, top = box['x'] + 2, box['y'] + 2
    right, bottom = box['x'] + box['width'] - 2, box['y'] + box['height'] - 2
    tab.mouse.move(left, top)
    tab.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top + 5)):
        tab.mouse.move(x, y, steps=3)
    tab.mouse.up()
    assert tab.locator('#said').inner_text().startswith('40 pictures')
    assert tab.locator('#picked a').count() == 40
    assert tab.url == f'{address}/'                     # a lasso is no click
    tab.select_option('#which', 'other')
    tab.wait_for_selector('#map[data-ready=other]')
    for key in ('+', '+', '+', '0', 'l', 'Escape'):
        tab.focus('#map')
        tab.keyboard.press(key)
    assert tab.locator('#picked a').count() == 0


def open_map(tab, address):
    tab.goto(address)
    tab.wait_for_selector('#map[data-ready=this]')


def hues_of(tab):
    "The colours on the map, of which each class has one, in steps of ten degrees; grey is none"
    return set(tab.evaluate("""async () => {
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
        const map = document.getElementById('map'), found = new Map();
        const data = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
        for (let i = 0; i < data.length; i += 4) {
            const [r, g, b] = data.slice(i, i + 3), high = Math.max(r, g, b);
            const range = high - Math.min(r, g, b);
            if (data[i + 3] < 128 || range < 60) continue;
            const sixth = high === r ? (g - b) / range : high === g ? 2 + (b - r) / range
                : 4 + (r - g) / range;
            const hue = Math.round((sixth * 60 + 360) / 10) % 36 * 10;
            found.set(hue, (found.get(hue) || 0) + 1);
        }
        return [...found].filter(([, count]) => count > 8).map(([hue]) => hue);
    }"""))


def hue_of(tab, c):
    "Of a class by itself, as `hues_of` counts them"
    return round(tab.evaluate(f'hue({c})') / 10) % 36 * 10


def test_like_classes_have_like_colours(tab, crowd):
    "The classes of the crowd lie on a circle, one after the other"
    open_map(tab, crowd)
    hues = np.array(tab.evaluate('hues'))
    steps = np.abs(np.diff(hues))
    assert len(hues) == 30 and np.allclose(np.minimum(steps, 360 - steps), 12)
    dots = tab.locator('#legend .dot').evaluate_all(
        'all => all.map(dot => getComputedStyle(dot).backgroundColor)')
    assert len(set(dots)) == 30


def test_a_class_is_found_by_its_name(tab, crowd):
    open_map(tab, crowd)
    shown = tab.locator('#legend button:visible')
    tab.fill('#narrow', 'BLACKBIRD 02')
    assert shown.all_inner_texts() == [name for name in tab.evaluate('names') if '02' in name]
    assert 10 <= shown.count() < 30
    tab.fill('#narrow', '007')
    tab.keyboard.press('Enter')
    assert shown.count() == 1 and hues_of(tab) == {hue_of(tab, 7)}
    tab.fill('#narrow', '')
    assert shown.count() == 30 and tab.locator('#legend [aria-pressed=true]').count() == 1
    tab.fill('input[name=q]', 'plainsplains 1422')
    tab.keyboard.press('Enter')
    tab.wait_for_url(re.compile('/find'))
    wanted = sum('PlainsPlains' in name for name in [f'{"Plains" * (1 + i % 4)}' for i in range(30)])
    assert tab.locator('h2').all_inner_texts() == ['0 classes', f'{4 * wanted} pictures']
    tab.fill('input[name=q]', '007')
    tab.keyboard.press('Enter')
    tab.wait_for_selector('text=1 classes')
    tab.click('main a[href^="/class/"]')
    tab.wait_for_url(re.compile('/class/7'))
    assert tab.locator('figure').count() == 4


def test_points_become_pictures_where_it_is_zoomed_in(tab, crowd):
    open_map(tab, crowd)
    drawn = "[...thumbs.values()].filter(img => img.complete && img.naturalWidth).length"
    assert tab.evaluate('thumbs.size') == 0
    tab.evaluate('zoom(3, px(11), py(11))')
    tab.wait_for_function(f'{drawn} > 0 && {drawn} === thumbs.size')
    squares = tab.evaluate('''uncovered(visible()).map(i => [xy[2 * i], xy[2 * i + 1]].map(
        x => Math.floor(x * place.side * view.s / 46)).join())''')
    assert len(squares) == len(set(squares)) > 1


def test_a_class_comes_forward(tab, crowd):
    open_map(tab, crowd)
    classes, kept = tab.locator('#legend button'), tab.locator('#legend [aria-pressed=true]')
    assert classes.count() == 30 and len(hues_of(tab)) > 12
    classes.nth(3).hover()
    own = hue_of(tab, 3)
    assert hues_of(tab) == {own} and kept.count() == 0
    tab.mouse.move(1, 1)
    assert len(hues_of(tab)) > 12
    classes.nth(3).click()
    classes.nth(4).click()                                  # too like it by itself
    tab.mouse.move(1, 1)
    shown = hues_of(tab)
    between = max(shown) - min(shown)
    assert len(shown) == 2 and own in shown and 40 <= between <= 320
    assert kept.count() == 2
    assert tab.locator('#kept').inner_text() == '2 of 30 classes kept in front'
    classes.nth(4).click()
    tab.mouse.move(1, 1)
    assert hues_of(tab) == {own} and kept.count() == 1
    tab.click('#release')
    assert len(hues_of(tab)) > 12 and kept.count() == 0


def test_a_class_comes_forward_by_keys(tab, crowd):
    open_map(tab, crowd)
    tab.focus('#narrow')
    tab.keyboard.press('Tab')
    assert hues_of(tab) == {hue_of(tab, 0)}
    for _ in range(3):
        tab.keyboard.press('ArrowRight')
    assert hues_of(tab) == {hue_of(tab, 3)}
    tab.keyboard.press('Space')
    tab.keyboard.press('Shift+Tab')
    assert hues_of(tab) == {hue_of(tab, 3)}
    tab.focus('#map')
    tab.keyboard.press('Escape')
    assert len(hues_of(tab)) > 12
    assert tab.locator('#legend [aria-pressed=true]').count() == 0


def test_the_name_of_the_class_at_a_point_is_shown(tab, crowd):
    open_map(tab, crowd)
    box = tab.locator('#map').bounding_box()
    name = tab.evaluate('names[codes[11]]')
    x, y = tab.evaluate('[px(11), py(11)]')
    tab.mouse.move(box['x'] + x + 1, box['y'] + y + 1)
    tip, ring = tab.locator('#tip'), tab.locator('#ring').bounding_box()
    assert tip.inner_text() == name
    assert abs(ring['x'] + ring['width'] / 2 - box['x'] - x) < 3
    assert abs(ring['y'] + ring['height'] / 2 - box['y'] - y) < 3
    inside = tip.bounding_box()
    assert box['x'] <= inside['x'] and box['y'] <= inside['y']
    assert inside['x'] + inside['width'] <= box['x'] + box['width']
    assert inside['y'] + inside['height'] <= box['y'] + box['height']
    tab.mouse.move(box['x'] + x, box['y'] - 9)
    assert not tip.is_visible()
    tab.focus('#map')
    tab.keyboard.press('+')
    assert tip.inner_text() == tab.evaluate('names[codes[nearest(...middle(), 1e9)]]')


def test_a_point_costs_no_measuring_and_pointing_no_drawing(tab, crowd):
    open_map(tab, crowd)
    tab.evaluate("""() => {
        window.measured = window.cleared = 0;
        const map = document.getElementById('map'), width = map.clientWidth;
        Object.defineProperty(map, 'clientWidth', {get: () => { measured++; return width; }});
        const clear = ctx.clearRect.bind(ctx);
        ctx.clearRect = (...box) => { cleared++; clear(...box); };
        draw();
        nearest(10, 10);
    }""")
    assert tab.evaluate('[measured, cleared]') == [1, 1]
    box = tab.locator('#map').bounding_box()
    for i in (11, 5):
        x, y = tab.evaluate(f'[px({i}), py({i})]')
        tab.mouse.move(box['x'] + x, box['y'] + y)
        assert tab.locator('#tip').is_visible()
    hues_of(tab)
    assert tab.evaluate('cleared') == 1


def test_the_list_of_classes_shows_that_it_scrolls(tab, crowd):
    open_map(tab, crowd)
    legend = tab.locator('#legend')
    legend.scroll_into_view_if_needed()
    wide, place, height, inner = legend.evaluate(
        'box => [box.scrollWidth, box.clientWidth, box.scrollHeight, box.clientHeight]')
    assert wide <= place and height > inner

    def edges():
        "Brightness of the padding at the upper edge, in the middle and at the lower edge"
        picture = Image.open(io.BytesIO(legend.screenshot())).convert('L')
        return [picture.getpixel((4, y)) for y in (3, picture.height // 2, picture.height - 4)]

    top, middle, bottom = edges()
    assert abs(top - middle) < 4 and abs(bottom - middle) > 15
    legend.evaluate('box => box.scrollTo(0, box.scrollHeight)')
    top, middle, bottom = edges()
    assert abs(top - middle) > 15 and abs(bottom - middle) < 4


def settled(tab, url):
    "A page that computes loads itself again until it is done"
    tab.goto(url)
    tab.wait_for_function("!document.body.innerText.includes('loads itself again')",
                          timeout=1000 * against_hanging)


def test_mistakes(tab, address):
    settled(tab, f'{address}/worst')
    assert tab.locator('figure').count() == 40
    settled(tab, f'{address}/classes')
    assert tab.locator('table').nth(1).locator('tbody tr').count() == 4
    settled(tab, f'{address}/labels')
    settled(tab, f'{address}/compare')
    assert tab.locator('h2').all_inner_texts() == ['Most gained', 'Most lost']
    tab.goto(f'{address}/nowhere')
    tab.click('text=back to the map')
    tab.wait_for_selector('#map[data-ready=this]')


def test_a_row_of_a_table_leads_to_its_pictures(tab, crowd):
    settled(tab, f'{crowd}/classes')
    row = tab.locator('table').first.locator('tbody tr').first
    name, other = row.locator('td').nth(0).inner_text(), row.locator('td').nth(1).inner_text()
    queries = row.locator('td').nth(2).inner_text()
    row.locator('td').nth(2).locator('a').click()
    tab.wait_for_url(re.compile('/class/'))
    assert tab.locator('h1').inner_text() == f'{name}, taken for {other}'
    assert tab.locator('figure').count() == int(queries) > 0
    tab.go_back()
    tab.locator('table').nth(1).locator('tbody a').first.click()
    assert tab.locator('figure').count() == 4


def test_a_doubtful_label_is_corrected_and_comes_as_a_table(
        tab, crowd, crowd_index, tmp_path):
    settled(tab, f'{crowd}/labels')
    first, second = tab.locator('figure').nth(0), tab.locator('figure').nth(1)
    paths = [each.locator('input').get_attribute('data-path') for each in (first, second)]
    first.locator('button').click()
    second.locator('input').fill('a new, "class"')
    second.locator('input').press('Tab')
    assert tab.locator('#said').inner_text() == '2 labels are corrected'
    tab.reload()                                        # they are still there
    like = first.locator('input').input_value()
    assert like and second.locator('input').input_value() == 'a new, "class"'
    with tab.expect_download() as coming:
        tab.click('#export')
    coming.value.save_as(tmp_path/'labels.csv')
    known = Collection(crowd_index)
    images = load_data(f"csv:{tmp_path/'labels.csv'}", images=known.root, size=8)
    labels = {path: images.classes[c] for path, c in zip(images.source.paths, images.labels)}
    changed = {path: label for path, label in labels.items()
               if label != known.class_name(known.paths.index(str(path).rpartition('pictures/')[2]))}
    assert {str(path).rpartition('pictures/')[2]: label for path, label in changed.items()} == {
        paths[0]: like, paths[1]: 'a new, "class"'}
    tab.click('#forget')
    assert tab.locator('#said').inner_text() == '0 labels are corrected'


def test_every_view_says_why_it_is_worth_a_look(client):
    for address in ('/', '/worst', '/classes', '/labels', '/weights', '/compare'):
        assert settled_text(client, address).count('class="why"') == 1, address


def test_every_number_of_a_table_is_seen(tab, crowd):
    settled(tab, f'{crowd}/classes')
    counts = tab.locator('table').evaluate_all('all => all.map(one => one.rows.length)')
    assert counts[0] > 5 and counts[1] == 31
    hidden = tab.locator('td, th').evaluate_all("""cells => cells.filter(cell => {
        const box = cell.getBoundingClientRect(), table = cell.closest('table');
        return box.left < 0 || box.right > innerWidth || cell.scrollWidth > cell.clientWidth
            || table.scrollWidth > table.clientWidth + 1;
    }).map(cell => cell.innerText)""")
    assert hidden == []
    assert '000.Yellow_headed_Blackbird of the Plains' in tab.locator('table').nth(1).inner_text()


def test_weights_follow_the_settings(tab, address):
    tab.goto(f'{address}/weights?loss=triplet')
    tab.wait_for_selector('#W[data-ready]')
    first = tab.locator('#said').inner_text()
    tab.fill('input[name=set_margin]', '1.5')
    tab.wait_for_function('text => document.getElementById("said").innerText !== text', arg=first)
    assert 'margin=1.5' in tab.locator('#said').inner_text()
    tab.fill('input[name=classes]', '90')
    tab.wait_for_selector('#said.error')
    assert '2 to 64 pictures' in tab.locator('#said').inner_text()
    tab.select_option('select[name=loss]', 'contrastive')
    tab.wait_for_url(re.compile('loss=contrastive'))


def test_the_weight_of_a_pair_is_told(tab, address):
    tab.goto(f'{address}/weights?loss=triplet&set_margin=1.5')
    tab.wait_for_selector('#W[data-ready]')
    found = tab.evaluate('found')
    canvas, told = tab.locator('#W'), tab.locator('#told')
    canvas.scroll_into_view_if_needed()
    side = canvas.bounding_box()['width'] / (len(found['W']) + 1)

    def is_told(i, j):
        anchor, other = (f"{found['names'][k]} ({found['labels'][k]})" for k in (i, j))
        _, weight, words = told.text_content().split(' ', 2)
        assert float(weight) == pytest.approx(found['W'][i][j], rel=6e-3)
        assert words == f'of the anchor {anchor} with {other}'
        box, screen = told.bounding_box(), tab.viewport_size
        assert 0 <= box['x'] and box['x'] + box['width'] <= screen['width']
        assert 0 <= box['y'] and box['y'] + box['height'] <= screen['height']
        assert told.evaluate('line => line.scrollWidth <= line.clientWidth')

    def place(i, j):
        return dict(x=(j + 1.5) * side, y=(i + 1.5) * side)

    assert told.text_content() == ''
    if tab.viewport_size['width'] == 390:
        canvas.tap(position=place(2, 9))                # a finger does not hover
    else:
        canvas.hover(position=place(2, 9))
    is_told(2, 9)
    assert found['W'][2][9] != 0
    canvas.focus()
    tab.keyboard.press('ArrowDown')
    is_told(3, 9)
    for _ in range(20):
        tab.keyboard.press('ArrowRight')
    is_told(3, len(found['W']) - 1)                     # and no farther
    tab.fill('input[name=set_margin]', '.2')
    tab.wait_for_function("found.loss.includes('margin=0.2')")
    before, found = found, tab.evaluate('found')
    assert found['W'][3][-1] != before['W'][3][-1]
    is_told(3, len(found['W']) - 1)


def test_a_picture_that_is_sent_is_searched_as_by_search_folder(folders, tmp_path):
    embedder = create_embedder('small_convnet', 8, 3, 24, 0, None)
    index_folder(embedder, folders/'pictures', tmp_path/'index')
    client = TestClient(create_app(Collection(tmp_path/'index')))
    content = io.BytesIO()
    Image.new('RGB', (30, 20), (120, 40, 90)).save(content, 'PNG')
    answer, = search_folder(tmp_path/'index', [content], k=24)
    shown = client.post('/like', files=dict(picture=('né <b>.png', content.getvalue()))).text
    seen = Collection(tmp_path/'index')
    wanted = [seen.paths.index(str(Path(found['path']).relative_to(seen.root)))
              for found in answer['found']]
    assert [int(i) for i in re.findall('/thumb/([0-9]+)', shown)] == wanted and len(wanted) == 24
    assert 'né &lt;b&gt;.png' in shown and not list(tmp_path.glob('picture*'))
    for bad in (dict(files=dict(picture=('x.png', b'none'))), dict(data=dict(picture='x')), {}):
        refused = client.post('/like', **bad)
        assert refused.status_code == 400 and 'expected a' in refused.text


def test_an_index_without_labels_has_a_map_and_says_what_is_missing(folders, tmp_path):
    index, known = EmbeddingIndex(8), EmbeddingIndex.open(folders/'good')
    index.add(known.vectors(), metadata=[fact | dict(label='') for fact in known.metadata()])
    index._pictures = dict(root=str(folders/'pictures'))
    index.save(tmp_path)
    client = TestClient(create_app(Collection(tmp_path)))
    for address in ('/', '/map.json', '/map.bin', '/item/3', '/like', '/find?q=x'):
        assert client.get(address).status_code == 200, address
    for address in ('/worst', '/classes', '/labels'):
        said = client.get(address)
        assert said.status_code == 404 and 'no picture of this index has a class' in said.text


def test_a_port_in_use_says_what_to_do(folders):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        with pytest.raises(OSError, match='0 takes any that is free'):
            browse(folders/'good', port=taken.getsockname()[1])
