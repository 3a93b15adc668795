#!/usr/bin/env bash
# Pins the versions to which an installation of the given extras resolves today, in a separate virtual environment.
# torch stays at its pinned version: each of its builds requires different packages, so it is updated by hand.
# setuptools builds packages that have no wheel (mup).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:?usage: constraints.sh PYTHON EXTRAS} extras=${2:?}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
grep '^torch==' .ci/constraints.txt >"$scratch/torch"
"$python" -m venv "$scratch/venv"
pip=("$scratch/venv/bin/python" -m pip)
"${pip[@]}" install -q -c "$scratch/torch" hatchling editables setuptools
"${pip[@]}" install -q -c "$scratch/torch" --no-build-isolation -e ".[$extras]"
{
  sed -n '/^#/p' .ci/constraints.txt
  # A local build's suffix (`+cpu`) is left out: the same version fits every build.
  "${pip[@]}" freeze --all --exclude-editable | grep -viE '^pip==' | sed 's/^\([^ ]*==[^+ ]*\)+.*/\1/'
} >"$scratch/constraints"
cp "$scratch/constraints" .ci/constraints.txt
.ci/hashes.sh "$python"
echo "constraints: $(grep -c == .ci/constraints.txt) packages; run 'make setup test'"
