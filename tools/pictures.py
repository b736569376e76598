"""Draw the mark of the site, nbs/images/favicon.png, and the card that shared links show,
nbs/images/card.png.

    python tools/pictures.py

The mark is what a loss does: three points of one class pulled together, a stranger pushed away. The
card is a map of handwritten digits (scikit-learn's) by t-SNE of their pixels, every point the digit
itself."""
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE

from dml_nb.plots import BLUE, ORANGE, PALETTE

matplotlib.use('agg')
images = Path(__file__).resolve().parents[1]/'nbs'/'images'
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


if __name__ == '__main__':
    favicon()
    card()
