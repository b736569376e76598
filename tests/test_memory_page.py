"Several processes, each with its batch: one memory on all of them, and gradients by chunks."
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip('torch was built without torch.distributed', allow_module_level=True)

pytestmark = pytest.mark.long
root = Path(__file__).resolve().parents[1]
start = '''
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from dml_nb.core import unit
from dml_nb.losses import Binomial, MultiSimilarity
from dml_nb.training import CrossBatchMemory, GradientCache
torch.set_num_threads(1)
rank, world, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group('gloo', init_method=f'file://{file}', rank=rank, world_size=world)

def same_on_all(values):
    "Whether a tensor or a list of them is the same, bit for bit, on every rank."
    found = [None] * world
    dist.all_gather_object(found, values)
    first = found[0]
    return all(torch.equal(a, b) for other in found for a, b in zip(first, other))
'''


finish = '''
dist.barrier()
model = None                                            # whoever holds the group keeps its threads
dist.destroy_process_group()
names = [file.read_text() for file in Path('/proc/self/task').glob('*/comm')]
assert not any('gloo' in name for name in names), names
'''


def run_processes(code, tmp_path, world):
    "The same code on each of `world` processes; raises with what one of them said."
    command = [sys.executable, '-W', 'ignore', '-c', start + code + finish]
    file = str(tmp_path/'meeting')
    processes = [subprocess.Popen([*command, str(rank), str(world), file], cwd=root, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                 for rank in range(world)]
    try:
        said = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), '\n'.join(said)


memory_code = '''
sizes = [7, 4, 9][:world]                               # uneven batches
generator = torch.Generator().manual_seed(0)
batches = [(torch.randn(sum(sizes), 5, generator=generator, dtype=torch.float64),
            torch.randint(4, (sum(sizes),), generator=generator)) for _ in range(9)]
begin = sum(sizes[:rank])
mine = slice(begin, begin + sizes[rank])

def train(memory, steps):
    values = []
    for z, y in batches[steps]:
        z = z[mine].clone().requires_grad_()
        value = memory(z, y[mine])
        values += [value.detach(), torch.autograd.grad(value, z)[0]]
    return values

memory = CrossBatchMemory(Binomial(), size=50, warmup=1)
values = train(memory, slice(0, 9))
state = memory.state_dict()
assert same_on_all(list(state.values())) and memory.steps == 9 and memory.count == 50

alone = CrossBatchMemory(Binomial(), size=50, warmup=1)  # one process with all rows
for z, y in batches:
    alone.store(z, y)
assert all(torch.equal(state[name], value) for name, value in alone.state_dict().items())

half = CrossBatchMemory(Binomial(), size=50, warmup=1)
train(half, slice(0, 5))
resumed = CrossBatchMemory(Binomial(), size=50, warmup=1)
resumed.load_state_dict(half.state_dict())
assert all(torch.equal(a, b) for a, b in zip(train(resumed, slice(5, 9)), values[10:]))
'''

cache_code = '''
torch.manual_seed(0)
def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 4)).double()

x = torch.randn(world, 50, 6, dtype=torch.float64)[rank]
y = torch.arange(50) % 7
cache = GradientCache(8, batch_norm='frozen')
model = nn.parallel.DistributedDataParallel(new_model())
for step in range(2):                                   # gradients are averaged in both
    model.zero_grad()
    MultiSimilarity()(cache.embed(model, x), y).backward()
gradients = [p.grad for p in model.parameters()]
assert same_on_all(gradients)

plain = new_model()
plain[1].eval()
MultiSimilarity()(plain(x), y).backward()
for found, p in zip(gradients, plain.parameters()):
    wanted = p.grad.clone()
    dist.all_reduce(wanted)
    torch.testing.assert_close(found, wanted / world, rtol=1e-10, atol=1e-12)
assert 'forward' not in vars(model.module)
'''


@pytest.mark.parametrize('world', [2, 3])
def test_memory_is_the_same_on_all_ranks(world, tmp_path):
    run_processes(memory_code, tmp_path, world)


def test_chunks_inside_distributed_data_parallel(tmp_path):
    run_processes(cache_code, tmp_path, 2)
