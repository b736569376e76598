"The command `dml`: what all its commands share, and a module for each group of them"
from dml_nb.cli.base import app, main
from dml_nb.cli import experiments, train, evaluate, search, papers      # in the order of `dml --help`

__all__ = ['app', 'main']
