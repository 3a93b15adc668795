#!/usr/bin/env bash
# The commands that the conformance suite (tests/conformance/README.md) requires of a client: ready, build, driver,
# trial or test.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
built=${HEADRACE_GO_TOOLS:-$here/.tools}/conformance

sources() { # a digest of all sources of the programs
  (cd "$here" && find . -name .tools -prune -o \( -name '*.go' -o -name go.mod -o -name toolchain.sh \) -print | sort | xargs sha256sum) |
    sha256sum | cut -d' ' -f1
}

case ${1:-} in
  ready)
    if [ "$(cat "$built/sources" 2>/dev/null)" != "$(sources)" ]; then
      echo "go: the programs are not built from these sources: make test-clients builds them, or clients/go/conformance.sh build" >&2
      exit 3
    fi
    ;;
  build)
    tools=$("$here/toolchain.sh") || exit 3 # it said why
    eval "$tools"
    mkdir -p "$built"
    cd "$here"
    if ! { go build -o "$built/driver" ./conformance && go build -o "$built/trial" ./conformance/trial &&
      go build -o "$built/bench" ./internal/bench; }; then
      echo "go: the programs cannot be built" >&2
      exit 3
    fi
    sources >"$built/sources"
    ;;
  driver) exec "$built/driver" ;;
  trial) exec "$built/trial" ;;
  bench) exec "$built/bench" "${@:2}" ;; # for benchmarks/clients: bench STUDY LOOPS
  test) "$here/test.sh" || exit 1 ;;
  *)
    echo "usage: conformance.sh ready|build|driver|trial|bench|test" >&2
    exit 2
    ;;
esac
