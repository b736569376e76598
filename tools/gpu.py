"""What is measured on a GPU, one step of `tools/gpu.sh` at a time: `python tools/gpu.py STEP`

Each step writes its own results/gpu_STEP.json, anew after each row, so that a step which is stopped
loses one. `--device cpu --small` tries a step where there is no GPU; its file then goes to the
folder that `--folder` names, never to results/. The steps `finetune` and `omniglot` want fastai,
and data in `DML_NB_DATA` or in the folder .data; where something is missing they say what."""
import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

root = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root))

from dml_nb.support.results import write_json                                     # noqa: E402
from dml_nb.core import unit                                            # noqa: E402
from dml_nb.losses.catalogue import LOSSES                              # noqa: E402

TIMED = ('multi_similarity', 'triplet', 'contrastive', 'n_pairs', 'dro_top_k', 'dro_kl')
OF_SMALL_BATCHES = (
    'contrastive', 'supcon', 'infonce', 'multi_similarity', 'triplet', 'batch_hard', 'arcface')


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


def measured(step, device, repeats, patience=20., forgiven=torch.OutOfMemoryError):
    "Median milliseconds and megabytes above what was held; None after an error that is forgiven"
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
    except forgiven as error:
        return dict(milliseconds=None, why=repr(error)[:300])
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
    for B, D in sizes:
        z, labels = batch(B, D, device)
        repeats = 3 if small or B > 16384 else 20
        row = dict(B=B, D=D, products=measured(products(z), device, repeats))
        for name in TIMED:
            row[name] = measured(step_of(LOSSES[name](), z, labels), device, repeats)
        for name, peer in peers().items():
            if B <= 16384:                              # beyond, theirs need hundreds of GB
                step = step_of(peer, z, labels)
                few = min(repeats, 5)
                row[f'{name}, peer'] = measured(step, device, few, forgiven=RuntimeError)
        yield row


def blocks(device, small):
    "Time and memory over the number of similarities in a block, from which the default is chosen"
    B, D = (512, 32) if small else (32768, 128)
    z, labels = batch(B, D, device)
    for power in range(14, 19) if small else range(20, 31):
        block = max(1, min(B, 2**power // B))
        for name in ('multi_similarity', 'triplet', 'dro_top_k'):
            step = step_of(LOSSES[name](block=block), z, labels)
            found = measured(step, device, 3 if small else 5)
            yield dict(B=B, D=D, loss=name, similarities=2**power, block=block, **found)


def compiled(device, small):
    "A loss as it is, and in one graph"
    sizes = (256,) if small else (1024, 4096, 16384)
    for B in sizes:
        z, labels = batch(B, 128, device)
        for name in TIMED:
            torch.compiler.reset()
            loss = LOSSES[name]()
            row = dict(B=B, loss=name, eager=measured(step_of(loss, z, labels), device, 20))
            step = step_of(torch.compile(loss, fullgraph=True), z, labels)
            row['compiled'] = measured(step, device, 20, forgiven=Exception)
            yield row


def launches(step, device):
    "How many kernels and copies a step starts on the GPU; None on a CPU"
    if device != 'cuda':
        return None
    step()
    wait(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        wait(device)
    return sum(event.device_type == DeviceType.CUDA for event in seen.events())


def as_graph(step):
    "The step as a CUDA graph, which is captured on the first call: one launch for all kernels"
    graph = None

    def replay():
        nonlocal graph
        if graph is None:
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        graph.replay()
    return replay


def small_batches(device, small):
    "Batches of 32 to 512: how many launches, and the time as it is, compiled, and as a CUDA graph"
    theirs, repeats = peers(), 3 if small else 100
    for name in OF_SMALL_BATCHES[:2] if small else OF_SMALL_BATCHES:
        torch.compiler.reset()
        loss = LOSSES[name].for_data(128, 128).to(device)
        one_graph = torch.compile(loss, fullgraph=True, dynamic=True)
        for B in (32,) if small else (32, 64, 128, 256, 512):
            z, labels = batch(B, 128, device)
            step = step_of(loss, z, labels)
            row = dict(B=B, loss=name, launches=launches(step, device),
                       eager=measured(step, device, repeats),
                       compiled=measured(step_of(one_graph, z, labels), device, repeats,
                                         forgiven=Exception))
            if device == 'cuda':
                row['CUDA graph'] = measured(as_graph(step), device, repeats, forgiven=Exception)
            if name in theirs:
                step = step_of(theirs[name], z, labels)
                row |= {'launches, peer': launches(step, device),
                        'eager, peer': measured(step, device, repeats)}
            yield row


def resnet(device, small):
    "A step of training ResNet-50 on 128 pictures of 224 × 224 in bf16: what the loss adds to it"
    from torchvision.models import resnet50
    B, side = (8, 32) if small else (128, 224)
    body = resnet50(num_classes=128).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(body.parameters(), lr=1e-3)
    pictures = torch.randn(B, 3, side, side, device=device).to(memory_format=torch.channels_last)
    labels = (torch.arange(B) // 4).to(device)

    def step_with(loss):
        def step():
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                embeddings = body(pictures)
            loss(embeddings.float(), labels).backward()
            optimizer.step()
        return step

    repeats = 2 if small else 30
    without = measured(step_with(lambda z, labels: z.mean()), device, repeats)
    for name in OF_SMALL_BATCHES[:2] if small else OF_SMALL_BATCHES:
        loss = LOSSES[name].for_data(B // 4, 128).to(device)
        z = torch.randn(B, 128, device=device, requires_grad=True)
        yield dict(B=B, side=side, loss=name, without=without,
                   whole=measured(step_with(loss), device, repeats),
                   alone=measured(step_of(loss, z, labels), device, repeats))


def omniglot(device, small):
    "The recipe of the page on the Learner, whose file for a CPU is results/omniglot.json"
    from dml_nb.data import jitter_images, load_data, turn_classes
    from dml_nb.experiments.trial import measure
    from dml_nb.training import metric_dataloaders, metric_learner
    from dml_nb.losses import NPairs
    images = load_data('omniglot', size=20)
    known, unseen = (images.subset(images.split == part) for part in ('train', 'test'))
    epochs = 2
    if small:
        known, unseen, epochs = known.subset(range(200)), unseen.subset(range(200)), 1
    known = turn_classes(known)
    for seed in range(1 if small else 3):
        dls = metric_dataloaders(
            known, unseen, 40, 4, seed=seed, augment=jitter_images, device=device)
        learn = metric_learner(dls, 'small_convnet', NPairs(scale=16.), 128, seed=seed)
        row = dict(seed=seed, data=images.sha256(), untrained=measure(*learn.embed()))
        start = time.perf_counter()
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(epochs, 5e-3)
        row['seconds'] = time.perf_counter() - start
        row['trained'] = measure(*learn.embed())
        yield row


def finetune(device, small, path):
    "tools/finetune_squeezenet.py, which writes its own file, with the sets that are there"
    from finetune_squeezenet import SETS, main
    options = ['--device', device, '--out', str(path)]
    options += ['--sets', *(name for name in SETS if not lacking(f'{name}/images.zip'))]
    if small:
        options += ['--seeds', '0', '--set', 'epochs=1', 'classes=4', 'per_class=2', 'every=16']
    main(options)


MEASURED = dict(speed=speed, blocks=blocks, compiled=compiled, small=small_batches, resnet=resnet,
                omniglot=omniglot)
TIMES = 'forward + backward, classes of four, float32, medians'
WHAT = dict(
    speed=TIMES, blocks=TIMES, compiled=f'{TIMES}, D = 128; torch.compile(fullgraph=True)',
    small=f'{TIMES}, D = 128; launches: kernels and copies of a step, by the profiler; compiled: '
          'torch.compile(fullgraph=True, dynamic=True)',
    resnet='a step of ResNet-50, bf16, medians; without: the mean of the embeddings in place of a '
           'loss; alone: the loss on embeddings that are there',
    omniglot='among the evaluation characters, which were not in training; seconds of training; '
             'small_convnet and NPairs(scale=16.), as in results/omniglot.json')
#: What a step cannot do without, and of which it needs one.
NEEDED = dict(omniglot='omniglot/alphabets.csv', finetune='weights/squeezenet1_1*')
ONE_OF = dict(finetune=['cub-50/images.zip', 'cars196-train-crops/images.zip'])


def lacking(pattern):
    "Whether the data have no such file"
    return not any(Path(os.environ['DML_NB_DATA']).glob(pattern))


def trainable(step):
    "Whether a step can train; says what is missing"
    try:
        import dml_nb.training.learner                                           # noqa: F401
    except ImportError as error:
        print(f'{step}: fastai cannot be imported ({error}): nothing was trained')
        return False
    choice = ONE_OF.get(step, [])
    missing = [name for name in [NEEDED[step], *choice] if lacking(name)]
    possible = NEEDED[step] not in missing and (not choice or missing != choice)
    for name in missing:
        print(f'{step}: {name} is missing in {os.environ["DML_NB_DATA"]}')
    if not possible:
        print(f'{step}: nothing was trained')
    return possible


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('step', choices=[*MEASURED, 'finetune'])
    parser.add_argument('--device', default='cuda', choices=('cuda', 'cpu'))
    parser.add_argument('--small', action='store_true', help='small sizes, to try the step')
    parser.add_argument('--folder', type=Path, help='where the file goes, default results/')
    given = parser.parse_args(arguments)
    if given.device == 'cuda' and not torch.cuda.is_available():
        print('no GPU that torch can use: nothing was measured')
        return
    if given.folder is None and (given.device == 'cpu' or given.small):
        parser.error('expected --folder with --device cpu or --small')
    os.environ.setdefault('DML_NB_DATA', str(root/'.data'))
    if given.step in NEEDED and not trainable(given.step):
        return
    folder = given.folder or root/'results'
    folder.mkdir(parents=True, exist_ok=True)
    path = folder/f'gpu_{given.step}.json'
    if given.step == 'finetune':
        return finetune(given.device, given.small, path)
    device = torch.cuda.get_device_name() if given.device == 'cuda' else 'cpu'
    rows = []
    for row in MEASURED[given.step](given.device, given.small):
        rows.append(row)
        print(row, flush=True)
        write_json(path, dict(device=device, what=WHAT[given.step], rows=rows), seed=0)
    print(f'wrote {path.name}')


if __name__ == '__main__':
    main()
