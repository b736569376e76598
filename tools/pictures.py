"""Draw the mark of the site, nbs/images/favicon.png, the card that shared links show,
nbs/images/card.png, and the picture of the first page, nbs/images/neighbours.png.

    python tools/pictures.py            # the mark and the card
    python tools/pictures.py neighbours # train some minutes, write nbs/images/neighbours.json, draw

The mark is what a loss does: three points of one class pulled together, a stranger pushed away. The
card is a map of handwritten digits (scikit-learn's) by t-SNE of their pixels, every point the digit
itself. The first page shows searches before and after training on the letters that come with the
package: the queries are drawn at random."""
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot as plt
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE

from dml_nb.core import unit
from dml_nb.data import jitter_images, load_data
from dml_nb.evaluation import evaluate
from dml_nb.losses import InfoNCE
from dml_nb.plots import BLUE, ORANGE, PALETTE
from dml_nb.support.results import write_json
from dml_nb.training import metric_dataloaders, metric_learner

matplotlib.use('agg')
root = Path(__file__).resolve().parents[1]
images = root/'nbs'/'images'
GROUND, INK = '#10202c', '#f4f7f9'


def canvas(width, height):
    "A figure of so many pixels, and axes that fill it"
    fig = plt.figure(figsize=(width / 100, height / 100), dpi=100)
    ax = fig.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    ax.axis('off')
    return fig, ax


def mark(ax, left, bottom, side):
    "Three blue points tied to their middle, and an orange one that leaves them"
    friends = np.array([[.15, .3], [.3, .72], [.62, .2]]) * side + (left, bottom)
    middle, stranger = friends.mean(0), np.array([.84, .84]) * side + (left, bottom)
    for friend in friends:
        ax.plot(*zip(friend, middle), color=BLUE, linewidth=.055 * side, zorder=1)
    arrow = dict(arrowstyle='-|>', color=ORANGE, linewidth=.045 * side, shrinkA=0, shrinkB=0,
                 mutation_scale=.28 * side)
    way = stranger - middle
    ax.annotate('', middle + .85 * way, middle + .28 * way, arrowprops=arrow)
    ax.scatter(*friends.T, s=(.15 * side) ** 2 * 2, color=BLUE, zorder=2)
    ax.scatter(*stranger, s=(.15 * side) ** 2 * 2, color=ORANGE, zorder=2)


def favicon():
    fig, ax = canvas(256, 256)
    mark(ax, 8, 8, 240)
    fig.savefig(images/'favicon.png', transparent=True)
    plt.close(fig)
    large = Image.open(images/'favicon.png')
    large.resize((64, 64), Image.Resampling.LANCZOS).save(images/'favicon.png', optimize=True)


def card():
    pixels, digits = load_digits(return_X_y=True)
    places = TSNE(random_state=0, perplexity=40).fit_transform(pixels / 16)
    places = (places - places.min(0)) / np.ptp(places, axis=0) * (550, 560) + (610, 35)
    shown = []                                                      # those that do not overlap
    for which, place in enumerate(places):
        if all(np.hypot(*(place - places[other])) > 23 for other in shown):
            shown.append(which)
    fig, ax = canvas(1200, 630)
    fig.set_facecolor(GROUND)
    for which in shown:
        ink = pixels[which].reshape(8, 8) / 16
        colour = np.array(matplotlib.colors.to_rgb(PALETTE[digits[which] % len(PALETTE)]))
        colour = .7 * colour + .3                                   # lighter: the ground is dark
        tile = np.concatenate([np.broadcast_to(colour, (8, 8, 3)), ink[..., None]], axis=-1)
        x, y = places[which]
        ax.imshow(tile, extent=(x - 12, x + 12, y - 12, y + 12), zorder=2, interpolation='bilinear')
    ax.set(xlim=(0, 1200), ylim=(0, 630), aspect='auto')
    mark(ax, 66, 410, 140)
    ax.text(70, 290, 'dml_nb', color=INK, fontsize=76, fontweight='bold', va='baseline')
    for line, text in enumerate(('Deep metric learning', 'as a book that runs')):
        ax.text(72, 205 - 52 * line, text, color=INK, fontsize=32, va='baseline')
    said = 'Every loss derived, proved, tested and fast'
    ax.text(72, 90, said, color=INK, fontsize=17, alpha=.8, va='baseline')
    fig.savefig(images/'card.png', facecolor=GROUND)
    plt.close(fig)
    picture = Image.open(images/'card.png').convert('RGB').quantize(128)
    picture.save(images/'card.png', optimize=True)


def trained_on_letters(glyphs, unseen, epochs=12, lr=6e-3):
    "Unit rows of unseen letters by a network trained on Latin ones; writes the measures down"
    known, settings = glyphs.subset(glyphs.split == 'train'), dict(
        arch='small_convnet', loss='InfoNCE()', dim=64, epochs=epochs, lr=lr, classes=20,
        per_class=4, augment='jitter_images')
    with tempfile.TemporaryDirectory() as folder:
        dls = metric_dataloaders(known, unseen, 20, 4, augment=jitter_images, device='cpu',
                                 path=Path(folder))
        learn = metric_learner(dls, 'small_convnet', InfoNCE(), 64, seed=0)
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(epochs, lr)
        z, _ = learn.embed()
    write_measures(z, glyphs, unseen, settings)
    return z


def write_measures(z, glyphs, unseen, settings):
    reports = dict(before=evaluate(unseen.images().flatten(1), unseen.labels),
                   after=evaluate(z, unseen.labels))
    measures = {name: {key: report[key] for key in ('recall@1', 'map@r')}
                for name, report in reports.items()}
    what = 'searches among letters that were not in training, by pixels and after training'
    write_json(images/'neighbours.json', dict(what=what, settings=settings) | measures,
               seed=0, data=dict(name=glyphs.name, sha256=glyphs.sha256()))


def nearest(z, queries, k):
    "The k nearest rows of each query, itself left out"
    S = z[queries] @ z.T
    S[torch.arange(len(queries)), queries] = -torch.inf
    return S.topk(k).indices


def neighbours(z, unseen, rows=4, k=6):
    "Queries drawn at random, with what is nearest to each by pixels and after training"
    pixels, labels = unseen.images(), torch.as_tensor(unseen.labels)
    queries = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:rows]
    fig = plt.figure(figsize=(15.6, 4.6), dpi=100, facecolor='white')
    side = 1 / (2 * k + 2.2)

    def tile(left, row, which, color=None, style='-'):
        place = (left + .06 * side, .9 - (row + 1) * .225 + .012, .88 * side, .2)
        ax = fig.add_axes(place, xticks=[], yticks=[])
        ax.imshow(pixels[which, 0], cmap='gray_r', vmin=0, vmax=1)
        for spine in ax.spines.values():
            spine.set(visible=color is not None, color=color, linestyle=style, linewidth=4)

    fig.text(side / 2, .93, 'search', ha='center', fontsize=19)
    for row, query in enumerate(queries):
        tile(0, row, query)
    parts = (('before: nearest by pixels', unit(pixels.flatten(1)), 1.3),
             ('after: nearest by the trained network', z, k + 1.9))
    for title, embedded, start in parts:
        fig.text((start + k / 2) * side, .93, title, ha='center', fontsize=19)
        for row, found in enumerate(nearest(embedded, queries, k)):
            for column, which in enumerate(found):
                is_right = labels[which] == labels[queries[row]]
                frame = (BLUE, '-') if is_right else (ORANGE, ':')
                tile((start + column) * side, row, which, *frame)
    fig.savefig(images/'neighbours.png')
    plt.close(fig)
    picture = Image.open(images/'neighbours.png').convert('RGB').quantize(64)
    picture.save(images/'neighbours.png', optimize=True)


if __name__ == '__main__':
    if sys.argv[1:] == ['neighbours']:
        letters = load_data('glyphs')
        others = letters.subset(letters.split == 'test')
        neighbours(trained_on_letters(letters, others), others)
    elif sys.argv[1:]:
        sys.exit(f'expected neighbours or nothing, got {" ".join(sys.argv[1:])!r}')
    else:
        favicon()
        card()
