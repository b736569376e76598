#!/usr/bin/env bash
# What needs a GPU, each step on its own, so that a failure loses nothing: in all under 25 minutes
# on one card. `bash tools/gpu.sh` runs all steps, `bash tools/gpu.sh tests speed` those named.
# Without a GPU it says so. Results and logs go to the folder $OUT, else to results/.
#
# Where commands end after ten minutes, four calls do: `tests blocks`, `speed`, `compiled small` and
# `resnet finetune omniglot`.
#
# Packages: torch, torchvision and fastcore, and pytest for the tests. Used where they are there:
# pytorch-metric-learning, to compare speeds, and fastai, to train. What a machine lacks can be
# carried in the folder .whl, as wheels for its Python. To a machine with torch, torchvision, timm,
# scikit-learn, pandas, matplotlib and safetensors these twelve have to be carried, 3 MiB:
#   fastcore pytorch-metric-learning, and for fastai: fastai fastprogress fasttransform
#   fastdownload plum-dispatch beartype python-fasthtml starlette itsdangerous python-multipart
#   For `omniglot` and for the test of a body whose last modules learn also faiss-cpu, 18 MiB.
#   (pip download --no-deps --only-binary=:all: --python-version 3.12 -d .whl NAMES)
#
# Data: `finetune` and `omniglot` look in $DML_NB_DATA, else in the folder .data, and where there
# is none they say so and train nothing. `python tools/finetune_squeezenet.py --pack .data` makes
# that folder: cars196-train-crops 28.9 MiB, cub-50 8.7, omniglot 5.5, weights 2.8; with `--sets
# cub-50` without the cars. The files of this repository are 20 MiB. Where 64 MiB can be carried,
# all of it does not fit at once: carry the cars without faiss-cpu, for `finetune`, and the others
# with it. Neither folder is to be committed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo 'no GPU that torch can use: nothing to do'
  exit 0
fi
if compgen -G '.whl/*.whl' > /dev/null; then
  site=$(mktemp -d)
  "$python" -m pip install -q --no-index --no-deps --target "$site" .whl/*.whl &&
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if ! "$python" -c 'import fastcore'; then
  echo 'fastcore is not installed: no step can run without it'
  exit 1
fi
out=${OUT:-results}
mkdir -p "$out"
wanted=" $* "
failed=()

step() { # seconds, name, command
  local seconds=$1 name=$2; shift 2
  if [[ $wanted != '  ' && $wanted != *" $name "* ]]; then return; fi
  ran=yes
  printf '\n=== %s\n' "$name"
  timeout "$seconds" "$@" 2>&1 | tee "$out/gpu_$name.log" || failed+=("$name")
}

step 330 tests "$python" -m pytest -q -m cuda tests/test_cuda.py
step 200 blocks "$python" tools/gpu.py blocks --folder "$out"
step 330 speed "$python" tools/gpu.py speed --folder "$out"
step 150 compiled "$python" tools/gpu.py compiled --folder "$out"
step 120 small "$python" tools/gpu.py small --folder "$out"
step 60 resnet "$python" tools/gpu.py resnet --folder "$out"
step 150 finetune "$python" tools/gpu.py finetune --folder "$out"
step 150 omniglot "$python" tools/gpu.py omniglot --folder "$out"
if [ -z "${ran:-}" ]; then
  echo "no step is called $*"
  exit 2
fi
if [ ${#failed[@]} -gt 0 ]; then
  printf '\nfailed: %s\n' "${failed[*]}"
  exit 1
fi
echo 'all steps are done'
