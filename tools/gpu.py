"""What is measured on a GPU, one step of `tools/gpu.sh` at a time: `python tools/gpu.py STEP`

Each step writes its own results/gpu_STEP.json. `--device cpu --small` tries a step where there is
no GPU; its file then goes to the folder that `--folder` names, never to results/."""
import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

root = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root))

from dml_nb.check import write_json                                     # noqa: E402
from dml_nb.core import unit                                            # noqa: E402
from dml_nb.losses.catalogue import LOSSES                              # noqa: E402

TIMED = ('multi_similarity', 'triplet', 'contrastive', 'n_pairs', 'dro_top_k', 'dro_kl')


def wait(device):
    if device == 'cuda':
        torch.cuda.synchronize()


def batch(B, D, device):
    "Unit rows of classes of four"
    generator = torch.Generator().manual_seed(0)
    z = unit(torch.randn(B, D, generator=generator)).to(device)
    return z.requires_grad_(), (torch.arange(B) // 4).to(device)


def step_of(loss, z, labels):
    "Forward and backward of a loss, as a function without arguments"
    def step():
        z.grad = None
        loss(z, labels).backward()
    return step


def products(z):
    "The three matrix products that no exact loss can do without"
    x = z.detach()

    def step():
        W = x @ x.T
        W @ x
        W.T @ x
    return step


def measured(step, device, repeats, patience=20.):
    "Median milliseconds and megabytes above what was held; None where memory does not suffice"
    if device == 'cuda':
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if device == 'cuda' else 0
    try:
        step()
        wait(device)
        peak = torch.cuda.max_memory_allocated() if device == 'cuda' else 0
        times, began = [], time.perf_counter()
        while len(times) < repeats and time.perf_counter() - began < patience:
            start = time.perf_counter()
            step()
            wait(device)
            times.append(1000 * (time.perf_counter() - start))
    except torch.OutOfMemoryError as error:
        return dict(milliseconds=None, why=str(error).splitlines()[0])
    return dict(milliseconds=statistics.median(times), repeats=len(times),
                megabytes=(peak - held) / 2**20)


def peers():
    "pytorch-metric-learning's losses, where it is installed"
    try:
        from pytorch_metric_learning import losses, miners
    except ImportError:
        return {}
    multi_similarity, mine = losses.MultiSimilarityLoss(2, 50, .5), miners.MultiSimilarityMiner()
    return {
        'multi_similarity': lambda z, y: multi_similarity(z, y, mine(z, y)),
        'triplet': losses.TripletMarginLoss(margin=.1),
        'contrastive': losses.ContrastiveLoss(),
        'n_pairs': losses.NPairsLoss(),
    }


def speed(device, small):
    "Ours, the peers' and the products alone"
    sizes = [(256, 32)] if small else [
        (B, D) for B in (1024, 4096, 16384, 65536) for D in (128, 512)]
    rows = []
    for B, D in sizes:
        z, labels = batch(B, D, device)
        repeats = 3 if small or B > 16384 else 20
        row = dict(B=B, D=D, products=measured(products(z), device, repeats))
        for name in TIMED:
            row[name] = measured(step_of(LOSSES[name](), z, labels), device, repeats)
        for name, peer in peers().items():
            if B <= 16384:                              # beyond, theirs need hundreds of GB
                step = step_of(peer, z, labels)
                row[f'{name}, peer'] = measured(step, device, min(repeats, 5))
        rows.append(row)
        print(row, flush=True)
    return dict(what='forward + backward, classes of four, float32, medians', rows=rows)


def blocks(device, small):
    "Time and memory over the number of similarities in a block, from which the default is chosen"
    B, D = (512, 32) if small else (32768, 128)
    z, labels = batch(B, D, device)
    rows = []
    for power in range(14, 19) if small else range(20, 31):
        block = max(1, min(B, 2**power // B))
        for name in ('multi_similarity', 'triplet', 'dro_top_k'):
            step = step_of(LOSSES[name](block=block), z, labels)
            found = measured(step, device, 3 if small else 5)
            rows.append(dict(loss=name, similarities=2**power, block=block, **found))
            print(rows[-1], flush=True)
    return dict(what=f'forward + backward of {B} rows of {D}, float32', rows=rows)


def compiled(device, small):
    "A loss as it is, and in one graph"
    sizes = (256,) if small else (1024, 4096, 16384)
    rows = []
    for B in sizes:
        z, labels = batch(B, 128, device)
        for name in TIMED:
            torch.compiler.reset()
            loss = LOSSES[name]()
            row = dict(B=B, loss=name, eager=measured(step_of(loss, z, labels), device, 20))
            try:
                one_graph = torch.compile(loss, fullgraph=True)
                row['compiled'] = measured(step_of(one_graph, z, labels), device, 20)
            except Exception as error:                  # one loss must not end the others
                row['compiled'] = dict(milliseconds=None, why=repr(error)[:300])
            rows.append(row)
            print(row, flush=True)
    what = 'forward + backward, D = 128, float32; torch.compile(fullgraph=True)'
    return dict(what=what, rows=rows)


STEPS = dict(speed=speed, blocks=blocks, compiled=compiled)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('step', choices=STEPS)
    parser.add_argument('--device', default='cuda', choices=('cuda', 'cpu'))
    parser.add_argument('--small', action='store_true', help='small sizes, to try the step')
    parser.add_argument('--folder', type=Path, help='where the file goes, default results/')
    given = parser.parse_args()
    if given.device == 'cuda' and not torch.cuda.is_available():
        print('no GPU that torch can use: nothing was measured')
        return
    if given.folder is None and (given.device == 'cpu' or given.small):
        parser.error('--folder is wanted with --device cpu or --small')
    found = STEPS[given.step](given.device, given.small)
    device = torch.cuda.get_device_name() if given.device == 'cuda' else 'cpu'
    path = (given.folder or root/'results')/f'gpu_{given.step}.json'
    write_json(path, dict(device=device, **found), seed=0)
    print(f'wrote {path.name}')


if __name__ == '__main__':
    main()
