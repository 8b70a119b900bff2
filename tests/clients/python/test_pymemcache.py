"""pymemcache speaks the classic text protocol, and meta through raw_command."""

import socket
import time
import unittest

from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import (
    MemcacheClientError,
    MemcacheServerError,
    MemcacheUnknownCommandError,
)
from pymemcache.serde import pickle_serde

import target
from target import fresh


class Pymemcache(unittest.TestCase):
    def setUp(self):
        self.client = self.connect()
        self.addCleanup(self.client.close)

    def connect(self, kind=Client, **options):
        options = {"connect_timeout": 5, "timeout": 5, "default_noreply": False, **options}
        return kind(target.memcached(), **options)

    def test_set_get_delete(self):
        key = fresh()
        self.assertIsNone(self.client.get(key))
        self.assertIs(self.client.set(key, b"value"), True)
        self.assertEqual(self.client.get(key), b"value")
        self.assertIs(self.client.delete(key), True)
        self.assertIs(self.client.delete(key), False)
        self.assertEqual(self.client.get(key, default="none"), "none")

    def test_add_replace(self):
        key = fresh()
        self.assertIs(self.client.replace(key, b"0"), False)
        self.assertIs(self.client.add(key, b"1"), True)
        self.assertIs(self.client.add(key, b"2"), False)
        self.assertEqual(self.client.get(key), b"1")
        self.assertIs(self.client.replace(key, b"3"), True)
        self.assertEqual(self.client.get(key), b"3")

    def test_append_prepend(self):
        key = fresh()
        self.assertIs(self.client.append(key, b"x"), False)
        self.assertIs(self.client.prepend(key, b"x"), False)
        self.client.set(key, b"middle")
        self.assertIs(self.client.append(key, b">"), True)
        self.assertIs(self.client.prepend(key, b"<"), True)
        self.assertEqual(self.client.get(key), b"<middle>")

    def test_cas(self):
        key = fresh()
        self.assertIsNone(self.client.cas(key, b"x", b"1"))
        self.client.set(key, b"one")
        value, unique = self.client.gets(key)
        self.assertEqual(value, b"one")
        self.assertRegex(unique, rb"^[0-9]+$")
        self.assertIs(self.client.cas(key, b"two", unique), True)
        self.assertIs(self.client.cas(key, b"three", unique), False)
        self.assertEqual(self.client.get(key), b"two")
        _, later = self.client.gets(key)
        self.assertNotEqual(later, unique)

    def test_incr_decr(self):
        key = fresh()
        self.assertIsNone(self.client.incr(key, 1))
        self.assertIsNone(self.client.decr(key, 1))
        self.client.set(key, b"10")
        self.assertEqual(self.client.incr(key, 5), 15)
        self.assertEqual(self.client.decr(key, 6), 9)
        self.assertEqual(self.client.decr(key, 100), 0)
        self.client.set(key, str(2**64 - 1).encode())
        self.assertEqual(self.client.incr(key, 2), 1)
        self.client.set(key, b"word")
        with self.assertRaises(MemcacheClientError):
            self.client.incr(key, 1)

    def test_touch_and_expiry(self):
        key, other = fresh(), fresh()
        self.assertIs(self.client.touch(key, 10), False)
        self.client.set(key, b"value", expire=1)
        self.client.set(other, b"value", expire=1)
        self.assertIs(self.client.touch(key, 100), True)
        self.assertEqual(self.client.get(other), b"value")
        self.client.set(fresh(), b"value", expire=-1)
        time.sleep(1.5)
        self.assertIsNone(self.client.get(other))
        self.assertEqual(self.client.get(key), b"value")
        # More than thirty days are a point in time.
        self.client.set(key, b"value", expire=int(time.time()) + 100)
        self.assertEqual(self.client.get(key), b"value")
        self.client.set(key, b"value", expire=int(time.time()) - 100)
        self.assertIsNone(self.client.get(key))
        self.client.set(key, b"value", expire=-1)
        self.assertIsNone(self.client.get(key))

    def test_get_and_touch(self):
        # This client has no gat of its own.
        key = fresh().encode()
        self.assertEqual(self.client.raw_command(b"gat 100 %s" % key), b"END")
        self.client.set(key, b"value", expire=1)
        self.assertEqual(
            self.client.raw_command(b"gat 100 %s" % key, b"END\r\n"),
            b"VALUE %s 0 5\r\nvalue\r\n" % key,
        )
        answer = self.client.raw_command(b"gats 100 %s" % key, b"END\r\n")
        unique = answer.split()[4]
        self.assertIs(self.client.cas(key, b"again", unique, expire=100), True)
        other = fresh().encode()
        self.client.set(other, b"value", expire=1)
        self.client.raw_command(b"gat 100 %s" % other, b"END\r\n")
        time.sleep(1.5)
        self.assertEqual(self.client.get_many([key, other]), {key: b"again", other: b"value"})

    def test_many(self):
        values = {fresh(): b"value %d" % number for number in range(250)}
        self.assertEqual(self.client.set_many(values), [])
        missing = fresh()
        self.assertEqual(self.client.get_many([*values, missing]), values)
        with_uniques = self.client.gets_many([*values, missing])
        self.assertEqual({key: value for key, (value, _) in with_uniques.items()}, values)
        self.assertEqual(len({unique for _, unique in with_uniques.values()}), len(values))
        self.assertIs(self.client.delete_many(list(values)), True)
        self.assertEqual(self.client.get_many(list(values)), {})

    def test_flags(self):
        client = self.connect(serde=pickle_serde)
        self.addCleanup(client.close)
        for value in (1, "text", b"bytes", 2**70, {"a": [1, None, 2.5]}, ("tuple",)):
            key = fresh()
            client.set(key, value)
            self.assertEqual(client.get(key), value)
            self.assertEqual(type(client.get(key)), type(value))
        key = fresh()
        self.client.set(key, b"value", flags=2**32 - 1)
        answer = self.client.raw_command(b"get " + key.encode(), b"END\r\n")
        self.assertIn(b" 4294967295 5\r\nvalue\r\n", answer)

    def test_large_and_empty_values(self):
        for length in (0, 1, 4095, 65536, 1_000_000):
            key = fresh()
            value = bytes(number * 7 % 251 for number in range(1000)) * (length // 1000 + 1)
            self.assertIs(self.client.set(key, value[:length]), True)
            self.assertEqual(self.client.get(key), value[:length])

    def test_too_large_a_value_is_an_error_of_that_command_only(self):
        key = fresh()
        self.client.set(key, b"before")
        with self.assertRaises(MemcacheServerError) as raised:
            self.client.set(key, b"x" * (1024 * 1024 + 1))
        self.assertIn(b"object too large for cache", str(raised.exception).encode())
        # What was there is gone: a reader must not see what was overwritten.
        self.assertIsNone(self.client.get(key))
        self.assertIs(self.client.set(key, b"after"), True)
        self.assertEqual(self.client.get(key), b"after")

    def test_binary_safe(self):
        key = fresh()
        value = bytes(range(256)) + b"\r\nEND\r\nVALUE x 0 1\r\n\0"
        self.client.set(key, value)
        self.assertEqual(self.client.get(key), value)

    def test_keys(self):
        unicode_keys = self.connect(allow_unicode_keys=True)
        self.addCleanup(unicode_keys.close)
        for key in ("snow-☃-" + fresh(), "ключ-" + fresh()):
            unicode_keys.set(key, "значение ☃".encode())
            self.assertEqual(unicode_keys.get(key).decode(), "значение ☃")
        longest = fresh().ljust(250, "k")
        self.assertIs(self.client.set(longest, b"value"), True)
        self.assertEqual(self.client.get(longest), b"value")
        too_long = b"k" * 251
        with self.assertRaises(MemcacheClientError):
            self.client.raw_command(b"get " + too_long)

    def test_noreply(self):
        client = self.connect(default_noreply=True)
        self.addCleanup(client.close)
        key, number, gone = fresh(), fresh(), fresh()
        client.set(key, b"b")
        client.append(key, b"c")
        client.prepend(key, b"a")
        client.add(key, b"no")
        client.set(number, b"1")
        client.incr(number, 41, noreply=True)
        client.decr(number, 0, noreply=True)
        client.touch(number, 100)
        client.set(gone, b"x")
        client.delete(gone)
        client.set_many({fresh(): b"x" for _ in range(10)})
        self.assertEqual(client.get_many([key, number, gone]), {key: b"abc", number: b"42"})

    def test_version_and_stats(self):
        self.assertRegex(self.client.version(), rb"^[0-9]+\.[0-9]+")
        key = fresh()
        before = self.client.stats()
        self.client.set(key, b"value")
        self.client.get(key)
        self.client.get(fresh())
        after = self.client.stats()
        for name in (b"cmd_get", b"cmd_set", b"get_hits", b"get_misses"):
            self.assertGreater(int(after[name]), int(before[name]), name)
        for name in (b"pid", b"uptime", b"curr_items", b"bytes", b"limit_maxbytes", b"evictions"):
            self.assertGreaterEqual(int(after[name]), 0, name)
        self.assertIn(b"maxconns", self.client.stats("settings"))

    def test_flush_all(self):
        key, other = fresh(), fresh()
        self.client.set(key, b"value")
        self.assertIs(self.client.flush_all(), True)
        self.assertIsNone(self.client.get(key))
        self.client.set(other, b"value")
        self.assertEqual(self.client.get(other), b"value")

    def test_unknown_commands_keep_the_connection(self):
        with self.assertRaises(MemcacheUnknownCommandError):
            self.client.raw_command(b"nonsense")
        key = fresh()
        self.client.set(key, b"value")
        self.assertEqual(self.client.get(key), b"value")

    def test_meta(self):
        key = fresh().encode()
        client = self.client
        client.raw_command(b"version")
        client.set(key, b"value", flags=7)
        self.assertEqual(client.raw_command(b"mn"), b"MN")
        self.assertEqual(client.raw_command(b"mg %s" % fresh().encode()), b"EN")
        self.assertEqual(client.raw_command(b"mg %s s f" % key), b"HD s5 f7")
        self.assertEqual(client.raw_command(b"ms %s 3\r\nnew" % key), b"HD")
        self.assertEqual(client.raw_command(b"mg %s v k Oab" % key, b"new\r\n"),
                         b"VA 3 k%s Oab\r\n" % key)
        self.assertEqual(client.raw_command(b"md %s" % key), b"HD")
        self.assertEqual(client.raw_command(b"md %s" % key), b"NF")
        self.assertEqual(client.raw_command(b"ma %s N0 J13 v" % key, b"13\r\n"), b"VA 2\r\n")
        self.assertEqual(client.raw_command(b"ma %s MD D3 v" % key, b"10\r\n"), b"VA 2\r\n")
        self.assertEqual(client.raw_command(b"ms c25vdw== 5 b\r\nwhite"), b"HD")
        self.assertEqual(client.raw_command(b"mg c25vdw== b k s"), b"HD kc25vdw== b s5")

    def test_pooled_and_hashed_clients(self):
        pooled = self.connect(PooledClient, max_pool_size=4)
        self.addCleanup(pooled.close)
        hashed = HashClient([target.memcached()], use_pooling=True, default_noreply=False)
        self.addCleanup(hashed.close)
        for client in (pooled, hashed):
            values = {fresh(): b"%d" % number for number in range(20)}
            client.set_many(values)
            self.assertEqual(client.get_many(list(values)), values)

    def test_a_line_split_over_packets(self):
        key = fresh().encode()
        with socket.create_connection(target.memcached(), 5) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in b"set %s 0 0 5\r\nvalue\r\nget %s\r\n" % (key, key):
                connection.sendall(bytes([byte]))
            answer = b""
            while not answer.endswith(b"END\r\n"):
                more = connection.recv(4096)
                self.assertTrue(more, answer)
                answer += more
        self.assertEqual(answer, b"STORED\r\nVALUE %s 0 5\r\nvalue\r\nEND\r\n" % key)


if __name__ == "__main__":
    unittest.main()
