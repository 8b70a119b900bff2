#!/usr/bin/env python3
"""memcached's own tests, each file against a fresh server: run.py TARGET [FILE…]

Without files, those of list.txt. What a file prints is shown when it fails.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import servers

CACHE = pathlib.Path(os.environ.get("CLIENTS_CACHE", servers.ROOT / "target" / "clients"))
SOURCE = CACHE / "memcached-t" / "source"
# A bound for what hangs: on a machine that is busy with other things, files of
# thousands of round trips have taken two minutes, memcached's own included.
FILE_S_MAX = 300
# They mostly wait.
AT_A_TIME = 4


def listed():
    """The files of the list: options for each kind of target, and targets left out."""
    files, left_out = {}, {}
    for line in (HERE / "list.txt").read_text().splitlines():
        name, *parts = (part.strip() for part in line.partition("#")[0].split("|"))
        if name:
            parts += [""] * (3 - len(parts))
            files[name] = [part.format(t=SOURCE / "t").split() for part in parts[:2]]
            left_out[name] = parts[2].split()
    return files, left_out


def run(target, name, options):
    """Runs one file: whether it passed, how many tests, what it printed, seconds."""
    begin = time.monotonic()
    try:
        with servers.Servers(target, *options) as server:
            done = subprocess.run(
                ["prove", "--verbose", f"t/{name}"],
                cwd=SOURCE,
                env={**server.environment(), "T_MEMD_USE_DAEMON": server.memcached},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=FILE_S_MAX,
            )
        output = done.stdout + done.stderr
        tests = re.search(r"^Files=1, Tests=(\d+)", output, re.M)
        # A file that skips itself shows nothing.
        passed = done.returncode == 0 and "Result: PASS" in output and int(tests[1]) > 0
        count = int(tests[1]) if tests else 0
    except subprocess.TimeoutExpired as late:
        passed, count = False, 0
        output = f"{(late.stdout or b'').decode(errors='replace')}\nnot done after {FILE_S_MAX} s"
    except servers.StartFailed as failure:
        passed, count, output = False, 0, str(failure)
    return passed, count, output, time.monotonic() - begin


def shortened(output):
    """Of what passed only the last line, of long items only how they begin."""
    lines = output.splitlines()
    passed = [line for line in lines if line.startswith("ok ")]
    lines = [line for line in lines if not line.startswith("ok ")] + passed[-1:]
    return "\n".join(line if len(line) <= 300 else f"{line[:300]}…" for line in lines)


def main(target, names):
    files, left_out = listed()
    names = names or [name for name in files if target not in left_out[name]]
    failed, tests = [], 0
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        runs = {
            pool.submit(run, target, name, files.get(name, ([], []))): name for name in names
        }
        for done in concurrent.futures.as_completed(runs):
            passed, count, output, seconds = done.result()
            tests += count
            print(f"{'ok' if passed else 'FAILED':6} {runs[done]:24} {count:5} tests {seconds:5.1f} s")
            if not passed:
                failed.append(runs[done])
                print(shortened(output))
            sys.stdout.flush()
    print(f"{len(names)} files, {tests} tests, {len(failed)} files failed {' '.join(sorted(failed))}".rstrip())
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
