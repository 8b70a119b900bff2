#!/usr/bin/env python3
"""Uses a cache through pymemcache without rest for LOOP_S seconds.

Every error is one, and so is every answer that is not what was stored.
"""

import concurrent.futures
import os
import sys
import time
import uuid

from pymemcache.client.base import Client

WORKERS = 2


def loop(end):
    """Gives how many operations were made, the slowest's seconds, and what failed."""
    host, port = os.environ["MEMCACHED_ADDR"].rsplit(":", 1)
    client = Client((host, int(port)), connect_timeout=5, timeout=5, default_noreply=False)
    keys = [f"key-{uuid.uuid4().hex}" for _ in range(16)]
    counter = f"key-{uuid.uuid4().hex}"
    count, slowest, step = 0, 0.0, "set of a counter"

    def expect(name, expected, operation, *arguments):
        nonlocal count, slowest, step
        step = name
        begin = time.monotonic()
        answer = operation(*arguments)
        slowest = max(slowest, time.monotonic() - begin)
        count += 1
        if expected is not None and answer != expected:
            raise AssertionError(f"{name} answers {answer!r}, not {expected!r}")
        return answer

    try:
        expect("set of a counter", True, client.set, counter, b"0")
        number = 0
        while time.monotonic() < end:
            number += 1
            key, value = keys[number % 16], b"%d" % number
            expect("set", True, client.set, key, value)
            expect("get", value, client.get, key)
            _, unique = expect("gets", None, client.gets, key)
            expect("cas", True, client.cas, key, value + b"!", unique)
            expect("append", True, client.append, key, b"!")
            many = expect("get_many", None, client.get_many, keys)
            if len(many) != min(number, 16) or many[key] != value + b"!!":
                raise AssertionError(f"get_many answers {many!r}")
            expect("incr", number, client.incr, counter, 1)
            expect("touch", True, client.touch, key, 1000)
            gone = f"{key}-gone"
            expect("add", True, client.add, gone, value)
            expect("delete", True, client.delete, gone)
            expect("add after delete", True, client.add, gone, value)
            expect("delete again", True, client.delete, gone)
    except Exception as failure:  # whatever it is, it is the client's
        return count, slowest, f"{end - time.monotonic():.1f} s before the end, {step}: {failure!r}"
    finally:
        client.close()
    return count, slowest, None


def main():
    end = time.monotonic() + float(os.environ["LOOP_S"])
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(loop, [end] * WORKERS))
    failures = [failure for _, _, failure in results if failure]
    for failure in failures:
        print(failure)
    print(
        f"pymemcache: {sum(count for count, _, _ in results)} operations, "
        f"the longest took {max(slowest for _, slowest, _ in results) * 1000:.1f} ms"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
