#!/usr/bin/env bash
# What the conformance suite asks of this client: tests/conformance/README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

missing() { echo "$1" >&2; exit 3; }
node_is_there() { node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' 2>/dev/null; }

case ${1:?usage: conformance.sh ready|build|driver|trial|test} in
  ready)
    node_is_there || missing "Node 20 or newer is not on the path."
    [[ -f $here/build/conformance/driver.js ]] || missing "The TypeScript client is not built: clients/typescript/conformance.sh build."
    newer=$(cd "$here" && find src conformance package-lock.json ../../protos/headrace -path src/gen -prune -o -newer build/conformance/driver.js -type f -print -quit)
    [[ -z $newer ]] || missing "The TypeScript client is not built from these sources ($newer is newer): clients/typescript/conformance.sh build."
    ;;
  build)
    node_is_there || missing "Node 20 or newer is not on the path."
    cd "$here"
    [[ -d node_modules && ! package-lock.json -nt node_modules/.package-lock.json ]] || npm ci --no-audit --no-fund --loglevel=error >&2 || missing "npm cannot install the client's packages."
    npm run --silent build:all >&2
    ;;
  driver) exec node "$here/build/conformance/driver.js" ;;
  trial) exec node "$here/build/conformance/trial.js" ;;
  test) cd "$here" && npm run --silent lint && npm test ;;
  *) echo "usage: conformance.sh ready|build|driver|trial|test" >&2; exit 2 ;;
esac
