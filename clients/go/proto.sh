#!/usr/bin/env bash
# Generates the Go stubs of headrace.v1 below the given folder. Needs grpcio-tools in the Python on the path, and the
# generators that toolchain.sh fetches (or others on the path).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: proto.sh FOLDER}
mkdir -p "$out"
out=$(cd "$out" && pwd)
eval "$("$here/toolchain.sh" --if-there)"
if ! command -v protoc-gen-go >/dev/null || ! command -v protoc-gen-go-grpc >/dev/null; then
  echo "proto: no Go stubs: clients/go/toolchain.sh fetches their generators" >&2
  exit 3
fi
module=github.com/headrace/headrace/clients/go
cd "$here/../.."
python -m grpc_tools.protoc -Iprotos --go_out="$out" --go_opt="module=$module" \
  --go-grpc_out="$out" --go-grpc_opt="module=$module" protos/headrace/v1/*.proto
