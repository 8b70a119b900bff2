#!/usr/bin/env bash
# Builds the example service and shows the linked store at work.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh postgres
cargo build --release --locked -p address-book -p trefoil --features trefoil/linked
exec target/release/address-book demo "$@"
