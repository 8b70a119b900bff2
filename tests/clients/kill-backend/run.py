#!/usr/bin/env python3
"""Kills a backend while real clients run: run.py TARGET [HOW_MANY]

The clients must not notice. With 2 killed of 3 (by hand: run.py gateway 2) they
have to, which shows that they look; on memcached nothing is killed.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import servers

CACHE = pathlib.Path(os.environ.get("CLIENTS_CACHE", servers.ROOT / "target" / "clients"))
LOOP_S = 6
BEFORE_S = 2
LOOPS = (
    [str(CACHE / "python" / "bin" / "python"), str(HERE / "loop.py")],
    [str(CACHE / "go" / "clients.test"), "-test.run", "^TestLoop$", "-test.timeout", "60s"],
)


def main(target, how_many):
    with servers.Servers(target) as server:
        loops = [
            subprocess.Popen(
                command,
                env={**server.environment(), "LOOP_S": str(LOOP_S)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for command in LOOPS
        ]
        time.sleep(BEFORE_S)
        early = [loop.args[0] for loop in loops if loop.poll() is not None]
        victims = server.backends[:how_many]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        failed = bool(early)
        for loop in loops:
            output, _ = loop.communicate()
            print(output, end="")
            failed |= loop.returncode != 0
        alive = [pid for pid in victims if pathlib.Path(f"/proc/{pid}/stat").exists()
                 and pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"]
    if early:
        print(f"ended before anything was killed: {', '.join(early)}")
    if alive:
        print(f"not killed: {alive}")
        failed = True
    word = "clients saw errors" if failed else "no client saw an error"
    print(f"killed {len(victims)} of {len(server.backends)} backends: {word}")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    kill = int(sys.argv[2]) if len(sys.argv) == 3 else 1
    try:
        sys.exit(main(sys.argv[1], kill))
    except servers.StartFailed as failure:
        sys.exit(str(failure))
