"""Try the learning rates just outside of those from which the papers' pages chose.

    python tools/try_beyond.py             # all four
    python tools/try_beyond.py 000 003     # some

A rate that is the highest or the lowest of those tried may not be the best. So each paper's file in
`results/papers` gets, under `beyond`, what the rates next to it find on the same validation part.
Run it after the measurement of a page, which writes the file anew. Wants `DML_NB_DATA`."""
import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from dml_nb.experiments.sweeps import run_many
from dml_nb.experiments.store import cache_folder
from dml_nb.papers import adapted, concordance, discrepancy, dro
from dml_nb.support.results import origin
from dml_nb.support.storage import json_bytes, write_atomically


def of_adapted(folder):
    "A rate below the three of both figures, one above the two of Omniglot."
    arms = [(0., None), (2., None), (0., 'random'), (0., 'hard')]
    for figure in adapted._TEN:
        steps = adapted._TEN[figure][1]['steps'] // 2
        for lam, select in arms:
            for seed in (100, 101):
                recipe = adapted._ten_recipe(
                    figure, lam, seed, select=select, lr=1e-4, part='valid', steps=steps,
                    every=steps)
                found = adapted._watched_run(recipe, folder)
                yield dict(data=figure, method=adapted._arm(lam, 'sum', select), lr=1e-4, seed=seed,
                           value=found['curve'][-1][1])
    recipes = {lam: adapted._retrieval_recipe('table1c', lam, 100, lr=1e-2, part='valid')
               for lam in (0., adapted._PRINTED_BEST)}
    for lam, result in trained(recipes, folder):
        yield dict(data='table1c', method='adapted' if lam else 'original', lr=1e-2, seed=100,
                   value=result['trained']['map@r'])


def of_discrepancy(folder):
    "A rate above the four, for local losses that chose the highest."
    for data in discrepancy._CLASSIFIED:
        for local in [*discrepancy._LOCAL_NAMES, 'CE']:
            if discrepancy._CHOSEN[data][local][0] == max(discrepancy._RATES[data]):
                recipe = discrepancy._recipe(
                    data, local, '', lr=3e-2, seed=discrepancy._CHOOSING_SEED, part='valid')
                result, = discrepancy._train([recipe], folder)
                yield dict(data=data, method=local, lr=3e-2, value=result['trained']['probe'])


def of_dro(folder):
    """The outer two of four rates in table 1, for methods that were tried at the inner two; and with a
    trained body the rates next to a softer setting, which was tried at one."""
    for data in (dro.BIRDS, dro.CARS):
        low, *_, high = dro.RATES[data]
        recipes = {}
        for method, tries in dro.tries_of_methods(data).items():
            if len({one.lr for one in tries}) == 2:
                for place in (0, 2):
                    for lr in (low, high):
                        recipes[method, place, lr] = replace(tries[place], lr=lr)
            else:
                recipes[method, 0, low / 3] = replace(tries[0], lr=low / 3)
        for (method, place, lr), result in trained(recipes, folder):
            yield dict(data=data, method=method, setting=place // 2, lr=lr,
                       value=result['trained']['map@r'])
    recipes = {}
    for method, (chosen,) in dro.chosen_recipes('table1', dro.TRAINED, [0]).items():
        if dro.SOFTER[method]:
            for lr in (1e-4, 1e-3):
                recipes[method, lr] = replace(chosen, part='valid', lr=lr)
    for (method, lr), result in trained(recipes, folder):
        yield dict(data=dro.TRAINED, method=method, lr=lr, value=result['trained']['map@r'])


def of_concordance(folder):
    "Rates around the one that all losses share, for usual margins and all γ."
    settings = [*concordance.EVERY_LOSS, ('cit', .5), ('cit', .1)]
    for data in concordance.FROZEN:
        base = replace(concordance._base(data), part='valid')
        for factor in (1 / 3, 1, 3):
            recipes = {}
            for loss, value in settings:
                for recipe in concordance._made(base, [(loss, value)],
                                                concordance.CHOOSING_SEEDS):
                    lr = float(f'{recipe.lr * factor:.0e}')
                    recipes[loss, value, recipe.seed, lr] = replace(recipe, lr=lr)
            for (loss, value, seed, lr), result in trained(recipes, folder):
                value = concordance.USUAL[loss] if value is None else value
                yield dict(data=data, loss=loss, value=value, seed=seed, lr=lr, factor=factor,
                           map=result['trained']['map'])


def trained(recipes, folder):
    "Name and result of each recipe, in one process."
    results = run_many(list(recipes.values()), folder, workers=1, progress=False)
    return zip(recipes, results)


def facts_of_adapted():
    "What pixels find without training, in the trainings of figures 4 and 5, and with few labels."
    found = {}
    for figure in adapted._TEN:
        for name, recipe in ((figure, partial(adapted._ten_recipe, figure, 0.)),
                             (f'{figure}, few labels',
                              partial(adapted._few_labels_recipe, figure, 2., 0., lr=.01))):
            found[name] = [adapted._pixel_accuracy(recipe(seed=seed)) for seed in range(10)]
    return dict(pixels=found)


def facts_of_dro():
    "Recall@1 of the inputs in percent, from the trainings of another paper on the same pictures."
    start = json.loads(Path('results', 'papers', '001.json').read_text())['start']
    sets = dro.BIRDS, dro.CARS, dro.TRAINED, dro.GLYPHS
    return dict(inputs={data: start[data]['input'] for data in sets})


def facts_of_discrepancy():
    "What the inputs find without training: shares, means over seeds where labels are drawn."
    folder, found = cache_folder()/'papers'/'beyond', {}
    for data in discrepancy._CLASSIFIED:
        found[data] = {}
        for labels in ('clean', discrepancy._NOISY_LABELS):
            results = discrepancy._train(discrepancy._final(data, 'Trip', '', labels), folder)
            values = [result['pixels']['probe'] for result in results]
            found[data][f'{labels}, probe'] = sum(values) / len(values)
    for data in discrepancy._RETRIEVED:
        result, = discrepancy._train(discrepancy._final(data, 'Trip', '')[:1], folder)
        found[data] = {f'clean, {key}': result['input'][key] for key in ('nmi', 'recall@1')}
    return dict(inputs=found)


OF = {'000': of_dro, '002': of_discrepancy, '003': of_adapted, '004': of_concordance}

FACTS = {'000': facts_of_dro, '002': facts_of_discrepancy, '003': facts_of_adapted}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('papers', nargs='*', default=[*OF], help='numbers, as 003; all if none')
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for paper in chosen.papers:
        path = Path('results', 'papers', f'{paper}.json')
        tries = []
        for each in OF[paper](cache_folder()/'papers'/'beyond'):
            tries.append(each)
            print(paper, each, flush=True)
        record = json.loads(path.read_text(encoding='utf-8'))
        where = origin()
        record['beyond'] = {key: where[key] for key in ('machine', 'versions', 'code', 'date')}
        record['beyond']['tries'] = tries
        record['beyond'] |= FACTS.get(paper, dict)()
        write_atomically(path, json_bytes(record))


if __name__ == '__main__':
    main()
