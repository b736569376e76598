"""Each page as its reader runs it: first the block at its top alone, then all cells. Jupyter's "Run
All" knows no flags, so every cell runs, without data, without a GPU, on one core. A page runs in a
process of its own, forked from one that has imported what pages import; imports take long. Of a
page that can use data, only the first block runs here if `DML_NB_DATA` is set.

`pytest -m long tests/test_reader.py -rP | grep 'CPU seconds'` lists what each page takes."""
import hashlib
import math
import multiprocessing
import os
import re
import resource
import shutil
import tempfile
import time
import traceback
from difflib import unified_diff

import nbformat
import pytest
import torch
from execnb.shell import CaptureShell
from test_pages import first_block, pages, root

LIMIT = 120     # CPU seconds that a page may take where `work` takes WORK
WORK = .7       # CPU seconds on an AMD EPYC; longer elsewhere, and LIMIT with it
HANGS = 900     # seconds by the clock of a single cell, on cores that others use too


@pytest.fixture
def clone(tmp_path):
    "What pages read of this repository, to be thrown away; 12 MB, so not left to pytest"
    copy = tmp_path/'clone'
    for name in ('nbs', 'results'):
        shutil.copytree(root/name, copy/name)
    yield copy
    shutil.rmtree(copy)


@pytest.fixture
def environment():
    """A reader's, who has this package, no data set and no GPU, and measures nothing

    Its folder for temporary files is not in pytest's: the path of a socket, which the workers of a
    `DataLoader` open there, must not exceed 107 characters, and without one they wait for ever."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith('DML_NB_')}
    with tempfile.TemporaryDirectory() as folder:
        yield kept | dict(CUDA_VISIBLE_DEVICES='', OMP_NUM_THREADS='1', PYTHONPATH=str(root),
                          TMPDIR=folder)


def contents(folder):
    "{path: digest} of every file"
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob('*') if path.is_file()}


def work():
    "CPU seconds of a fixed piece of work, by which machines are compared"
    start, x = time.process_time(), torch.ones(256, 256)
    for _ in range(400):
        x = (x @ x).clamp(max=1.)
    sum(i * i for i in range(10**7))
    return time.process_time() - start


def run(page, ran, folder, environment, pipe):
    "Run a page in this process, write it as `ran`, and send how it failed, if so, and how long it took"
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    torch.set_num_threads(1)
    shell, error = CaptureShell(), ''
    try:
        shell.execute(page, ran, exc_stop=True, cell_timeout=HANGS)
    except BaseException:               # what a cell raises, an exit included
        error = shell.prettytb(page.name) or traceback.format_exc()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in used)
    pipe.send((error, seconds * WORK / work()))


def shown(cell):
    """What a cell shows, as lines: what it prints, its results, as Markdown or HTML where they have
    it, and last the number of its pictures, which Jupyter shows later than `nbdev-test --save`;
    of pictures within HTML the bytes are left out, since they depend on the library that packs them"""
    printed = ''.join(output.text for output in cell.outputs if output.get('name') == 'stdout')
    results, pictures = [], 0
    for data in (output.data for output in cell.outputs if 'data' in output):
        if 'image/png' in data:
            pictures += 1
        else:
            kinds = 'text/markdown', 'text/html', 'text/latex', 'text/plain'
            results.append(data[next(kind for kind in kinds if kind in data)])
    said = '\n'.join([printed.strip('\n'), *results, f'pictures {pictures}'])
    return re.sub(r'data:image/\w+;base64,[\w+/=]+', 'a picture', said).splitlines()


def same(old, new):
    """Whether lines say the same: the same words, the same integers, and fractions that a training
    on another processor, which adds in another order, could have ended with"""
    fraction = re.compile(r'-?\d+\.\d+(?:e[-+]\d+)?|-?\de[-+]\d+')
    old, new = '\n'.join(old), '\n'.join(new)
    if fraction.sub('#', old) != fraction.sub('#', new):
        return False
    pairs = zip(fraction.findall(old), fraction.findall(new))
    return all(math.isclose(float(a), float(b), rel_tol=.25, abs_tol=.005) for a, b in pairs)


def varies(cell):
    """Whether another run may show something else: a cell that says so (`#| varies`), one that
    reads `DML_NB_DATA`, which was set for the outputs that are kept, or says that it is not set"""
    said = '\n'.join(shown(cell))
    return re.search(r'^#\|\s*varies\b', cell.source, re.M) or 'DML_NB_DATA' in cell.source + said


#: The first block by itself: in an empty folder and with names of its own, before anything else.
FIRST = """import os, tempfile
here = os.getcwd()
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    exec(compile({block!r}, 'the first block', 'exec'), dict(__name__='__main__'))
    os.chdir(here)
del os, tempfile, here, folder"""


@pytest.mark.long
@pytest.mark.parametrize('page', pages, ids=lambda page: page.stem)
def test_reader_runs_first_block_and_all(page, clone, environment):
    notebook = nbformat.read(page, as_version=4)
    kept = [shown(cell) for cell in notebook.cells if cell.cell_type == 'code']
    first = FIRST.format(block=first_block(page) or '')
    notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
    if 'DML_NB_DATA' in os.environ and 'DML_NB_DATA' in page.read_text(encoding='utf-8'):
        del notebook.cells[1:]          # where there is data, CI runs these cells with it
    copy, ran = clone.parent/page.name, clone.parent/'ran.ipynb'
    nbformat.write(notebook, copy)
    files = contents(clone)
    context = multiprocessing.get_context('forkserver')
    results, pipe = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(copy, ran, clone/'nbs', environment, pipe))
    process.start()
    pipe.close()
    try:
        error, seconds = results.recv()
    except EOFError:
        error = 'the process died'
    process.join()
    if error:
        pytest.fail(error, pytrace=False)
    ran = nbformat.v4.reads(ran.read_text(encoding='utf-8'))            # unchecked
    code = [cell for cell in ran.cells[1:] if cell.cell_type == 'code']
    print(f'{page.stem}: {seconds:.0f} seconds')
    differences = [line for old, cell in zip(kept, code)
                   if not varies(cell) and not same(old, shown(cell))
                   for line in unified_diff(old, shown(cell), f'kept, cell {cell.id}', 'now',
                                            n=0, lineterm='')]
    assert not differences, '\n'.join([page.name, *differences])
    changed = {path for path, _ in contents(clone).items() ^ files.items()}
    assert not changed, f'{page.stem} writes {sorted(changed)}'
    assert seconds <= LIMIT, f'{page.stem} takes {seconds:.0f} of {LIMIT} seconds'
