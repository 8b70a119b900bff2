#!/usr/bin/env bash
# Installs what building, testing and comparing need, by package name.
# Does nothing, quickly, where everything is there already.
set -euo pipefail

missing=()
command -v cc >/dev/null || missing+=(build-essential)
command -v memcached >/dev/null || missing+=(memcached)
command -v redis-server >/dev/null || missing+=(redis-server)
command -v etcd >/dev/null || missing+=(etcd-server)
command -v etcdctl >/dev/null || missing+=(etcd-client)
if ((${#missing[@]})); then
  as_root=()
  [[ $(id -u) == 0 ]] || as_root=(sudo)
  echo "installing: ${missing[*]}" >&2
  # The peers are started by the benchmarks themselves, on ports of their own:
  # RUNLEVEL keeps the packages from starting a service now.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  "${as_root[@]}" apt-get update -q >&2
  "${as_root[@]}" env RUNLEVEL=1 apt-get install -qy --no-install-recommends "${missing[@]}" >&2
fi
command -v cargo >/dev/null || {
  echo "cargo is missing: install Rust 1.95 or newer with rustup" >&2
  exit 1
}
