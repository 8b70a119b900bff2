#!/usr/bin/env bash
# Ruby's dalli: run.sh dalli
set -euo pipefail
cd "$(dirname "$0")"
exec ruby -W0 "$1_test.rb"
