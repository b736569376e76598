"""Fine-tune SqueezeNet on half of the classes of a set and search among the other half.

    python tools/finetune_squeezenet.py                       # both sets, three seeds
    python tools/finetune_squeezenet.py --seeds 0 --out seed0.json      # one of three processes
    python tools/finetune_squeezenet.py --known seed?.json              # put them together

Wants `DML_NB_DATA` with the folders `weights`, `cub-50` and `cars196-train-crops`. Trains on the
train half of the set's own split, whose classes do not occur in the test half, and measures
retrieval within the test half, before and after: leave one out, cosine. "Before" is the same
network, frozen, with plain average pooling. The results file is written after every run, so that
an interruption loses one seed. Seeds that it holds already, or that the files after `--known`
hold, under the same settings, are not run again."""
import argparse
import hashlib
import json
import time
from pathlib import Path

import numpy as np
import torch
from fastai.callback.progress import ProgressCallback

from dml_nb.check import write_json
from dml_nb.data import load_data
from dml_nb.embedding import create_embedder, local_weights
from dml_nb.experiment import interval
from dml_nb.learner import metric_dataloaders, metric_learner
from dml_nb.losses import MultiSimilarity
from dml_nb.retrieval import evaluate

SETTINGS = dict(
    net='squeezenet1_1', size=112, fit='squash', pooling='average', head=None,
    loss='MultiSimilarity()', classes=12, per_class=4, epochs=5, lr=3e-4,
    augment='mirrored or not, shifted by up to 8 pixels', optimiser='Adam, one cycle')
MEASURED = ('recall@1', 'map@r')


def mirror_and_shift(x, generator):
    "Each picture mirrored with probability 1/2 and moved by up to 8 pixels, edges repeated."
    B, _, H, W = x.shape
    padded = torch.nn.functional.pad(x, (8, 8, 8, 8), mode='replicate')
    down, right = torch.randint(17, (2, B), generator=generator).tolist()
    mirrored = torch.rand(B, generator=generator) < .5
    moved = [picture[:, i:i + H, j:j + W] for picture, i, j in zip(padded, down, right)]
    return torch.stack([p.flip(2) if m else p for p, m in zip(moved, mirrored)])


def halves(name, settings):
    "The train and the test half of a set, and the set's hash."
    images = load_data(name, size=settings['size'], fit=settings['fit'])
    parts = [images.subset(images.split == part) for part in ('train', 'test')]
    assert not set(parts[0].labels) & set(parts[1].labels), 'classes overlap'
    return *parts, images.sha256()


def measure(embedder, images):
    "R@1 and MAP@R of an embedder."
    report = evaluate(embedder.embed(images, progress=False), images.labels)
    return {key: report[key] for key in MEASURED}


def create(settings):
    "The pretrained network, whose pooled features are the embedding."
    return create_embedder(
        settings['net'], size=settings['size'], seed=0, weights='imagenet', head=settings['head'],
        pooling=settings['pooling'], fit=settings['fit'])


def train(settings, seed, images, valid):
    "The network, fine-tuned on `images`; `valid` is looked at once an epoch and decides nothing."
    torch.manual_seed(seed)
    np.random.seed(seed)
    dls = metric_dataloaders(
        images, valid, settings['classes'], settings['per_class'], seed=seed,
        augment=mirror_and_shift, device='cpu')
    learn = metric_learner(dls, create(settings), MultiSimilarity())
    learn.remove_cb(ProgressCallback)
    learn.fit_one_cycle(settings['epochs'], settings['lr'])
    return learn.model


def main():
    "Run what is missing and write what is there."
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--sets', nargs='+', default=['cub-50', 'cars196-train-crops'])
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--set', nargs='*', default=[], metavar='NAME=JSON', help='other settings')
    parser.add_argument('--known', nargs='*', type=Path, default=[], help='files with other seeds')
    parser.add_argument('--out', type=Path, default='results/finetuned_squeezenet.json')
    options = parser.parse_args()
    others = (text.partition('=') for text in options.set)
    settings = SETTINGS | {name: json.loads(value) for name, _, value in others}
    weights = local_weights(settings['net'])
    settings['weights'] = [weights.name, hashlib.sha256(weights.read_bytes()).hexdigest()]
    torch.set_num_threads(1)

    rows, frozen, data = [], {}, {}
    for file in [options.out, *options.known]:
        known = json.loads(file.read_text()) if file.exists() else {}
        if known.get('settings') == settings:
            there = {(row['set'], row['seed']) for row in rows}
            rows += [row for row in known['rows'] if (row['set'], row['seed']) not in there]
            frozen |= known['frozen']
    for name in options.sets:
        train_half, test_half, data[name] = halves(name, settings)
        if name not in frozen:
            frozen[name] = measure(create(settings), test_half)
            print(name, 'frozen', frozen[name], flush=True)
        for seed in options.seeds:
            if not any(row['set'] == name and row['seed'] == seed for row in rows):
                start = time.process_time()
                model = train(settings, seed, train_half, test_half.subset(range(100)))
                seconds = time.process_time() - start
                rows.append(dict(set=name, seed=seed, seconds=seconds, **measure(model, test_half)))
                print(rows[-1], flush=True)
            write(options.out, settings, frozen, rows, data)


def write(out, settings, frozen, rows, data):
    "Everything so far."
    rows = sorted(rows, key=lambda row: (row['set'], row['seed']))
    summary = {}
    for name in dict.fromkeys(row['set'] for row in rows):
        found = [row for row in rows if row['set'] == name]
        summary[name] = {key: interval([row[key] for row in found]) for key in MEASURED}
    what = ("R@1 and MAP@R on unseen classes; summary: mean over seeds and half the width of "
            "Student's 95 % interval; seconds of one processor")
    content = dict(what=what, settings=settings, frozen=frozen, rows=rows, summary=summary)
    hashes = [dict(name=name, sha256=value) for name, value in data.items()]
    write_json(out, content, data=hashes)


if __name__ == '__main__':
    main()
