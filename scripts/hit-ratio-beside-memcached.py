#!/usr/bin/env python3
"""Hit ratios of a look-aside cache beside memcached's, in real processes.

    scripts/hit-ratio-beside-memcached.py oltp 32 4096 slru,s3fifo
    scripts/hit-ratio-beside-memcached.py zipf 48 1000 slru,s3fifo

Both are asked by memcached's text protocol. memcached gets so many MiB for items.
Trefoil's limit counts more than what is resident (it keeps a reserve free), so it is
run again with other limits until it ends at most half a MiB below what memcached's
process held, and not above it. `oltp` replays the trace in crates/bench/data (which
needs the command zstd); `zipf` draws keys of two and a half times the memory by
Zipf's law with an exponent of 0.99, of which 10 % are written and 5 % deleted, and
counts the second half. TREFOIL names the program (default: target/release/trefoil).
"""

import bisect
import itertools
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESERVE_MIB = 4
LIMIT_MIB_MIN = 32
RUNS_MAX = 4
BELOW_MIB_MAX = 0.5
GET, SET, DELETE = range(3)


def resident(pid):
    fields = ("RssAnon", "RssFile", "RssShmem")
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(fields))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(policy, mib, port, directory):
    if policy is None:
        command = ["memcached", "-m", str(int(mib)), "-p", str(port), "-U", "0"]
        command += ["-u", "nobody"] if os.geteuid() == 0 else []
    else:
        program = os.environ.get("TREFOIL", str(ROOT / "target/release/trefoil"))
        command = [program, "serve", "--listen", "127.0.0.1:0", "--metrics", "off"]
        command += ["--memcached", f"127.0.0.1:{port}", "--socket", f"{directory}/socket"]
        command += ["--memory", str(int(mib * 2**20)), "--mode", "R=1", "--eviction", policy]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def connect(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the cache does not listen")


def oltp():
    trace = ROOT / "crates/bench/data/OLTP.lis.zst"
    with subprocess.Popen(["zstd", "-dc", trace], stdout=subprocess.PIPE) as unpacked:
        for line in unpacked.stdout:
            first, count = line.split()[:2]
            for block in range(int(first), int(first) + int(count)):
                yield GET, block


def zipf(keys, requests):
    draws = random.Random(1)
    weights = list(itertools.accumulate(rank**-0.99 for rank in range(1, keys + 1)))
    total = weights[-1]
    for _ in range(requests):
        key = bisect.bisect_left(weights, draws.random() * total)
        dice = draws.random()
        yield (DELETE if dice < 0.05 else SET if dice < 0.15 else GET), key


def run(policy, mib, requests, value_len, warm):
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        process = start(policy, mib, port, directory)
        try:
            stream = connect(port)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stored = b" 0 0 %d noreply\r\n%s\r\n" % (value_len, b"x" * value_len)
            hits = lookups = done = 0
            pending = b""
            for what, number in requests:
                done += 1
                key = b"k%015d" % number
                if what == SET:
                    pending += b"set " + key + stored
                elif what == DELETE:
                    pending += b"delete " + key + b" noreply\r\n"
                else:
                    stream.sendall(pending + b"get " + key + b"\r\n")
                    answer = stream.recv(value_len + 200)
                    while not answer.endswith(b"END\r\n"):
                        answer += stream.recv(value_len + 200)
                    is_hit = len(answer) > len(b"END\r\n")
                    if done > warm:
                        lookups += 1
                        hits += is_hit
                    pending = b"" if is_hit else b"set " + key + stored
            stream.sendall(pending + b"version\r\n")
            stream.recv(1000)
            time.sleep(1)
            return hits * 100 / lookups, resident(process.pid) / 2**20
        finally:
            process.kill()
            process.wait()


def main():
    what, mib, value_len, policies = sys.argv[1:5]
    mib, value_len = int(mib), int(value_len)
    keys = int(mib * 2**20 * 2.5 / (16 + value_len))
    count = keys * 6

    def requests():
        return (oltp(), 0) if what == "oltp" else (zipf(keys, count), count // 2)

    trace, warm = requests()
    theirs, held = run(None, mib, trace, value_len, warm)
    print(f"memcached: {theirs:.2f} %, {held:.1f} MiB resident", flush=True)
    for policy in policies.split(","):
        limit = held + RESERVE_MIB
        for _ in range(RUNS_MAX):
            trace, warm = requests()
            ours, ours_held = run(policy, limit, trace, value_len, warm)
            print(
                f"{policy}: {ours:.2f} % ({ours - theirs:+.2f}), "
                f"{ours_held:.1f} MiB resident of {limit:.1f}",
                flush=True,
            )
            below = held - ours_held
            if 0 <= below <= BELOW_MIB_MAX:
                break
            limit = max(limit + below - BELOW_MIB_MAX / 4, LIMIT_MIB_MIN)


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in ("oltp", "zipf"):
        sys.exit(__doc__)
    main()
