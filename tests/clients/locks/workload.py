"""Clients that use locks, limiters and transactions, and note what they are told.

redis-py, unchanged: its `Lock` (SET NX PX with a token; Lua for release and extend),
`pipeline()`, `register_script`. Nothing is sent twice by itself: a command whose answer
did not come may be done, and would be done again.
"""

import itertools
import random
import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.exceptions import LockNotOwnedError, RedisError, WatchError
from redis.lock import Lock
from redis.retry import Retry

ANSWER_S_MAX = 5
LOCKS = 8
LOCK_MS = (300, 400, 600, 1000, 2000)
# Of ten owners one does not release its lock.
ABANDONED = 0.1
EXTENDED = 0.4
LIMIT = 5
WINDOW_MS = 500
# A list of ids gets no longer than this: then there is a new key.
APPENDS_MAX = 150

LIMITER = """
local n = redis.call('incr', KEYS[1])
if n == 1 then redis.call('pexpire', KEYS[1], ARGV[1]) end
return {n, redis.call('pttl', KEYS[1])}
"""


def now_ms():
    return time.monotonic() * 1000


class Recorder:
    """The history, as it comes to be."""

    def __init__(self):
        self.events = []
        self.appends = 0

    def note(self, kind, begin, outcome, **fields):
        self.events.append({"kind": kind, "begin": begin, "end": now_ms(), "outcome": outcome, **fields})


class Client(threading.Thread):
    """One client: one connection, to whichever of the addresses lets it in."""

    def __init__(self, number, addresses, recorder, ended, seed):
        super().__init__(name=f"client {number}", daemon=True)
        self.number, self.recorder, self.ended = number, recorder, ended
        self.addresses = itertools.cycle(addresses[number % len(addresses) :] + addresses[: number % len(addresses)])
        self.random = random.Random(f"{seed}/{number}")
        self.names = itertools.count()
        self.failure = None
        self.pairs = 0
        self.redis = None

    def run(self):
        work = [self.lock] * 6 + [self.limit_by_window] * 3 + [self.limit_by_script] * 3
        work += [self.append, self.append, self.swap, self.swap, self.read, self.two_keys]
        try:
            self.connect()
            while not self.ended.is_set():
                self.random.choice(work)()
        except Exception as failure:  # a client that ends early proves nothing
            self.failure = failure
        finally:
            self.redis.close()

    def connect(self):
        """To the next address, whether it answers or not."""
        if self.redis:
            self.redis.close()
        host, port = next(self.addresses).rsplit(":", 1)
        self.redis = redis.Redis(
            host,
            int(port),
            decode_responses=True,
            socket_timeout=ANSWER_S_MAX,
            socket_connect_timeout=ANSWER_S_MAX,
            retry=Retry(NoBackoff(), 0),
        )
        self.limiter = self.redis.register_script(LIMITER)

    def ask(self, kind, question, **fields):
        """Asks, and notes what is answered: `question` gives the outcome, and further
        fields. Gives the outcome."""
        begin, broken = now_ms(), False
        try:
            outcome, more = question()
        except RedisError as error:
            outcome, more = "unknown", {"error": f"{type(error).__name__}: {error}"}
            broken = isinstance(error, (redis.ConnectionError, redis.TimeoutError))
        self.recorder.note(kind, begin, outcome, **fields, **more)
        if broken:
            # The next one may be away, too: no need to ask it a thousand times.
            time.sleep(0.02)
            self.connect()
        return outcome, more

    def fresh(self):
        return f"{self.number}.{next(self.names)}"

    # Locks.

    def lock(self):
        name, token = f"lock:{self.random.randrange(LOCKS)}", self.fresh()
        ttl = self.random.choice(LOCK_MS)
        owner = Lock(self.redis, name, timeout=ttl / 1000, blocking=False, thread_local=False)

        def acquire():
            return ("got" if owner.acquire(token=token) else "refused"), {}

        outcome, _ = self.ask("acquire", acquire, lock=name, token=token, ttl=ttl)
        if outcome != "got":
            self.peek(name)
            return
        until = now_ms() + self.random.choice((0, 1, 5, 20, 50))
        while now_ms() < until:
            self.limit_by_window()
        while self.random.random() < EXTENDED:
            ttl = self.random.choice(LOCK_MS)
            outcome = self.owned("extend", owner, lambda: owner.extend(ttl / 1000, replace_ttl=True), name, token, ttl=ttl)
            if outcome == "gone":
                return
            self.peek(name)
        if self.random.random() >= ABANDONED:
            self.owned("release", owner, owner.release, name, token)

    def owned(self, kind, owner, action, name, token, **fields):
        # Its connection may be another one by now.
        owner.redis = self.redis

        def question():
            try:
                action()
                return "done", {}
            except LockNotOwnedError:
                return "gone", {}

        return self.ask(kind, question, lock=name, token=token, **fields)[0]

    def peek(self, name):
        def question():
            return "read", {"token": self.redis.get(name)}

        self.ask("peek", question, lock=name)

    # Limiters.

    def limit_by_window(self):
        """INCR, and EXPIRE by whoever counts first; or both as a transaction."""
        which = self.random.randrange(4)
        key = f"window:{which}:{int(now_ms() // WINDOW_MS)}"

        def question():
            if which % 2:
                number, _ = self.redis.pipeline().incr(key).expire(key, 10).execute()
            else:
                number = self.redis.incr(key)
            return "counted", {"n": number}

        outcome, more = self.ask("count", question, key=key, form="window", limit=LIMIT, window=WINDOW_MS)
        if outcome == "counted" and more["n"] == 1 and which % 2 == 0:
            try:
                self.redis.expire(key, 10)
            except RedisError:
                pass  # it stays, under a name that nobody asks for again

    def limit_by_script(self):
        key = f"script:{self.random.randrange(4)}"

        def question():
            number, left = self.limiter([key], [WINDOW_MS])
            return "counted", {"n": number, "left": left}

        self.ask("count", question, key=key, form="script", limit=LIMIT, window=WINDOW_MS)

    # Transactions.

    def list_key(self):
        """All clients count together how often they append."""
        self.recorder.appends += 1
        return f"list:{self.random.randrange(2)}:{self.recorder.appends // APPENDS_MAX}"

    def append(self):
        key, name = self.list_key(), self.fresh()

        def question():
            pipeline = self.redis.pipeline()
            pipeline.append(key, f"{name},").append(key, f"{name},").expire(key, 1000)
            pipeline.execute()
            return "done", {}

        self.ask("append", question, key=key, id=name)
        self.read_of(key)

    def read(self):
        self.read_of(f"swap:{self.random.randrange(2)}")

    def read_of(self, key):
        def question():
            return "read", {"value": [name for name in (self.redis.get(key) or "").split(",") if name]}

        self.ask("read", question, key=key)

    def swap(self):
        key, name = f"swap:{self.random.randrange(2)}", self.fresh()
        with self.redis.pipeline() as pipeline:
            try:
                pipeline.watch(key)
                over = pipeline.get(key)
            except RedisError:
                self.connect()
                return

            def question():
                pipeline.multi()
                pipeline.set(key, name)
                try:
                    pipeline.execute()
                    return "done", {}
                except WatchError as error:
                    # redis-py says so of a broken connection, too: then nobody knows.
                    return ("refused" if "changed" in str(error) else "unknown"), {"error": str(error)}

            self.ask("swap", question, key=key, id=name, over=over)

    def two_keys(self):
        """Each client writes two keys of its own, and reads any."""
        self.pairs += 1
        mine, number = f"two:{self.number}", self.pairs

        def write():
            self.redis.pipeline().set(f"{mine}:a", number).set(f"{mine}:b", number).execute()
            return "done", {}

        self.ask("write-two", write, key=mine, n=number)
        for key in (mine, f"two:{self.random.randrange(self.number + 1)}"):

            def read():
                second, first = self.redis.get(f"{key}:b"), self.redis.get(f"{key}:a")
                return "read", {"second": second and int(second), "first": first and int(first)}

            self.ask("read-two", read, key=key)
