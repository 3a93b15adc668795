#!/usr/bin/env bash
# Generates the TypeScript stubs of headrace.v1, and those of Google's error details, below the given source root.
# Needs grpcio-tools and googleapis-common-protos on PATH's Python, and `npm ci` in clients/typescript.
set -euo pipefail
cd "$(dirname "$0")/.."
root=${1:?usage: proto-typescript.sh SOURCE_ROOT}
plugin=clients/typescript/node_modules/.bin/protoc-gen-es
google=$(python -c 'import google.rpc.status_pb2, pathlib; print(pathlib.Path(google.rpc.status_pb2.__file__).parents[2])')

mkdir -p "$root"
python -m grpc_tools.protoc -Iprotos -I"$google" --plugin=protoc-gen-es="$plugin" \
  --es_out="$root" --es_opt=target=ts,import_extension=js \
  protos/headrace/v1/*.proto "$google"/google/rpc/{error_details,status}.proto
