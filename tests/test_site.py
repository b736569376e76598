"What the site adds to the pages, and the files that it publishes beside them."
import json
import re
import subprocess
import sys

import pytest
from nbdev.frontmatter import FrontmatterProc
from nbdev.process import NBProcessor
from test_pages import cells, each_page, pages, root

from dml_nb import _docs


def processed(page, *processors):
    "The sources of a page as the site has them, after `processors`"
    work = NBProcessor(page, procs=[FrontmatterProc, *processors])
    work.process()
    return [cell.source for cell in work.nb.cells]


def test_link_to_colab_follows_the_title():
    page = root/'nbs'/'10_losses.pairs.ipynb'
    title, link, *_ = processed(page, _docs.launch_link)
    assert title.startswith('---') and 'Pair by pair' in title
    address = 'https://colab.research.google.com/github/dml-nb/dml_nb/blob/main/nbs/'
    assert f'<a href="{address}{page.name}">' in link and _docs.COLAB_SETUP in link


def test_titles_of_papers_lead_to_the_bibliography():
    sources = '\n'.join(processed(root/'nbs'/'12_losses.lifted.ipynb', _docs.link_papers))
    title = r'\*Deep\s+Metric\s+Learning\s+via\s+Lifted\s+Structured\s+Feature\s+Embedding\*'
    assert re.search(rf'\[{title}\]\(81_bibliography\.ipynb#song-2016\)', sources)
    assert '[[*' not in sources                         # what is a link already stays one link


@each_page
def test_linked_papers_have_an_entry(page):
    sources = ''.join(''.join(cell['source']) for cell in cells(page))
    linked = set(re.findall(r'81_bibliography\.ipynb#([\w-]+)', sources))
    assert linked <= set(_docs.papers(root/'nbs'/'81_bibliography.ipynb').values())
