"Requirements, extras and console scripts from settings.ini; the version from the package; the rest from pyproject.toml."
import re
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup

here = Path(__file__).parent
parser = ConfigParser(delimiters=['='])
parser.read(here/'settings.ini', encoding='utf-8')
cfg = parser['DEFAULT']
suffix = '_requirements'
extras = {key[:-len(suffix)]: cfg[key].split() for key in cfg if key.endswith(suffix)}
version = re.search(r'__version__ = "(.+)"', (here/'dml_nb/__init__.py').read_text(encoding='utf-8'))[1]

setup(version=version, python_requires='>=' + cfg['min_python'], install_requires=cfg['requirements'].split(), extras_require=extras,
      entry_points=dict(console_scripts=cfg['console_scripts'].split(), nbdev=['dml_nb = dml_nb._modidx:d']))
