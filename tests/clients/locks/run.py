#!/usr/bin/env python3
"""Locks, limiters and transactions of sixteen clients, while servers die and hang.

    run.py memcached|gateway [--seconds N] [--seed N] [--faults NAME[,…]] [--strict] [--keep FILE]
    run.py --check FILE

`gateway`: two gateways before a cell of three copies; backends are killed and stopped,
one at a time, and gateways beside it. `memcached`: redis-server, where nothing goes
wrong: it proves the clients and the checker. `check.py` says what is checked. --seconds
is how long at least; a run also has to have shown something, and says what it has not.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("CLIENTS_CACHE", HERE.parents[2] / "target" / "clients"))
PYTHON = CACHE / "python" / "bin" / "python"
CLIENTS = 16
# What has not been shown by then is not going to be.
SHOWN_S_MAX = 120
# Findings of one rule that are printed.
EACH_MAX = 5
# What a run has to contain, at least: of a kind and outcome, how often.
DEMANDS = {
    ("acquire", "got"): 100,
    ("acquire", "refused"): 50,
    ("extend", "done"): 30,
    ("release", "done"): 50,
    ("peek", "read"): 50,
    ("count", "counted"): 300,
    ("append", "done"): 50,
    ("swap", "done"): 30,
    ("swap", "refused"): 1,
    ("read", "read"): 100,
    ("write-two", "done"): 30,
    ("read-two", "read"): 30,
}


def faults_of(history):
    """How often each fault has happened and come right again."""
    return collections.Counter(event["fault"] for event in list(history) if event["kind"] == "fault")


def missing(history, names):
    """What has not been shown."""
    count = collections.Counter((event["kind"], event["outcome"]) for event in list(history))
    done = faults_of(history)
    for (kind, outcome), least in DEMANDS.items():
        if count[kind, outcome] < least:
            yield f"{kind}: {outcome} {count[kind, outcome]} times, of {least}"
    limited = sum(1 for event in list(history) if event["kind"] == "count" and event.get("n", 0) > event["limit"])
    if limited < 20:
        yield f"a limiter has refused {limited} times, of 20"
    for name in names:
        if not done[name]:
            yield f"{name}: it has not happened and come right again"


def record(cell, addresses, names, seconds, seed):
    """Gives the history, and what failed."""
    import faults
    import workload

    ended, recorder = threading.Event(), workload.Recorder()
    clients = [workload.Client(number, addresses, recorder, ended, seed) for number in range(CLIENTS)]
    # Gateways go wrong beside backends, not in turn with them.
    groups = [[name for name in names if name.startswith("gateway") == beside] for beside in (False, True)]
    wrong = [
        faults.Faults(cell, group, random.Random(f"{seed}/{group}"), ended, recorder) for group in groups if group
    ]
    begin = time.monotonic()
    for thread in (*clients, *wrong):
        thread.start()
    while not any(thread.failure for thread in (*clients, *wrong)):
        time.sleep(0.2)
        lasted = time.monotonic() - begin
        if lasted > max(seconds, SHOWN_S_MAX):
            break
        if lasted > seconds and not any(missing(recorder.events, names)):
            break
    ended.set()
    for thread in (*wrong, *clients):
        thread.join()
    failures = [f"{thread.name}: {thread.failure!r}" for thread in (*clients, *wrong) if thread.failure]
    return recorder.events, failures


def judge(history, strict):
    """What is wrong, a line each, and how much is void."""
    import check
    import damage

    found = collections.defaultdict(list)
    void = 0
    for name, broken in check.check(history):
        if not strict and check.is_void(history, name, broken):
            void += 1
        else:
            found[name].append(broken.text)
    wrong = [f"BROKEN {name}: {text}" for name, texts in found.items() for text in texts[:EACH_MAX]]
    wrong += [
        f"BROKEN {name}: and {len(texts) - EACH_MAX} more"
        for name, texts in found.items()
        if len(texts) > EACH_MAX
    ]
    wrong += [f"NOT NOTICED {text}" for text in damage.unnoticed(history)]
    return wrong, void


def self_test():
    """The checker's own cases: a run that is judged by a broken one says nothing."""
    import unittest

    import test_check

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(test_check).run(result)
    if not result.wasSuccessful() or not result.testsRun:
        sys.exit("".join(text for _, text in (*result.failures, *result.errors)) or "no case was looked at")
    return sum(1 for _ in test_check.cases())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", nargs="?", choices=("memcached", "gateway"))
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--seed", type=int, default=None, help="of what goes wrong when, and what clients do")
    parser.add_argument("--faults", metavar="NAME[,…]", help="only these: kill, stop, gateway-kill, gateway-stop")
    parser.add_argument("--keep", metavar="FILE", help="where the history is written, a JSON object a line")
    parser.add_argument("--check", metavar="FILE", help="judge such a file again")
    parser.add_argument("--strict", action="store_true", help="what may be lost while a backend is away counts, too")
    options = parser.parse_args()
    if options.check:
        history = [json.loads(line) for line in pathlib.Path(options.check).read_text().splitlines()]
        wrong, void = judge(history, options.strict)
        print("\n".join([*wrong, f"{len(history)} events, {void} void, {len(wrong)} wrong"]))
        return 1 if wrong else 0
    if not options.target:
        parser.error("a target: memcached or gateway")
    import faults

    cases = self_test()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    names = faults.NAMES if options.target == "gateway" else ()
    if names and options.faults:
        names = options.faults.split(",")
        if set(names) - set(faults.NAMES):
            parser.error(f"faults are {', '.join(faults.NAMES)}")
    with faults.Cell(options.target) as cell:
        addresses = cell.addresses if options.target == "gateway" else [cell.redis]
        history, wrong = record(cell, addresses, names, options.seconds, seed)
        log = (cell.folder / "cell.log").read_text(errors="replace") if names else ""
    wrong += [f"PANIC {line}" for line in log.splitlines() if "panicked" in line]
    findings, void = judge(history, options.strict)
    wrong += findings
    wrong += [f"NOT SHOWN {text}" for text in missing(history, names)]
    keep = options.keep or (wrong and CACHE / "logs" / f"locks-{seed}.jsonl")
    if keep:
        pathlib.Path(keep).write_text("".join(json.dumps(event) + "\n" for event in history))
    if wrong:
        print("\n".join(wrong))
        print(f"the history is in {keep}; again: tests/clients/locks/run.py {options.target} --seed {seed}")
    unknown = sum(1 for event in history if event["outcome"] == "unknown")
    locks = sum(1 for event in history if event["kind"] == "acquire" and event["outcome"] == "got")
    done = faults_of(history)
    told = ", ".join(f"{name} {done[name]}" for name in names) or "no faults"
    print(
        f"locks: {cases} cases of the checker; {len(history)} events, {locks} locks, {unknown} unknown; "
        f"{told}; seed {seed}: {void} void, {len(wrong)} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    # The clients' packages are in an environment of their own.
    if pathlib.Path(sys.prefix).resolve() != (CACHE / "python").resolve():
        os.execv(PYTHON, [str(PYTHON), "-B", *sys.argv])
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    sys.exit(main())
