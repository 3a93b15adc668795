#!/usr/bin/env bash
# Generates the Python stubs of headrace.v1 below the given source root: messages and their types for every
# file, gRPC classes only for the files that define a service. Needs grpcio-tools and mypy-protobuf on PATH's Python.
set -euo pipefail
cd "$(dirname "$0")/.."
root=${1:?usage: proto.sh SOURCE_ROOT}

mkdir -p "$root"
mapfile -t services < <(grep -lE '^service ' protos/headrace/v1/*.proto)
python -m grpc_tools.protoc -Iprotos --python_out="$root" --mypy_out=quiet:"$root" protos/headrace/v1/*.proto
python -m grpc_tools.protoc -Iprotos --grpc_python_out="$root" --mypy_grpc_out=quiet:"$root" "${services[@]}"
