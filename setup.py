"""Requirements, extras and scripts from settings.ini; the version from the package; the description
from the README, with links that work anywhere; the rest from pyproject.toml."""
import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

here = Path(__file__).parent
parser = ConfigParser(delimiters=['='])
parser.read(here/'settings.ini', encoding='utf-8')
settings = parser['DEFAULT']
suffix = '_requirements'
extras = {key.removesuffix(suffix): settings[key].split()
          for key in settings if key.endswith(suffix)}
package = (here/'dml_nb/__init__.py').read_text(encoding='utf-8')
version = re.search(r'__version__ = "(.+)"', package)[1]
scripts = settings['console_scripts'].split()
readme = (here/'README.md').read_text(encoding='utf-8')
site = {'!': 'https://raw.githubusercontent.com/dml-nb/dml_nb/main/',        # of a picture
        '': 'https://github.com/dml-nb/dml_nb/blob/main/'}
readme = re.sub(r'(!?)(\[[^]]*\]\()(?!https?:|#)', lambda link: link[0] + site[link[1]], readme)

setup(
    version=version,
    long_description=readme,
    long_description_content_type='text/markdown',
    python_requires='>=' + settings['min_python'],
    install_requires=settings['requirements'].split(),
    extras_require=extras,
    entry_points=dict(console_scripts=scripts, nbdev=['dml_nb = dml_nb._modidx:d']),
)
