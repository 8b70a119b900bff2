"""What goes wrong beside the clients: backends die or stand still, one at a time, and
so do gateways.

A backend that died is back when its successor votes and has what was written
meanwhile; one that stood still, when its lease holds again and its commands are done.
That is what a cell of three copies promises to bear.
"""

import json
import os
import signal
import subprocess
import threading
import time

import servers
from workload import now_ms

# Half a second is a lease.
STOP_S = (0.05, 1.5)
BACK_S_MAX = 60
# Between two faults: what a lost key explains counts for nothing while a backend is away
# (check.py), so there has to be time without.
PAUSE_S = {False: (0.5, 2), True: (0.1, 0.6)}
NAMES = ("kill", "stop", "gateway-kill", "gateway-stop")


class NotBack(Exception):
    """What went wrong did not come right again."""


class Faults(threading.Thread):
    """Faults in an order drawn from a seed: each of them once, then again."""

    def __init__(self, cell, names, random, ended, recorder):
        super().__init__(name="/".join(names), daemon=True)
        self.cell, self.names, self.random, self.ended, self.recorder = cell, names, random, ended, recorder
        self.failure = None

    def run(self):
        try:
            order = []
            while not self.ended.is_set():
                order = order or self.random.sample(self.names, len(self.names))
                name = order.pop()
                begin = now_ms()
                whom = getattr(self, name.replace("-", "_"))()
                self.recorder.note("fault", begin, "back", fault=name, whom=whom)
                self.ended.wait(self.random.uniform(*PAUSE_S[name.startswith("gateway")]))
        except Exception as failure:  # whatever it is, the run is void
            self.failure = failure

    def kill(self):
        number, old = self.random.choice(list(self.cell.pids().items()))
        os.kill(old, signal.SIGKILL)
        self.cell.await_back(number, other_than=old)
        return number

    def stand_still(self, pid):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(self.random.uniform(*STOP_S))
        finally:
            os.kill(pid, signal.SIGCONT)

    def stop(self):
        number, pid = self.random.choice(list(self.cell.pids().items()))
        self.stand_still(pid)
        self.cell.await_back(number)
        return number

    def gateway_kill(self):
        number = self.random.randrange(len(self.cell.gateways))
        self.cell.gateways[number].kill()
        self.cell.gateways[number].wait()
        time.sleep(self.random.uniform(0, 0.5))
        self.cell.start_gateway(number)
        return number

    def gateway_stop(self):
        number = self.random.randrange(len(self.cell.gateways))
        self.stand_still(self.cell.gateways[number].pid)
        return number


class Cell(servers.Servers):
    """A cell of three copies and two gateways, which come back to their addresses."""

    GATEWAYS = 2

    def _start_gateway(self):
        self.cell = self._spawn_ready(
            "cell",
            ["cell", "up", "--dir", str(self.folder / "cell"), "--mode", "R=3.2"]
            + ["--backends", "3", "--memory", "64MiB"],
        )["cell"]
        self.gateways = [None] * self.GATEWAYS
        self.addresses = [f"127.0.0.1:{servers.free_port()}" for _ in self.gateways]
        for number in range(self.GATEWAYS):
            self.start_gateway(number)

    def start_gateway(self, number):
        if self.gateways[number] in self.processes:
            self.processes.remove(self.gateways[number])
        self._spawn_ready(
            f"gateway-{number}",
            ["gateway", "--cell", self.cell, "--metrics", "off", "--memcached", "off"]
            + ["--redis", self.addresses[number]],
        )
        self.gateways[number] = self.processes[-1]

    def backends_now(self):
        """What each backend says of itself, by number; those that say nothing are not there."""
        answer = subprocess.run(
            [servers.trefoil(), "cell", "status", "--cell", self.cell, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            backends = json.loads(answer.stdout)["backends"]
        except (ValueError, KeyError):
            return {}
        return {one["number"]: one for one in backends if one.get("state") == "up" and one.get("pid")}

    def pids(self):
        return {number: one["pid"] for number, one in self.backends_now().items()}

    def await_back(self, number, other_than=None):
        deadline = time.monotonic() + BACK_S_MAX
        while time.monotonic() < deadline:
            backend = self.backends_now().get(number)
            if backend and backend["pid"] != other_than:
                # One that was not killed has nothing to recover.
                if other_than is None or backend.get("recovery", {}).get("done"):
                    return
            time.sleep(0.05)
        raise NotBack(f"backend {number} is not back after {BACK_S_MAX} s: {self.backends_now().get(number)}")
