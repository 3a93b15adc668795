#!/usr/bin/env bash
# Makes an environment with Ray that also sees what `make setup` installed.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$1
rm -rf "$folder"
echo "ray: making $folder and installing Ray"
.venv/bin/python -m venv "$folder"
# With a .pth file, because --system-site-packages would show the packages of the interpreter instead.
.venv/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
  >"$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zzz_setup.pth"
"$folder/bin/python" -m pip install --quiet -c .ci/constraints.txt -c .ci/ray.txt ray
