#!/usr/bin/env bash
# Pins third-party images, in docker-compose.yml and services/Dockerfile, by the digests that their tags have today.
# With --check it changes nothing, and fails if a tag has another digest. It needs Docker with buildx, and the
# registry.
set -euo pipefail
cd "$(dirname "$0")/.."
files=(docker-compose.yml services/Dockerfile)

moved=0
for image in $(grep -ohE '[a-z/]+:v?[0-9][0-9a-z.-]*@sha256:[0-9a-f]{64}' "${files[@]}" | sort -u); do
  name=${image%@*}
  digest=$(docker buildx imagetools inspect "$name" --format '{{.Manifest.Digest}}')
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "images: no digest of $name: $digest" >&2; exit 1; }
  if [[ $image != "$name@$digest" ]]; then
    moved=1
    echo "images: $name is $digest now"
    [[ ${1:-} == --check ]] || sed -i "s|$image|$name@$digest|" "${files[@]}"
  fi
done
if [[ ${1:-} == --check && $moved == 1 ]]; then
  echo "images: run 'make images', and 'make test-compose'" >&2
  exit 1
fi
