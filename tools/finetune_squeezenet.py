"""Fine-tune SqueezeNet on half of the classes of a set and search among the other half.

    python tools/finetune_squeezenet.py                       # both sets, three seeds
    python tools/finetune_squeezenet.py --seeds 0 --out seed0.json      # one of three processes
    python tools/finetune_squeezenet.py --known seed?.json              # put them together
    python tools/finetune_squeezenet.py --device cuda                   # to gpu_finetune.json
    python tools/finetune_squeezenet.py --pack .data          # only make data for another machine

Wants `DML_NB_DATA` with the folders `weights`, `cub-50` and `cars196-train-crops`. Trains on the
train half of the set's own split, whose classes do not occur in the test half, and measures
retrieval within the test half, before and after: leave one out, cosine. "Before" is the same
network, frozen, with plain average pooling. The results file is written after every run, so that
an interruption loses one seed. Seeds that it holds already, or that the files after `--known`
hold, under the same settings, are not run again; a GPU's name is one of the settings.

`--pack` makes a small folder that `DML_NB_DATA` may name: the sets' pictures at the size of
training, the weights, and Omniglot where it is there. The pictures become WebP of quality 85,
since as plain bytes they are 396 MiB; results say so in their settings. That takes .007 and .004
of the R@1 of the frozen network, which becomes .451 on cub-50 and .283 on cars196-train-crops."""
import argparse
import csv
import hashlib
import io
import json
import shutil
import time
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import numpy as np
import torch
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.progress import ProgressCallback
from PIL import Image

from dml_nb.support.results import write_json
from dml_nb.data import load_data
from dml_nb.training import create_embedder
from dml_nb.training.networks import local_weights
from dml_nb.experiments import interval
from dml_nb.training import metric_dataloaders, metric_learner
from dml_nb.losses import MultiSimilarity
from dml_nb.evaluation import evaluate

SETTINGS = dict(
    net='squeezenet1_1', size=112, fit='squash', pooling='average', head=None,
    loss='MultiSimilarity()', classes=12, per_class=4, epochs=5, lr=3e-4,
    augment='mirrored or not, shifted by up to 8 pixels', optimiser='Adam, one cycle')
MEASURED = ('recall@1', 'map@r')
PACKED = 'packed.txt'
SETS = ('cub-50', 'cars196-train-crops')


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
    parts = [part.subset(range(0, len(part), settings.get('every', 1))) for part in parts]
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


def train(settings, seed, images, valid, device):
    "The network, fine-tuned on `images`; `valid` is looked at once an epoch and decides nothing."
    torch.manual_seed(seed)
    np.random.seed(seed)
    dls = metric_dataloaders(
        images, valid, settings['classes'], settings['per_class'], seed=seed,
        augment=mirror_and_shift, device=device)
    learn = metric_learner(dls, create(settings), MultiSimilarity())
    if 'precision' in settings:
        learn.add_cb(MixedPrecision())
    learn.remove_cb(ProgressCallback)
    learn.fit_one_cycle(settings['epochs'], settings['lr'])
    return learn.model


def pack(folder, names):
    "The data of this tool, small, for a machine to which little can be carried."
    weights = local_weights(SETTINGS['net'])
    data = weights.parent.parent
    size, fit = SETTINGS['size'], SETTINGS['fit']
    (folder/'weights').mkdir(parents=True)
    shutil.copy(weights, folder/'weights')
    for name in names:
        images = load_data(name, size=size, fit=fit)
        (folder/name).mkdir()
        with (
            open(data/name/'labels.csv', encoding='utf-8', newline='') as old,
            open(folder/name/'labels.csv', 'w', encoding='utf-8', newline='') as new,
            ZipFile(folder/name/'images.zip', 'w') as archive,
        ):
            columns = ['file', 'class_id', 'class_name', 'split']
            table = csv.DictWriter(new, columns, extrasaction='ignore')
            table.writeheader()
            for (image, _), row in zip(images, csv.DictReader(old), strict=True):
                row['file'] = PurePosixPath(row['file']).with_suffix('.webp')
                table.writerow(row)
                pixels = image.mul(255).round().byte().permute(1, 2, 0).numpy()
                content = io.BytesIO()
                Image.fromarray(pixels).save(content, 'WEBP', quality=85)
                archive.writestr(f"images/{row['file']}", content.getvalue())
    if (data/'omniglot').is_dir():
        shutil.copytree(data/'omniglot', folder/'omniglot')
    (folder/PACKED).write_text(f'{fit} to {size} pixels, WebP of quality 85')
    for part in sorted(folder.iterdir()):
        files = part.rglob('*') if part.is_dir() else [part]
        print(f'{part.name}: {sum(file.stat().st_size for file in files) / 2**20:.1f} MiB')


def main(arguments=None):
    "Run what is missing and write what is there."
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--sets', nargs='+', default=SETS)
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--set', nargs='*', default=[], metavar='NAME=JSON', help='other settings')
    parser.add_argument('--known', nargs='*', type=Path, default=[], help='files with other seeds')
    parser.add_argument('--device', default='cpu', choices=('cpu', 'cuda'))
    parser.add_argument('--half', action='store_true', help='mixed precision, on a GPU')
    parser.add_argument('--pack', type=Path, metavar='FOLDER', help='train nothing: see above')
    parser.add_argument('--out', type=Path)
    options = parser.parse_args(arguments)
    if options.pack:
        return pack(options.pack, options.sets)
    on_gpu = options.device == 'cuda'
    if options.half and not on_gpu:
        parser.error('expected --device cuda with --half')
    if options.out is None:
        name = 'gpu_finetune' if on_gpu else 'finetuned_squeezenet'
        options.out = Path('results', f'{name}.json')
    others = (text.partition('=') for text in options.set)
    settings = SETTINGS | {name: json.loads(value) for name, _, value in others}
    weights = local_weights(settings['net'])
    settings['weights'] = [weights.name, hashlib.sha256(weights.read_bytes()).hexdigest()]
    if (packed := weights.parent.parent/PACKED).exists():
        settings['pictures'] = packed.read_text()
    if on_gpu:
        settings['device'] = torch.cuda.get_device_name()
    if options.half:
        settings['precision'] = 'mixed, float16'
    torch.set_num_threads(1)
    clock = time.perf_counter if on_gpu else time.process_time

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
            frozen[name] = measure(create(settings).to(options.device), test_half)
            print(name, 'frozen', frozen[name], flush=True)
        for seed in options.seeds:
            if not any(row['set'] == name and row['seed'] == seed for row in rows):
                start = clock()
                watched = test_half.subset(range(min(100, len(test_half))))
                model = train(settings, seed, train_half, watched, options.device)
                seconds = clock() - start
                rows.append(dict(set=name, seed=seed, seconds=seconds, **measure(model, test_half)))
                print(rows[-1], flush=True)
            write(options.out, settings, frozen, rows, data)


def write(out, settings, frozen, rows, data):
    "Everything so far."
    of = 'training' if 'device' in settings else 'one processor'
    rows = sorted(rows, key=lambda row: (row['set'], row['seed']))
    summary = {}
    for name in dict.fromkeys(row['set'] for row in rows):
        found = [row for row in rows if row['set'] == name]
        summary[name] = {key: interval([row[key] for row in found]) for key in MEASURED}
    what = ("R@1 and MAP@R on unseen classes; summary: mean over seeds and half the width of "
            f"Student's 95 % interval; seconds of {of}")
    content = dict(what=what, settings=settings, frozen=frozen, rows=rows, summary=summary)
    hashes = [dict(name=name, sha256=value) for name, value in data.items()]
    write_json(out, content, data=hashes)


if __name__ == '__main__':
    main()
