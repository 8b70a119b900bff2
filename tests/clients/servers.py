#!/usr/bin/env python3
"""Starts what a suite talks to, on free loopback ports, and ends it again.

    servers.py TARGET [--] COMMAND…

runs COMMAND with MEMCACHED_ADDR and REDIS_ADDR naming a fresh TARGET:

    memcached   Debian's memcached and redis-server: they prove the suites
    serve       `trefoil serve`, one process
    gateway     `trefoil gateway` in front of three backends with R=3.2
"""

import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = ("memcached", "serve", "gateway")
START_S_MAX = 20
STOP_S_MAX = 5
FREE_PORT_MIN = 13_000


def trefoil():
    """The binary under test; TREFOIL names another one."""
    build = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return os.environ.get("TREFOIL", str(build / "release" / "trefoil"))


class StartFailed(Exception):
    """A server did not come up; the text says which and what it printed."""


class Servers:
    """The processes of one target. Use as a context manager."""

    def __init__(self, target, memcached=(), trefoil=()):
        """Further options for memcached, or for what speaks its protocol in trefoil."""
        if target not in TARGETS:
            raise StartFailed(f"no target {target!r}: one of {', '.join(TARGETS)}")
        self.target = target
        self.memcached_options = list(memcached)
        self.trefoil_options = list(trefoil)
        self.processes = []
        self.backends = []  # process ids of the cell's backends
        self.memcached = None
        self.redis = None

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trefoil-clients-"))
        try:
            getattr(self, f"_start_{self.target}")()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            # The peers hold nothing worth a second of waiting for their end.
            stop(process, at_once=self.target == "memcached")
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self):
        """The environment for a suite's process."""
        return {
            **os.environ,
            "CLIENTS_TARGET": self.target,
            "MEMCACHED_ADDR": self.memcached,
            "REDIS_ADDR": self.redis,
            "BACKEND_PIDS": " ".join(map(str, self.backends)),
        }

    def _start_memcached(self):
        self.memcached = self._spawn_peer(
            ["memcached", *as_user(), "-l", "127.0.0.1", "-U", "0", *self.memcached_options, "-p"]
        )
        self.redis = self._spawn_peer(
            ["redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
            + ["--dir", str(self.folder), "--port"]
        )

    def _spawn_peer(self, command):
        """Starts a peer on a free port, its last argument; gives its address."""
        # A port taken between our look and its start is tried again.
        for attempts_left in range(4, -1, -1):
            port = free_port()
            process = self._spawn(command[0], [*command, str(port)])
            try:
                self._await(process, lambda: answers(port))
                return f"127.0.0.1:{port}"
            except StartFailed:
                if not attempts_left:
                    raise

    def _start_serve(self):
        ready = self._spawn_ready(
            "serve",
            ["serve", "--memory", "256MiB", "--listen", "127.0.0.1:0", "--metrics", "off"]
            + ["--memcached", "127.0.0.1:0", "--redis", "127.0.0.1:0"]
            + self.trefoil_options,
        )
        self.backends = ready["pids"]
        self.memcached, self.redis = ready["memcached"], ready["redis"]

    def _start_gateway(self):
        cell = self._spawn_ready(
            "cell",
            ["cell", "up", "--dir", str(self.folder / "cell"), "--mode", "R=3.2"]
            + ["--backends", "3", "--memory", "256MiB"],
        )
        self.backends = cell["pids"]
        ready = self._spawn_ready(
            "gateway",
            ["gateway", "--cell", cell["cell"], "--metrics", "off"]
            + ["--memcached", "127.0.0.1:0", "--redis", "127.0.0.1:0"]
            + self.trefoil_options,
        )
        self.memcached, self.redis = ready["memcached"], ready["redis"]

    def _spawn(self, name, command):
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        process.log = log
        self.processes.append(process)
        return process

    def _spawn_ready(self, name, arguments):
        process = self._spawn(name, [trefoil(), *arguments])
        found = {}

        def ready():
            # The last line may still be incomplete.
            for line in process.log.read_text(errors="replace").splitlines(keepends=True):
                if line.startswith("ready {") and line.endswith("\n"):
                    found.update(json.loads(line[len("ready "):]))
                    return True
            return False

        self._await(process, ready)
        return found

    def _await(self, process, ready):
        deadline = time.monotonic() + START_S_MAX
        while not ready():
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                why = f"ended with {process.returncode}" if ended else f"is not ready after {START_S_MAX} s"
                raise StartFailed(
                    f"{' '.join(process.args)}: {why}\n{process.log.read_text(errors='replace')}"
                )
            time.sleep(0.01)


def stop(process, at_once=False):
    """Asks a process to end, and ends it if it does not."""
    if at_once:
        process.kill()
    else:
        process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        print(f"{process.args[0]} ignored SIGTERM for {STOP_S_MAX} s: killed", file=sys.stderr)
        process.kill()
        process.wait()


def as_user():
    """memcached refuses to run as root unless told to."""
    return ["-u", "root"] if os.getuid() == 0 else []


def free_port():
    """Below the range that the system gives to connections by itself: a port out of
    that range may be anybody's before the server has bound it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as limits:
        end = int(limits.read().split()[0])
    while True:
        port = random.randrange(FREE_PORT_MIN, end if end > FREE_PORT_MIN else 32_768)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def main(arguments):
    command = arguments[2:] if arguments[1:2] == ["--"] else arguments[1:]
    if not command:
        sys.exit(__doc__)
    # Ended from outside, end the servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with Servers(arguments[0]) as servers:
            return subprocess.call(command, env=servers.environment())
    except StartFailed as failure:
        print(failure, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
