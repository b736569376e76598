"Blocks keep their promise: a batch whose similarities fill 256 MB is trained in far less. A process of its own, so that the peak is its own."
import subprocess, sys
from pathlib import Path

import pytest

script = '''
import sys, torch
from pathlib import Path
import dml_nb.losses
torch.set_num_threads(2)

def memory(field): return int(Path('/proc/self/status').read_text().split(field + ':')[1].split()[0]) / 1024

loss = getattr(dml_nb.losses, sys.argv[1])(block=512)
z, labels = torch.randn(8192, 64, requires_grad=True), torch.arange(8192) // 4
loss(z[:64], labels[:64]).backward()
before = memory('VmRSS')
Path('/proc/self/clear_refs').write_text('5')                                # forget the peak so far
loss(z, labels).backward()
print(memory('VmHWM') - before)
'''

@pytest.mark.skipif(not Path('/proc/self/clear_refs').exists(), reason='the peak of memory is read from /proc, which only Linux has')
@pytest.mark.parametrize('name', ['MultiSimilarity', 'Contrastive', 'Triplet'])
def test_blocks_need_little_memory(name):
    extra = float(subprocess.run([sys.executable, '-c', script, name], capture_output=True, text=True, check=True).stdout)
    assert extra < 300, f'{name} in blocks of 512 took {extra:.0f} MB for B = 8192, D = 64'
