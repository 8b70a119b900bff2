#!/usr/bin/env bash
# All tests. Prints the seconds of each stage.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/stages.sh

built=target/tested
repeated=$built/repeated-suites
export TREFOIL=$PWD/$built/trefoil

# The clients' packages are downloaded while the compiler works; in a session of
# their own, to be ended with everything that they started.
fetch_clients() {
  mkdir -p target/clients
  setsid tests/clients/setup.sh >target/clients/setup.log 2>&1 &
  clients=$!
  trap 'kill -- "-$clients" 2>/dev/null || true' EXIT
}

await_clients() {
  wait "$clients" || {
    cat target/clients/setup.log >&2
    return 1
  }
}

# That every form works; this flavour's figures say nothing.
linked_quick() {
  "$TREFOIL" bench linked --quick --out target/linked-quick >target/linked-quick.txt 2>&1 || {
    cat target/linked-quick.txt >&2
    return 1
  }
}

stage "tools and peers" scripts/setup.sh
fetch_clients
stage "formatting" cargo fmt --all --check
stage "build" cargo build --profile tested --workspace --bins --tests --locked --quiet
stage "clients' packages" await_clients
stage "tests of every crate" scripts/run-tests.py tested "$repeated"
stage "simulator, a mutant for each safety rule" \
  cargo test --profile tested --locked --quiet -p trefoil-sim --features mutants --test mutants
stage "linked store beside caches, quick" linked_quick
stage "real clients, and memcached's own tests" scripts/clients.sh --checks-only serve gateway
stages_report
if [[ -s $repeated ]]; then
  echo "failed at first and passed when repeated alone:"
  cat "$repeated"
fi
