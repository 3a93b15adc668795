#!/usr/bin/env bash
# Runs Headrace's tests and benchmarks for GPUs on this machine, without a network, and prints a table.
# usage: ./run.sh [--minutes 8] [--out FOLDER]     PYTHON=… names another interpreter than python3
#
# It installs the wheels beside it into ./venv, which also sees the packages of the interpreter: PyTorch, NumPy and
# SciPy. The record is benchmarks/gpu/results/CARD.json, or FOLDER/CARD.json. The card's settings are never changed.
set -euo pipefail
began=$(date +%s)
case " $* " in *" -h "* | *" --help "*) sed -n '2,6s/^# \?//p' "$0"; exit 0 ;; esac
out=()
for word; do
  case ${previous:-} in --out) out=(--out "$(mkdir -p "$word" && cd "$word" && pwd)") ;; esac
  case $word in --out=*) echo "run.sh: write --out FOLDER, without =" >&2; exit 2 ;; esac
  previous=$word
done
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./kit.env
python=${PYTHON:-python3}

# Compared here, for pip would only say that no version fits.
"$python" -c 'import sys' || {
  echo "run.sh: there is no $python; name the image's Python: PYTHON=/path/to/python ./run.sh" >&2
  exit 2
}
"$python" - "$KIT_PYTHON" "$KIT_MACHINE" "$KIT_GLIBC" "$KIT_NEEDS" <<'PYTHON' || exit 2
import platform
import re
import sys

wanted, machine, glibc, needs = sys.argv[1:]
has = "%d.%d" % sys.version_info[:2]


def refuse(text):
    sys.exit("run.sh: " + text)


def numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


if has != wanted:
    refuse(
        "this kit is for Python %s, and %s is Python %s. Name another one (PYTHON=python%s ./run.sh), or build the kit "
        "for this one (make gpu-kit KIT_PYTHON=python%s)" % (wanted, sys.executable, has, wanted, has)
    )
if platform.machine() != machine:
    refuse("this kit is for %s, and this machine is %s: build it on such a machine" % (machine, platform.machine()))
found = platform.libc_ver()
if found[0] != "glibc" or numbers(found[1]) < numbers(glibc):
    refuse("this kit needs glibc %s or newer, and this system has %s" % (glibc, " ".join(found) or "another libc"))

from importlib.metadata import PackageNotFoundError, version

for need in needs.split():
    name, _, least = need.partition(">=")
    try:
        there = version(name)
    except PackageNotFoundError:
        refuse(
            "%s has no %s, and the kit does not bring it. Use an image with it, in version %s or newer"
            % (sys.executable, name, least)
        )
    if numbers(there) < numbers(least):
        refuse("%s is %s, and Headrace needs %s or newer" % (name, there, least))
PYTHON

if [ "$(cat venv/made-for 2>/dev/null)" != "$PWD $(command -v "$python") $KIT_COMMIT" ]; then
  echo "run.sh: installing into $PWD/venv"
  rm -rf venv
  "$python" -m venv --without-pip venv
  # Not --system-site-packages: an image's Python may itself be a virtual environment, and that option skips it.
  site=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" - > "$site/image.pth" <<'PYTHON'
import sys

for path in sys.path:
    if path.endswith("-packages"):
        print(f"import site; site.addsitedir({path!r})")
PYTHON
  pip=("$python" -m pip --python venv/bin/python)
  if ! "$python" -m pip --version > /dev/null 2>&1; then
    venv/bin/python -m ensurepip > /dev/null
    pip=(venv/bin/python -m pip)
  fi
  PIP_CONFIG_FILE=/dev/null "${pip[@]}" install --quiet --disable-pip-version-check --no-warn-conflicts \
    --no-compile --no-index --find-links wheels -r requirements.txt
  echo "$PWD $(command -v "$python") $KIT_COMMIT" > venv/made-for
  echo "run.sh: installed in $(($(date +%s) - began)) s"
fi
export HEADRACE_KIT_COMMIT=$KIT_COMMIT
exec venv/bin/python benchmarks/gpu/kit_run.py --since "$began" "$@" ${out[@]+"${out[@]}"}
