#!/usr/bin/env bash
# All tests. Prints the seconds of each stage.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/stages.sh

mkdir -p target/clients target/beside
built=target/tested
faults=kill,restart,stop,flush,client-kill,gateway-restart,memory,skew
export TREFOIL=$PWD/$built/trefoil

# Runs something beside the stages: most of what we test waits for servers and clocks. In a
# process group of its own, to be ended with everything that it started; what it prints is shown
# when it is awaited.
declare -A beside=()
beside() {
  local name=$1
  shift
  set -m
  (stage_now= && "$@") >"target/beside/$name.log" 2>&1 &
  set +m
  beside[$name]=$!
  trap 'end_all_beside' EXIT
}

await_beside() {
  local name=$1 code=0
  wait "${beside[$name]}" || code=$?
  unset "beside[$name]"
  cat "target/beside/$name.log"
  return "$code"
}

end_all_beside() {
  local name
  for name in "${!beside[@]}"; do
    kill -- "-${beside[$name]}" 2>/dev/null || true
  done
}

# Servers, and the clients' packages, are installed while the compiler works; one after the
# other: there is one package manager.
fetch_peers() {
  scripts/setup.sh memcached redis postgres etcd tlc rocksdb
  tests/clients/setup.sh
  scripts/check-manifests.py --set-up
}

await_peers() {
  await_beside peers >target/clients/setup.log || {
    cat target/clients/setup.log >&2
    return 1
  }
}

# Every way to the cell, few keys and many, kills and stops, clocks that are wrong by
# seconds; then everything at full memory, with etcd and without.
histories() {
  recorded histories --operations 200000 --rounds 2 --faults "$faults"
  # By their seeds: over etcd with spares in the places of the dead, over a directory,
  # over etcd.
  recorded chaos --chaos --seconds 75 --rounds 3 --seed 2
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
  # Others may have this machine's cores.
  trial fresh --changes 10000 --kills 1 --bound-ms 3000
  # Freshness that is broken on purpose has to be noticed.
  broken_trial "reads that were stale" fresh --break deaf-to-one-row
  broken_trial "of these answered with what was kept" fresh --break keeps-nothing
  broken_trial "how old what is kept may be" fresh --break wide-bound
  # A rate that this flavour can do on a busy machine.
  trial copies --rate 2000 --objects 3000 --breaks 3
}

linked_store() {
  linked_trials
  linked_quick
}

trial() {
  local name=$1
  "$built/linked-trials" "$@" >"target/trial-$name.txt" 2>&1 || {
    cat "target/trial-$name.txt" >&2
    return 1
  }
  echo "$name"
  sed -n '/^$/,$p' "target/trial-$name.txt" | tail -n 20
}

# The line of the verdict that has to say so, and the trial.
broken_trial() {
  local line=$1 name=$2 output=target/trial-$2-$4.txt
  shift
  if "$built/linked-trials" "$@" --changes 20000 --kills 0 --bound-ms 3000 >"$output" 2>&1 ||
    ! grep -q "^$line.*NOT SO$" "$output"; then
    cat "$output" >&2
    echo "$name: what is broken on purpose was not noticed" >&2
    return 1
  fi
  echo "$name $3: noticed"
}

stage "compiler" scripts/setup.sh
beside peers fetch_peers
stage "formatting" cargo fmt --all --check
stage "build" cargo build --profile tested --workspace --features trefoil/full --lib --bins --tests --locked
stage "names in documentation and scripts" scripts/check-names.py "$TREFOIL"
stage "servers and clients' packages" await_peers
stage "manifests for Kubernetes" scripts/check-manifests.py "$TREFOIL" "$built/sessions"
beside computing scripts/run-tests.py --part computes tested
beside specification chrt --idle 0 spec/check.py
stage "tests of every crate that talk to servers, wait, or ask the system" scripts/run-tests.py --part waits tested
stage "histories and chaos" histories
stage "linked store: histories, outages, a database that fails over, broken streams; beside caches" linked_store
stage "specification, by TLC" await_beside specification
stage "tests of every crate that only compute" await_beside computing
# Clients have their own patience, a second or less: nothing runs beside them.
stage "real clients, and memcached's own tests" scripts/clients.sh --checks-only serve gateway
stages_report
