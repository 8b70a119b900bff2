"""redis-py, RESP2 and RESP3: the part of Redis that caches use."""

import time
import unittest

import redis

import target
from target import fresh


class Operations:
    protocol = None

    def setUp(self):
        host, port = target.redis()
        self.client = redis.Redis(host, port, protocol=self.protocol, socket_timeout=5)
        self.addCleanup(self.client.close)

    def test_set_get_delete(self):
        key, other = fresh(), fresh()
        self.assertIsNone(self.client.get(key))
        self.assertIs(self.client.set(key, b"value"), True)
        self.client.set(other, "☃")
        self.assertEqual(self.client.get(key), b"value")
        self.assertEqual(self.client.get(other).decode(), "☃")
        self.assertEqual(self.client.exists(key, other, fresh(), key), 3)
        self.assertEqual(self.client.delete(key, fresh()), 1)
        self.assertEqual(self.client.unlink(other), 1)
        self.assertEqual(self.client.exists(key, other), 0)

    def test_set_options(self):
        key = fresh()
        self.assertIsNone(self.client.set(key, "0", xx=True))
        self.assertIs(self.client.set(key, "1", nx=True), True)
        self.assertIsNone(self.client.set(key, "2", nx=True))
        self.assertIs(self.client.set(key, "3", xx=True), True)
        self.assertEqual(self.client.set(key, "4", get=True), b"3")
        self.assertIsNone(self.client.set(fresh(), "x", get=True))
        self.client.set(key, "5", ex=100)
        self.client.set(key, "6", keepttl=True)
        self.assertIn(self.client.ttl(key), (99, 100))
        self.client.set(key, "7")
        self.assertEqual(self.client.ttl(key), -1)
        self.client.set(key, "8", px=100_000)
        self.assertTrue(90_000 < self.client.pttl(key) <= 100_000)
        with self.assertRaises(redis.ResponseError):
            self.client.execute_command("SET", key, "9", "EX", "0")
        with self.assertRaises(redis.ResponseError):
            self.client.execute_command("SET", key, "9", "NX", "XX")
        self.assertEqual(self.client.get(key), b"8")

    def test_many(self):
        values = {fresh(): b"value %d" % number for number in range(250)}
        self.assertIs(self.client.mset(values), True)
        self.assertEqual(self.client.mget([*values, fresh()]), [*values.values(), None])
        self.assertEqual(self.client.delete(*values), len(values))

    def test_numbers(self):
        key = fresh()
        self.assertEqual(self.client.incr(key), 1)
        self.assertEqual(self.client.incrby(key, 41), 42)
        self.assertEqual(self.client.decr(key), 41)
        self.assertEqual(self.client.decrby(key, 50), -9)
        self.assertEqual(self.client.get(key), b"-9")
        self.client.set(key, 2**63 - 1)
        with self.assertRaisesRegex(redis.ResponseError, "overflow"):
            self.client.incr(key)
        self.client.set(key, "word")
        with self.assertRaisesRegex(redis.ResponseError, "not an integer"):
            self.client.incr(key)

    def test_append_strlen(self):
        key = fresh()
        self.assertEqual(self.client.strlen(key), 0)
        self.assertEqual(self.client.append(key, "ab"), 2)
        self.assertEqual(self.client.append(key, "c"), 3)
        self.assertEqual(self.client.get(key), b"abc")
        self.assertEqual(self.client.strlen(key), 3)

    def test_expiry(self):
        key, other, millis = fresh(), fresh(), fresh()
        self.assertEqual(self.client.ttl(key), -2)
        self.assertIs(self.client.expire(key, 10), False)
        self.client.set(key, "value", ex=1)
        self.client.set(other, "value")
        self.assertIs(self.client.persist(other), False)
        self.assertIs(self.client.expire(other, 1), True)
        self.assertIs(self.client.persist(other), True)
        self.assertEqual(self.client.ttl(other), -1)
        self.client.set(millis, "value")
        self.assertIs(self.client.pexpire(millis, 1000), True)
        self.assertTrue(0 < self.client.pttl(millis) <= 1000)
        gone = fresh()
        self.client.set(gone, "value")
        self.assertIs(self.client.expire(gone, -1), True)
        self.assertIsNone(self.client.get(gone))
        time.sleep(1.5)
        self.assertEqual(self.client.mget(key, other, millis), [None, b"value", None])

    def test_getdel_getex(self):
        key = fresh()
        self.assertIsNone(self.client.getdel(key))
        self.assertIsNone(self.client.getex(key, ex=10))
        self.client.set(key, "value")
        self.assertEqual(self.client.getex(key, ex=100), b"value")
        self.assertIn(self.client.ttl(key), (99, 100))
        self.assertEqual(self.client.getex(key, persist=True), b"value")
        self.assertEqual(self.client.ttl(key), -1)
        self.assertEqual(self.client.getdel(key), b"value")
        self.assertIsNone(self.client.get(key))

    def test_binary_and_large(self):
        for value in (b"", bytes(range(256)) + b"\r\n$-1\r\n", b"x" * 1_000_000):
            key = fresh().encode() + b"\0\r\n "
            self.client.set(key, value)
            self.assertEqual(self.client.get(key), value)

    def test_pipeline(self):
        keys = [fresh() for _ in range(500)]
        pipeline = self.client.pipeline(transaction=False)
        for key in keys:
            pipeline.set(key, key)
            pipeline.get(key)
        pipeline.execute_command("NONSENSE")
        pipeline.get(keys[0])
        answers = pipeline.execute(raise_on_error=False)
        self.assertEqual(answers[1:1000:2], [key.encode() for key in keys])
        self.assertIsInstance(answers[1000], redis.ResponseError)
        self.assertEqual(answers[1001], keys[0].encode())

    def test_long_pipeline(self):
        # All of it is written before any of its answers is read, and neither has room in
        # the kernel's buffers.
        key = fresh()
        self.client.set(key, b"v" * 1000)
        pipeline = self.client.pipeline(transaction=False)
        for _ in range(60_000):
            pipeline.get(key)
        self.assertEqual(set(pipeline.execute()), {b"v" * 1000})

    def test_pipeline_as_a_transaction(self):
        key, other, counter = fresh(), fresh(), fresh()
        pipeline = self.client.pipeline()
        pipeline.set(key, "1").incr(key).get(key).expire(key, 100)
        self.assertEqual(pipeline.execute(), [True, 2, b"2", True])
        # As Django's set_many does it.
        values = {fresh(): "value" for _ in range(100)}
        pipeline = self.client.pipeline()
        pipeline.mset(values)
        for name in values:
            pipeline.expire(name, 100)
        self.assertEqual(pipeline.execute(), [True] * 101)
        self.assertIn(self.client.ttl(next(iter(values))), (99, 100))
        pipeline.set(other, "x").incr(other).set(key, "y")
        answers = pipeline.execute(raise_on_error=False)
        self.assertIsInstance(answers[1], redis.ResponseError)
        self.assertEqual(self.client.mget(key, other), [b"y", b"x"])
        pipeline.execute_command("NONSENSE").set(key, "z")
        with self.assertRaises(redis.ResponseError):
            pipeline.execute()
        self.assertEqual(self.client.get(key), b"y")

        def count(pipeline):
            number = int(pipeline.get(counter) or 0)
            pipeline.multi()
            pipeline.set(counter, number + 1)

        for _ in range(5):
            self.assertEqual(self.client.transaction(count, counter), [True])
        self.assertEqual(self.client.get(counter), b"5")
        with self.client.pipeline() as pipeline:
            pipeline.watch(counter)
            self.client.incr(counter)
            pipeline.multi()
            pipeline.set(counter, 0)
            with self.assertRaises(redis.WatchError):
                pipeline.execute()
        self.assertEqual(self.client.get(counter), b"6")

    def test_locks_and_scripts(self):
        name, key = fresh(), fresh()
        lock = self.client.lock(name, timeout=100)
        self.assertTrue(lock.acquire(blocking=False))
        other = self.client.lock(name, timeout=100)
        self.assertFalse(other.acquire(blocking=False))
        self.assertTrue(lock.extend(100))
        self.assertTrue(lock.reacquire())
        lock.release()
        self.assertTrue(other.acquire(blocking=False))
        with self.assertRaises(redis.exceptions.LockError):
            self.client.lock(name, thread_local=False).release()
        other.release()
        self.assertIsNone(self.client.get(name))
        self.client.script_flush()
        script = self.client.register_script(
            "local n = redis.call('incrby', KEYS[1], ARGV[1]) "
            "redis.call('pexpire', KEYS[1], 100000) "
            "return {n, redis.call('pttl', KEYS[1])}"
        )
        self.assertEqual(script([key], [5])[0], 5)
        number, ttl = script([key], [2])
        self.assertEqual(number, 7)
        self.assertTrue(90_000 < ttl <= 100_000)
        with self.assertRaisesRegex(redis.ResponseError, "nonexistent global"):
            self.client.eval("return nosuch", 0)

    def test_functions(self):
        name = fresh("f").replace("-", "_")
        program = (
            f"#!lua name={name}\n"
            f"redis.register_function('{name}', "
            "function(keys, args) return redis.call('incrby', keys[1], args[1]) end)"
        )
        self.assertEqual(self.client.function_load(program), name.encode())
        key = fresh()
        self.assertEqual(self.client.fcall(name, 1, key, 5), 5)
        self.assertEqual(self.client.fcall(name, 1, key, 2), 7)
        with self.assertRaisesRegex(redis.ResponseError, "already exists"):
            self.client.function_load(program)
        self.assertEqual(self.client.function_load(program, replace=True), name.encode())
        self.assertEqual(len(self.client.function_list(library=name)), 1)
        self.assertTrue(self.client.function_delete(name))
        with self.assertRaisesRegex(redis.ResponseError, "Function not found"):
            self.client.fcall(name, 1, key, 2)

    def test_renaming(self):
        old, new = fresh(), fresh()
        self.client.set(old, "value", ex=1000)
        self.assertTrue(self.client.rename(old, old))
        self.assertFalse(self.client.msetnx({old: "other"}))
        self.assertTrue(self.client.msetnx({new: "other"}))
        with self.assertRaisesRegex(redis.ResponseError, "no such key"):
            gone = fresh()
            self.client.rename(gone, gone)
        try:
            self.assertTrue(self.client.rename(old, new))
        except redis.ResponseError as error:
            # A replicated cell changes keys one by one, and says so.
            self.assertIn("of different keys is not here", str(error))
            self.assertEqual(self.client.get(new), b"other")
            self.assertEqual(self.client.get(old), b"value")
            return
        self.assertEqual(self.client.get(new), b"value")
        self.assertTrue(900 < self.client.ttl(new) <= 1000)
        self.assertTrue(self.client.copy(new, old))
        self.assertFalse(self.client.renamenx(new, old))
        self.assertEqual(self.client.mget(old, new), [b"value", b"value"])

    def test_scan_and_flush(self):
        self.client.flushall()
        keys = {fresh("scan").encode() for _ in range(300)}
        self.client.mset({key: "x" for key in keys})
        self.client.set(fresh("other"), "x")
        self.assertEqual(set(self.client.scan_iter(match="scan-*", count=50)), keys)
        self.assertEqual(set(self.client.keys("scan-*")), keys)
        self.assertEqual(self.client.keys("none-*"), [])
        self.assertEqual(self.client.dbsize(), 301)
        self.assertIs(self.client.flushall(), True)
        self.assertEqual(self.client.dbsize(), 0)
        self.assertEqual(list(self.client.scan_iter()), [])

    def test_connection_commands(self):
        self.assertIs(self.client.ping(), True)
        self.assertEqual(self.client.echo("hello"), b"hello")
        self.assertGreater(self.client.client_id(), 0)
        self.assertIs(self.client.client_setname("clients"), True)
        names = [client["name"] for client in self.client.client_list(_type="normal")]
        self.assertIn("clients", names)
        self.assertEqual(self.client.client_kill_filter(_type="pubsub"), 0)
        self.assertIs(self.client.select(0), True)
        self.assertIn("redis_version", self.client.info())
        self.assertIn("maxmemory", self.client.config_get("maxmemory"))
        self.assertTrue(self.client.command())
        with self.assertRaisesRegex(redis.ResponseError, "unknown command"):
            self.client.execute_command("NONSENSE")
        with self.assertRaisesRegex(redis.ResponseError, "wrong number of arguments"):
            self.client.execute_command("GET")
        self.assertIs(self.client.ping(), True)


class Resp2(Operations, unittest.TestCase):
    protocol = 2


class Resp3(Operations, unittest.TestCase):
    protocol = 3

    def test_the_handshake_is_the_third_version(self):
        answer = self.client.execute_command("HELLO", "3")
        self.assertEqual(answer[b"proto"] if b"proto" in answer else answer["proto"], 3)


if __name__ == "__main__":
    unittest.main()
