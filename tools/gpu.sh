#!/usr/bin/env bash
# All that needs a GPU, each step on its own, so that a failure loses nothing: under 25 minutes on
# one card. It needs torch and torchvision; pytest, fastai and pytorch-metric-learning are used
# where they are installed, or where their wheels lie in the folder .whl. Without a GPU it says so.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo 'no GPU that torch can use: nothing to do'
  exit 0
fi
if compgen -G '.whl/*.whl' > /dev/null; then
  site=$(mktemp -d)
  "$python" -m pip install -q --no-index --no-deps --target "$site" .whl/*.whl && export PYTHONPATH="$site"
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
out=${OUT:-results}
mkdir -p "$out"
failed=()

step() { # seconds, name, command
  local seconds=$1 name=$2; shift 2
  printf '\n=== %s\n' "$name"
  timeout "$seconds" "$@" 2>&1 | tee "$out/gpu_$name.log" || failed+=("$name")
}

step 300 tests "$python" -m pytest -q -m cuda tests/test_cuda.py
step 420 speed "$python" tools/gpu.py speed --folder "$out"
step 240 blocks "$python" tools/gpu.py blocks --folder "$out"
step 240 compiled "$python" tools/gpu.py compiled --folder "$out"
if [ ${#failed[@]} -gt 0 ]; then
  printf '\nfailed: %s\n' "${failed[*]}"
  exit 1
fi
echo 'all steps are done'
