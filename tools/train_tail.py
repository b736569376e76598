"""Find how to train the last modules of SqueezeNet on cars, and what that gains.

    python tools/train_tail.py              # everything that the results file does not hold

Wants `DML_NB_DATA` with the folders `weights` and `cars196-train-crops`. Settings are compared on
the last third of the training classes, one seed each; the chosen one is measured on the test
classes from three seeds, and once after training on all training classes. The results file is
written after every run."""
import argparse
import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from dml_nb.experiments.recipe import Recipe, class_count, recipe_loss
from dml_nb.experiments.store import Shelf
from dml_nb.experiments.trial import (
    StepSampler, measure_model, recipe_learner, recipe_loaders, recipe_parts, reproducible, run_on)
from dml_nb.papers.exhibits import key_of
from dml_nb.support.results import write_json

CPU = torch.device('cpu')
REGIME = Recipe(
    'infonce', data='cars196-train-crops', split='official', valid=1 / 3, size=128, fit='squash',
    arch='squeezenet1_1', weights='imagenet', tail=4, dim=512, classes=25, per_class=4, steps=200,
    lr=2e-4, schedule='cosine', weight_decay=0.)
CHOOSING = replace(REGIME, part='valid')
KEPT = 'recall@1', 'map@r'


def train(recipe, shelf, head=1., depth=1.):
    """Like a run of the recipe, with a rate `head` times as high for the head and `depth` times for
    each module further from it."""
    with reproducible(recipe):
        (train, valid), _ = recipe_parts(recipe, shelf, CPU)
        dls = recipe_loaders(recipe, train, valid, CPU)
        learn = recipe_learner(recipe, dls, class_count(train), [])
        net, loss = learn.model, recipe_loss(recipe)
        tail = [list(part.parameters()) for part in net.body[0] if [*part.parameters()]]
        groups = [dict(params=part, lr=recipe.lr * depth**i) for i, part in enumerate(tail[::-1])]
        groups.append(dict(params=list(net.head.parameters()), lr=recipe.lr * head))
        rates = [group['lr'] for group in groups]
        adam = torch.optim.Adam(groups, betas=(.9, .99), eps=1e-5)
        sampler = StepSampler(train.labels, recipe.classes, recipe.per_class, recipe.seed, 0,
                              recipe.steps)
        start = time.perf_counter()
        for step, batch in enumerate(sampler):
            for group, rate in zip(adam.param_groups, rates):
                group['lr'] = rate * (1 + math.cos(math.pi * step / recipe.steps)) / 2
            x = torch.stack([train[i][0] for i in batch])
            adam.zero_grad()
            net.train()
            loss(net(x), torch.as_tensor(train.labels[batch])).backward()
            adam.step()
        return dict(trained=measure_model(recipe, learn, train, valid)[1],
                    seconds=time.perf_counter() - start)


def asked():
    "Name -> recipe, and settings of `train` where that is what runs."
    found = {f'rate {lr:g}': (replace(CHOOSING, lr=lr), None) for lr in (1e-4, 2e-4, 5e-4, 1e-3)}
    found |= {
        'rate 0.001, a tenth of it for the tail': (replace(CHOOSING, lr=1e-4), dict(head=10.)),
        'rate 0.0005, half of it for each module further down': (
            replace(CHOOSING, lr=5e-4), dict(depth=.5)),
        'test, all training classes': (replace(REGIME, valid=0.), None),
    }
    found |= {f'test, seed {seed}': (replace(REGIME, seed=seed), None) for seed in range(3)}
    return found


def main(arguments=None):
    "Run what is missing and write what is there."
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--out', type=Path, default=Path('results', 'trained_tail.json'))
    out = parser.parse_args(arguments).out
    torch.set_num_threads(1)
    shelf = Shelf()
    known = json.loads(out.read_text())['rows'] if out.exists() else []
    known = {row['key']: row for row in known}
    rows = []
    for name, (recipe, settings) in asked().items():
        key = key_of(recipe) + json.dumps(settings or {})
        if key not in known:
            start = time.process_time()
            if settings is None:
                found = run_on(recipe, shelf, CPU)
            else:
                found = train(recipe, shelf, **settings)
            known[key] = dict(key=key, seconds=found['seconds'],
                              process=time.process_time() - start)
            known[key] |= {stage: {kind: found[stage][kind] for kind in KEPT}
                           for stage in ('input', 'untrained', 'trained') if stage in found}
        rows.append(known[key] | dict(name=name, recipe=asdict(recipe), settings=settings))
        print(name, known[key]['trained'], f"{known[key]['seconds']:.0f} s", flush=True)
        done = [row['key'] for row in rows]
        write_json(out, dict(
            what='R@1 and MAP@R on classes that are not trained on; seconds: of training, by the '
                 'clock; process: seconds of the processor, with measuring',
            rows=rows + [row for key, row in known.items() if key not in done]),
            data=[dict(name=REGIME.data, sha256=shelf.digest(REGIME))])


if __name__ == '__main__':
    main()
