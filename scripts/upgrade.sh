#!/usr/bin/env bash
# A rolling upgrade from the previous release to this one and a downgrade back, under
# load, with clients and gateways of both. The previous release is named by
# packaging/previous-release and built in a tree of its own under target/previous.
#
# UPGRADE_PROFILE (release), UPGRADE_OPERATIONS, UPGRADE_ROUNDS and UPGRADE_QUICK (1: the
# short form of the scenario) can be set from outside.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${UPGRADE_PROFILE:-release}
operations=${UPGRADE_OPERATIONS:-4000000}
rounds=${UPGRADE_ROUNDS:-8}
named=packaging/previous-release

fail() {
  printf '\n!! %s\n' "$@" >&2
  exit 1
}

release=$(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$named")
[[ -n $release && $release != *$'\n'* ]] ||
  fail "$named has to name one tag or commit: see docs/releasing.md"
if ! commit=$(git rev-parse --verify --quiet "$release^{commit}"); then
  if [[ $(git rev-parse --is-shallow-repository) = true ]]; then
    fail "the previous release, $release, is not in this clone, which is shallow:" \
      "fetch the rest with: git fetch --unshallow --tags"
  fi
  fail "the previous release, $release, is not in this clone:" \
    "fetch it with: git fetch --tags; or mend $named (docs/releasing.md)"
fi

# Not `git worktree`: nothing of it stays behind in the repository.
source=target/previous/$commit
if [[ ! -e $source/.complete ]]; then
  # What was built of another release is of no use.
  rm -rf target/previous
  mkdir -p "$source"
  # With the present time: cargo goes by it.
  git archive "$commit" | tar -x -m -C "$source"
  touch "$source/.complete"
fi
built=$profile
[[ $profile != dev ]] || built=debug
echo "previous release: $release ($commit)"
# A folder of its own: cargo takes crates of the same name and place in another tree for
# its own, and would build one release out of parts of the other.
cargo build --profile "$profile" --locked --quiet -p trefoil --features trefoil/full \
  --manifest-path "$source/Cargo.toml" --target-dir "$PWD/$source/target"
cargo build --profile "$profile" --locked --quiet -p trefoil --features trefoil/full
previous=$PWD/$source/target/$built/trefoil
present=$PWD/target/$built/trefoil
cmp --silent "$previous" "$present" &&
  echo "note: both releases are the same program, byte by byte"

for mode in R=3.2 R=1; do
  echo "-- histories, $mode: cells begun by either release, clients and gateways of both"
  "$present" histories --previous "$previous" --mode "$mode" \
    --operations "$operations" --rounds "$rounds"
done
echo "-- every key written before, at R=3.2 and R=1: no GET may miss"
options=()
[[ ${UPGRADE_QUICK:-0} = 0 ]] || options+=(--quick)
"$present" bench scenario upgrade --previous "$previous" "${options[@]}"
