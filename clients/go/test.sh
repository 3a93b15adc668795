#!/usr/bin/env bash
# All checks of the Go client: vet, staticcheck, the unit tests with the race detector if there is a C compiler, and
# the tests against a real scheduler (tests/go_client). `make test-clients` runs it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
eval "$("$here/toolchain.sh")"
cd "$here"

echo "go: vet"
go vet ./...
unformatted=$(find . -name .tools -prune -o -name '*.go' -print | xargs gofmt -l) # gofmt itself enters .tools
[ -z "$unformatted" ] || { echo "go: gofmt would change $unformatted" >&2; exit 1; }

tools=${HEADRACE_GO_TOOLS:-$here/.tools}
if ! command -v staticcheck >/dev/null && [ -n "${HEADRACE_GOCODE:-}" ]; then
  echo "go: building staticcheck"
  GO111MODULE=off GOFLAGS="" GOPATH="$HEADRACE_GOCODE" \
    go build -o "$tools/bin/staticcheck" honnef.co/go/tools/cmd/staticcheck
fi
if [ -n "${HEADRACE_LINT_GO:-}" ]; then
  echo "go: staticcheck"
  GOROOT="$HEADRACE_LINT_GO" PATH="$HEADRACE_LINT_GO/bin:$PATH" GOCACHE="$tools/lint-cache" staticcheck ./...
elif command -v staticcheck >/dev/null; then
  echo "go: staticcheck"
  staticcheck ./...
else
  echo "go: no staticcheck here, so it is left out"
fi

echo "go: unit tests"
if command -v "${CC:-cc}" >/dev/null; then go test -race ./...; else go test ./...; fi

echo "go: stubs are what the protos generate"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0
./proto.sh "$scratch" || status=$?
case $status in
  0) diff -r headrace/v1 "$scratch/headrace/v1" || { echo "run 'make proto' and commit the result" >&2; exit 1; } ;;
  3) ;; # it said why
  *) exit "$status" ;;
esac

echo "go: against a real scheduler"
cd "$repository"
HEADRACE_CLIENT_TESTS=1 python -m pytest -q -n 0 tests/go_client "$@"
