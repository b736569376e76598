"Two processes train images against texts as one does with all pairs: what the tutorial says."
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]
page = root/'nbs'/'95_tutorial.image_text.ipynb'
BEFORE = '''
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dml_nb.training import distributed
from dml_nb.losses import InfoNCE, SigLIP
from dml_nb.training import Temperature
'''
AFTER = '''
dist.init_process_group('gloo')
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x, words = torch.randn(24, 5).double(), torch.randn(24, 7).double()
mine, pairs = slice(12 * rank, 12 * rank + 12), torch.arange(24)
towers = nn.ModuleList([nn.Linear(5, 8), nn.Linear(7, 8)]).double()
apart = [DistributedDataParallel(tower) for tower in towers]
for loss in (Temperature(InfoNCE(1., normalize=False), .1),
             Temperature(SigLIP(1., 0., normalize=False), .1, bias=-5.)):
    learned = [*towers.parameters(), *loss.double().parameters()]
    z, t = towers[0](x), towers[1](words)
    wanted = torch.autograd.grad((loss(z, pairs, t, pairs) + loss(t, pairs, z, pairs)) / 2, learned)
    for weights in learned:
        weights.grad = None
    z, t = apart[0](x[mine]), apart[1](words[mine])
    of_all_processes(distributed(loss), z, t).backward()
    for weights, gradient in zip(learned, wanted):
        torch.testing.assert_close(weights.grad, gradient, rtol=1e-10, atol=1e-12)
print(f'compared {world}\\n', end='')        # in one write, for two processes share the output
dist.barrier()
del apart
dist.destroy_process_group()
'''


@pytest.mark.long
def test_two_processes_have_the_gradient_of_one(tmp_path):
    cells = json.loads(page.read_text(encoding='utf-8'))['cells']
    shown, = (source for cell in cells if 'class AllRows' in (source := ''.join(cell['source'])))
    script = tmp_path/'script.py'
    script.write_text(BEFORE + shown + AFTER, encoding='utf-8')
    command = [sys.executable, '-W', 'ignore', '-m', 'torch.distributed.run', '--standalone',
               '--nproc-per-node=2', str(script)]
    environment = os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count('compared 2') == 2
