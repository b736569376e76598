"What several test modules use."
import multiprocessing
import os
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

# Processes that tests start come of one that has run nothing: of one that has run other tests they
# would get its threads' locks, and autograd refuses to work where threads were.
if hasattr(os, 'fork'):
    multiprocessing.set_forkserver_preload([
        'dml_nb.cli', 'dml_nb.search.browser', 'dml_nb.search.everyday', 'dml_nb.search.folders',
        'dml_nb.training.memory', 'dml_nb.training.recovery', 'execnb.shell', 'fastai.distributed',
        'fastai.vision.all', 'matplotlib.pyplot', 'nbformat', 'pytest', 'starlette.testclient',
        'sympy'])


@pytest.fixture
def one_thread():
    "Pictures this small gain nothing from a second thread"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def failing_write(monkeypatch):
    "A context in which one write of a file fails: the first is number 0"
    from dml_nb.support import storage
    whole = storage.write_atomically

    @contextmanager
    def failing(number, error):
        calls = []

        def broken(path, data):
            calls.append(path)
            if len(calls) == number + 1:
                raise error
            whole(path, data)

        with monkeypatch.context() as patched:
            patched.setattr(storage, 'write_atomically', broken)
            yield

    return failing


@pytest.fixture
def dml(capsys, monkeypatch):
    "The command in this process"
    from dml_nb.cli import main

    def call(*words):
        monkeypatch.setattr(sys, 'argv', ['dml', *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code, stdout=said.out, stderr=said.err)

    return call
