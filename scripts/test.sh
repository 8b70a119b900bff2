#!/usr/bin/env bash
# All tests. Prints the seconds of each stage.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/stages.sh

built=target/tested
faults=kill,restart,stop,flush,client-kill,gateway-restart,memory,skew
export TREFOIL=$PWD/$built/trefoil

# Servers, and the clients' packages, are installed while the compiler works; in a
# session of their own, to be ended with everything that they started. One after the
# other: there is one package manager.
fetch_peers() {
  mkdir -p target/clients
  setsid bash -ec 'scripts/setup.sh memcached redis postgres etcd tlc rocksdb
    tests/clients/setup.sh
    scripts/check-manifests.py --set-up' >target/clients/setup.log 2>&1 &
  peers=$!
  trap 'kill -- "-$peers" 2>/dev/null || true' EXIT
}

await_peers() {
  wait "$peers" || {
    cat target/clients/setup.log >&2
    return 1
  }
}

# The specification takes two minutes of one core, which tests that wait for servers
# leave over.
check_specification() {
  mkdir -p target/spec
  nice -n 19 spec/check.py >target/spec.log 2>&1 &
  specification=$!
  # Not with the exit code of these: there may be nothing left to end.
  trap 'pkill -P "$specification" || true; kill "$specification" 2>/dev/null || true' EXIT
}

await_specification() {
  local code=0
  wait "$specification" || code=$?
  trap - EXIT
  cat target/spec.log
  return "$code"
}

# Every way to the cell, few keys and many, kills and stops, clocks that are wrong by
# seconds; then everything at full memory, with etcd and without.
histories() {
  recorded histories --operations 200000 --rounds 2 --faults "$faults"
  # By their seeds: over etcd with spares in the places of the dead, over a directory,
  # over etcd.
  recorded chaos --chaos --seconds 120 --rounds 3 --seed 2
}

recorded() {
  local name=$1
  shift
  "$TREFOIL" histories "$@" >"target/$name.txt" 2>&1 || {
    cat "target/$name.txt" >&2
    return 1
  }
  grep '^SKIPPED\|^MISSING\|^NOT SHOWN' "target/$name.txt" || true
  tail -n 8 "target/$name.txt"
}

# That every form works; this flavour's figures say nothing.
linked_quick() {
  "$TREFOIL" bench linked --quick --out target/linked-quick >target/linked-quick.txt 2>&1 || {
    cat target/linked-quick.txt >&2
    return 1
  }
}

# What the linked store promises, by processes that are killed and cut off: the short form.
linked_trials() {
  trial histories --seconds 30 --seed 1
  trial outages --lists 300
  trial fresh --changes 10000 --kills 1
  # A rate that this flavour can do on a busy machine.
  trial copies --rate 2000 --objects 3000 --breaks 3
}

trial() {
  local name=$1
  "$built/linked-trials" "$@" >"target/trial-$name.txt" 2>&1 || {
    cat "target/trial-$name.txt" >&2
    return 1
  }
  echo "$name"
  sed -n '/^$/,$p' "target/trial-$name.txt" | tail -n 16
}

stage "compiler" scripts/setup.sh
fetch_peers
stage "formatting" cargo fmt --all --check
stage "build" cargo build --profile tested --workspace --features trefoil/full --lib --bins --tests --locked
stage "names in documentation and scripts" scripts/check-names.py "$TREFOIL"
stage "servers and clients' packages" await_peers
stage "manifests for Kubernetes" scripts/check-manifests.py "$TREFOIL" "$built/sessions"
check_specification
stage "tests of every crate" scripts/run-tests.py tested
stage "specification, by TLC" await_specification
stage "histories and chaos" histories
stage "linked store: histories, outages, a database that fails over, broken streams" linked_trials
stage "linked store beside caches, quick" linked_quick
stage "real clients, and memcached's own tests" scripts/clients.sh --checks-only serve gateway
stages_report
