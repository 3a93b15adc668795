#!/usr/bin/env bash
# Checks what must agree with something else in the repository: stubs with protos, protos with the last release,
# imports with the layering, documents with the code that they show and with each other.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "verify: stubs are what the protos generate"
.ci/proto.sh "$scratch"
if ! diff -ru -x __pycache__ -x __init__.py clients/python/headrace/v1 "$scratch/headrace/v1"; then
  echo "The committed stubs differ from the protos: run 'make proto' and commit the result." >&2
  exit 1
fi

status=0
clients/go/proto.sh "$scratch/go" 2>"$scratch/go-said" || status=$?
case $status in
  0)
    diff -r clients/go/headrace/v1 "$scratch/go/headrace/v1" || {
      echo "The committed Go stubs differ from the protos: run 'make proto' and commit the result." >&2
      exit 1
    }
    ;;
  3) echo "verify: Go stubs are not compared, for clients/go/toolchain.sh was not run" ;;
  *)
    cat "$scratch/go-said" >&2
    exit "$status"
    ;;
esac

echo "verify: protos follow the rules and break no client of the last release"
buf lint protos
buf breaking protos --against protos/headrace.binpb

echo "verify: imports follow the layers"
lint-imports --no-cache >"$scratch/imports" || { cat "$scratch/imports"; exit 1; }

echo "verify: documents and tracked files"
python .ci/documents.py --check
