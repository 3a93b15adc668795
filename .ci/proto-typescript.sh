#!/usr/bin/env bash
# Generates the TypeScript stubs of headrace.v1, and those of Google's error details, into clients/typescript/src/gen. `npm run build` calls it.
# Needs `npm ci` in clients/typescript, and a Python with grpcio-tools and googleapis-common-protos: .venv's, or the one on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
root=clients/typescript/src/gen
plugin=clients/typescript/node_modules/.bin/protoc-gen-es
google=$(python -c 'import google.rpc.status_pb2, grpc_tools, pathlib; print(pathlib.Path(google.rpc.status_pb2.__file__).parents[2])') || {
  echo "The stubs are generated with grpcio-tools, and Python has none: run 'make setup'." >&2
  exit 1
}

new=$(mktemp -d "$(dirname "$root")/.gen.XXXXXX")
trap 'rm -rf "$new"' EXIT
python -m grpc_tools.protoc -Iprotos -I"$google" --plugin=protoc-gen-es="$plugin" \
  --es_out="$new" --es_opt=target=ts,import_extension=js \
  protos/headrace/v1/*.proto "$google"/google/rpc/{error_details,status}.proto
rm -rf "$root"
mv "$new" "$root"
chmod 755 "$root"
