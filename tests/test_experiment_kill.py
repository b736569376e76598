"""Runs and sweeps that are killed at random moments and started again give the numbers of those
that nobody disturbed."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dml_nb.experiments import Recipe, run_many, sweep

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, 'killpg'), reason='this system has no process groups'),
]

#: Everything that has a state: a memory, a loss that draws, augmentation, two passes.
BASE = Recipe(
    'triplet', dict(select='semi_hard'), split='class', classes=5, per_class=6, body_width=8,
    dim=16, steps=60, every=30, memory=40, noise=['symmetric', .2], augment='crop_flip',
    optimizer='sgd', lr=.05, schedule='cosine')
#: And a callback that watches.
WATCHED = replace(
    BASE, callback='PairStatistics', callback_options=dict(every=2), steps=64, every=8)
#: A run that waits at a step, if one is given, so that it cannot end before it is killed.
RUN = """
import json, sys, time
from dml_nb.experiments import Recipe, trial
trial.CHECKPOINT_STEPS = 4
folder, fields, waits = sys.argv[1:]


class Waits(trial.QuietCheckpoints):
    def after_batch(self):
        super().after_batch()
        if self.training and str(self.train_iter) == waits:
            time.sleep(600)


trial.QuietCheckpoints = Waits
result = trial.run(Recipe(**json.loads(fields)), device='cpu', folder=folder)
print(json.dumps({key: value for key, value in result.items() if key != 'seconds'}))
"""
SWEEP = """
import json, sys
from dml_nb.experiments import Recipe, run_many
if __name__ == '__main__':
    folder, *recipes = sys.argv[1:]
    recipes = [Recipe(**json.loads(fields)) for fields in recipes]
    run_many(recipes, folder, workers=2, progress=False)
"""
#: The first kills the process that trains with it, the second raises what cannot be sent to another.
DEADLY = """
import os, signal
from dml_nb.losses import Contrastive


class Dies(Contrastive):
    def value_and_weights(self, S, pairs):
        os.kill(os.getpid(), signal.SIGKILL)


class Unsendable(Exception):
    def __init__(self, *, response):
        super().__init__(response)


class Raises(Contrastive):
    def value_and_weights(self, S, pairs):
        raise Unsendable(response='no answer')
"""
#: One that calls `run_many` wherever it is read.
UNGUARDED = SWEEP.replace("if __name__ == '__main__':", 'if True:')

SHORT = replace(BASE, steps=3, every=0)
RECIPES = sweep(BASE, {'lr': [.02, .05]}, seeds=3)


def fields_of(recipe):
    return json.dumps(asdict(recipe))


def start(script, *args):
    "In a process group of its own, so that its children are killed with it."
    return subprocess.Popen(
        [sys.executable, script, *args], stdout=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))    # a shell may ignore it


def output_of(process):
    text = process.communicate()[0]
    assert process.returncode == 0
    return text


def kill(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def steps_in(folder):
    return [int(path.parent.name[-8:]) for path in folder.glob('*.run/step-*/index.json')]


def wait_for(process, there):
    "Until something is there, or the process has ended."
    while process.poll() is None and not there():
        time.sleep(.005)


@pytest.mark.parametrize('recipe', [BASE, WATCHED])
def test_a_run_goes_on_where_it_was_killed(recipe, tmp_path):
    script = tmp_path/'run.py'
    script.write_text(RUN)
    whole = output_of(start(script, str(tmp_path/'whole'), fields_of(recipe), 'never'))
    assert not list((tmp_path/'whole').iterdir()), 'checkpoints of a finished run are removed'
    folder = tmp_path/'killed'
    rng = random.Random(0)
    for waits in (recipe.steps - 16, recipe.steps - 1):     # new checkpoints lie before each
        before = steps_in(folder)
        process = start(script, str(folder), fields_of(recipe), str(waits))
        wait_for(process, lambda: set(steps_in(folder)) - set(before))
        time.sleep(.1 * rng.random())
        kill(process)
        assert process.returncode == -signal.SIGKILL
        assert 0 < max(steps_in(folder)) < recipe.steps
    assert output_of(start(script, str(folder), fields_of(recipe), 'never')) == whole
    assert not list(folder.iterdir())


def results_of(folder):
    found = {}
    for path in Path(folder).glob('*.json'):
        result = json.loads(path.read_text())
        del result['seconds'], result['date']
        found[path.name] = result
    return found


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A sweep that nobody disturbed, in one process"
    folder = tmp_path_factory.mktemp('whole')
    run_many(RECIPES, folder, workers=1, progress=False)
    return results_of(folder)


@pytest.mark.parametrize('stop', ['all', 'parent', 'Ctrl-C'])
def test_a_sweep_goes_on_where_it_was_stopped(stop, whole, tmp_path):
    script = tmp_path/'sweep.py'
    script.write_text(SWEEP)
    folder = tmp_path/'stopped'
    rng = random.Random(1)
    process = start(script, str(folder), *map(fields_of, RECIPES))
    wait_for(process, lambda: list(folder.glob('*.json')))
    time.sleep(.3 * rng.random())
    if stop == 'all':
        kill(process)
    else:                                                   # the workers see it and end
        process.send_signal(signal.SIGKILL if stop == 'parent' else signal.SIGINT)
        process.communicate(timeout=200)
    assert process.returncode != 0 and 0 < len(results_of(folder)) < len(RECIPES)
    output_of(start(script, str(folder), *map(fields_of, RECIPES)))
    assert results_of(folder) == whole and len(whole) == len(RECIPES)
    left = [path for path in folder.iterdir() if not path.name.startswith('.')]
    assert {path.suffix for path in left} == {'.json'}      # a hidden file is one half written


def test_a_recipe_that_fails_in_its_process_is_named(tmp_path):
    bad = replace(BASE, frozen=True, augment=None, weights='of_nobody.safetensors')
    good = [replace(SHORT, seed=seed) for seed in range(2)]
    with pytest.raises(RuntimeError, match=r'1 of 3 failed: Recipe\(.*of_nobody.*there is no'):
        run_many([good[0], bad, good[1]], tmp_path, workers=2, progress=False)
    assert len(results_of(tmp_path)) == 2


def test_a_recipe_that_diverges_is_named_and_the_others_are_kept(tmp_path):
    diverges = replace(SHORT, lr=1e30, seed=3)
    good = [replace(SHORT, seed=seed) for seed in range(2)]
    named = re.escape(f'1 of 3 failed: {diverges}: FloatingPointError: ')
    with pytest.raises(RuntimeError, match=f'{named}.*not finite'):
        run_many([diverges, *good], tmp_path, workers=1, progress=False)
    assert len(results_of(tmp_path)) == 2
    assert len(run_many(good, tmp_path, workers=1, progress=False)) == 2


def test_recipes_whose_process_dies_and_errors_that_cannot_be_sent_are_named(tmp_path):
    losses = tmp_path/'losses.py'
    losses.write_text(DEADLY)
    recipes = [replace(SHORT, seed=seed) for seed in range(2)]
    deadly = [replace(SHORT, loss=f'{losses}:{name}', options={}) for name in ('Dies', 'Raises')]
    diverges = replace(SHORT, lr=1e30)
    with pytest.raises(RuntimeError, match=r'^recipes: .* 3 of 5 failed: ') as raised:
        run_many([recipes[0], *deadly, recipes[1], diverges], tmp_path/'runs', 2, progress=False)
    error = str(raised.value)
    assert f'{deadly[0]}: its process died' in error
    assert f'{deadly[1]}: ValueError: loss: training with ' in error
    assert 'Unsendable: no answer' in error and f'{diverges}: FloatingPointError: ' in error
    assert len(results_of(tmp_path/'runs')) == 2


def test_a_script_is_not_read_again_by_its_processes(tmp_path):
    script = tmp_path/'unguarded.py'
    script.write_text(UNGUARDED)
    recipes = [replace(SHORT, seed=seed) for seed in range(3)]
    output_of(start(script, str(tmp_path/'runs'), *map(fields_of, recipes)))
    assert len(results_of(tmp_path/'runs')) == 3
