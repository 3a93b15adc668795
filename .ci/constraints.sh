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
# This Python may be newer than the oldest one that the project runs on.
oldest=$(sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml).0
"$scratch/venv/bin/python" - "$oldest" <<'EOF'
import sys
from importlib.metadata import distributions
from pip._vendor.packaging.specifiers import SpecifierSet

found = [(one.name, one.version, one.metadata["Requires-Python"]) for one in distributions()]
wrong = [f"{name}=={version} needs Python {needs}" for name, version, needs in found if needs and sys.argv[1] not in SpecifierSet(needs)]
sys.exit("constraints: not for Python " + sys.argv[1] + ": " + "; ".join(wrong) if wrong else 0)
EOF
{
  sed -n '/^#/p' .ci/constraints.txt
  # A local build's suffix (`+cpu`) is left out: the same version fits every build.
  "${pip[@]}" freeze --all --exclude-editable | grep -viE '^pip==' | sed 's/^\([^ ]*==[^+ ]*\)+.*/\1/'
} >"$scratch/constraints"
cp "$scratch/constraints" .ci/constraints.txt
.ci/hashes.sh "$python"
echo "constraints: $(grep -c == .ci/constraints.txt) packages; run 'make setup test'"
