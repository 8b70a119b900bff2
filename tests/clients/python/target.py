"""The addresses under test, from the environment."""

import os
import uuid


def memcached():
    host, port = os.environ["MEMCACHED_ADDR"].rsplit(":", 1)
    return host, int(port)


def redis():
    host, port = os.environ["REDIS_ADDR"].rsplit(":", 1)
    return host, int(port)


def fresh(name="key"):
    """A key that no other test uses."""
    return f"{name}-{uuid.uuid4().hex}"
