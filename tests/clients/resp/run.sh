#!/usr/bin/env bash
# Redis' own tools: run.sh cli|benchmark
set -euo pipefail
host=${REDIS_ADDR%:*} port=${REDIS_ADDR##*:}

cli() {
  redis-cli -h "$host" -p "$port" "$@"
}

checks=0
expect() {
  local expected=$1
  shift
  local answer
  answer=$(cli "$@" 2>&1) || true
  [[ $answer == "$expected" ]] || {
    echo "redis-cli $*: got '$answer', not '$expected'" >&2
    exit 1
  }
  checks=$((checks + 1))
}

case $1 in
cli)
  for protocol in -2 -3; do
    expect OK "$protocol" flushall
    expect PONG "$protocol" ping
    expect OK "$protocol" set greeting "hello world" ex 100
    expect "hello world" "$protocol" get greeting
    expect 100 "$protocol" ttl greeting
    expect "" "$protocol" get nothing
    expect "" "$protocol" set greeting x nx
    expect 42 "$protocol" incrby number 42
    expect OK "$protocol" mset a 1 b 2
    expect $'1\n2' "$protocol" mget a b
    expect 4 "$protocol" dbsize
    expect 2 "$protocol" del a b
    expect 1 "$protocol" exists greeting
  done
  # What is read from a pipe goes as one pipeline.
  pairs=$(for number in $(seq 1000); do printf 'SET piped-%d %d\r\n' "$number" "$number"; done |
    cli --pipe)
  grep -q 'errors: 0, replies: 1000' <<<"$pairs" || {
    echo "redis-cli --pipe: $pairs" >&2
    exit 1
  }
  [[ $(cli --scan --pattern 'piped-*' | wc -l) == 1000 ]] || {
    echo "redis-cli --scan does not give the 1,000 keys" >&2
    exit 1
  }
  echo "redis-cli: $checks answers, a pipeline of 1,000, a scan: as expected"
  ;;
benchmark)
  output=$(redis-benchmark -h "$host" -p "$port" -t get,set,incr,mset -n 20000 -c 50 -P 1 -r 1000 -d 100 -q 2>&1)
  output+=$'\n'$(redis-benchmark -h "$host" -p "$port" -t get,set -n 100000 -c 50 -P 16 -r 1000 -d 100 -q 2>&1)
  # It prints its progress over one line.
  lines=$(tr '\r' '\n' <<<"$output" | grep 'requests per second')
  echo "$lines"
  if grep -iE 'error|failed' <<<"$output" || [[ $(wc -l <<<"$lines") != 6 ]]; then
    echo "redis-benchmark did not finish: $output" >&2
    exit 1
  fi
  ;;
*) echo "run.sh cli|benchmark, not $1" >&2 && exit 2 ;;
esac
