#!/usr/bin/env bash
# Tests the released wheel together with the wheel of the example package, which has its own policy and sampler, in a
# new virtual environment outside the repository. There the package passes the contract suite, is simulated, and runs
# a study on workers. Usage: `wheel.sh PYTHON [FOLDER]`. The folder is kept; without one, a temporary folder is used.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python=${1:?usage: wheel.sh PYTHON [FOLDER]} folder=${2:-}
if [ -z "$folder" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder/wheels" "$folder/study" "$folder/home"
folder=$(cd "$folder" && pwd)
builder=$(command -v python)

for project in . examples/own_policy; do
  (cd "$project" && "$builder" -m hatchling build -t wheel -d "$folder/wheels" 2>&1) | sed 's/^/wheel: built /'
done
"$python" -m venv "$folder/venv"
headrace=$(echo "$folder"/wheels/headrace-*.whl) patience=$(echo "$folder"/wheels/patience-*.whl)
"$folder/venv/bin/python" -m pip install -q -c .ci/constraints.txt \
  "headrace[services,worker] @ file://$headrace" "$patience" pytest
cp examples/own_policy/{study.yaml,train.py,test_patience.py} "$folder/study"

# From here on, the checkout, its environment and the user's home are not visible.
run() { echo "wheel: $ $*"; env -i HOME="$folder/home" TMPDIR="${TMPDIR:-/tmp}" PATH="$folder/venv/bin:/usr/bin:/bin" LANG=C.UTF-8 "$@"; }
cd "$folder/study"
run python - "$root" <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path
import headrace, headrace_services, headrace_worker
for package in (headrace, headrace_services, headrace_worker):
    assert not Path(package.__file__).is_relative_to(sys.argv[1]), package.__file__
print("wheel: headrace", version("headrace"), "and patience", version("patience"), "are installed")
PYTHON
run pytest -q -p no:cacheprovider test_patience.py
run headrace simulate study.yaml --workers 4
run headrace run --local --slots 2 study.yaml
