"""pylibmc is libmemcached: the same operations in the text and the binary protocol."""

import time
import unittest

import pylibmc

import target
from target import fresh


class Operations:
    """What both protocols have to do."""

    binary = None
    behaviors = {}

    def setUp(self):
        host, port = target.memcached()
        self.client = pylibmc.Client(
            [f"{host}:{port}"],
            binary=self.binary,
            behaviors={"cas": True, "tcp_nodelay": True, **self.behaviors},
        )
        self.addCleanup(self.client.disconnect_all)

    def test_set_get_delete(self):
        key = fresh()
        self.assertIsNone(self.client.get(key))
        self.assertIs(self.client.set(key, b"value"), True)
        self.assertEqual(self.client.get(key), b"value")
        self.assertIn(key, self.client)
        self.assertIs(self.client.delete(key), True)
        self.assertIs(self.client.delete(key), False)

    def test_values_keep_their_types(self):
        for value in (b"bytes", "text ☃", 7, -7, 2**80, 1.5, {"a": [None]}, b""):
            key = fresh()
            self.client.set(key, value)
            self.assertEqual(self.client.get(key), value)
            self.assertIs(type(self.client.get(key)), type(value))

    def test_add_replace(self):
        key = fresh()
        self.assertIs(self.client.add(key, "1"), True)
        self.assertIs(self.client.add(key, "2"), False)
        self.assertIs(self.client.replace(key, "3"), True)
        self.assertEqual(self.client.get(key), "3")

    def test_replace_of_nothing(self):
        # The two protocols have different words for it.
        if self.binary:
            self.assertRaises(pylibmc.NotFound, self.client.replace, fresh(), "0")
        else:
            self.assertIs(self.client.replace(fresh(), "0"), False)

    def test_append_prepend(self):
        key = fresh()
        self.client.set(key, b"middle")
        self.assertTrue(self.client.append(key, b">"))
        self.assertTrue(self.client.prepend(key, b"<"))
        self.assertEqual(self.client.get(key), b"<middle>")
        self.assertIs(self.client.append(fresh(), b"x"), False)
        self.assertIs(self.client.prepend(fresh(), b"x"), False)

    def test_cas(self):
        key = fresh()
        self.assertEqual(self.client.gets(key), (None, None))
        self.client.set(key, "one")
        value, unique = self.client.gets(key)
        self.assertEqual(value, "one")
        self.assertIs(self.client.cas(key, "two", unique), True)
        self.assertIs(self.client.cas(key, "three", unique), False)
        self.assertEqual(self.client.get(key), "two")
        with self.assertRaises(pylibmc.NotFound):
            self.client.cas(fresh(), "x", unique)

    def test_incr_decr(self):
        key = fresh()
        with self.assertRaises(pylibmc.NotFound):
            self.client.incr(key)
        self.client.set(key, 10)
        self.assertEqual(self.client.incr(key, 5), 15)
        self.assertEqual(self.client.decr(key, 6), 9)
        self.assertEqual(self.client.decr(key, 100), 0)

    def test_many(self):
        values = {fresh(): f"value {number}" for number in range(250)}
        self.assertEqual(self.client.set_multi(values), [])
        self.assertEqual(self.client.get_multi([*values, fresh()]), values)
        self.assertIs(self.client.delete_multi(list(values)), True)
        self.assertEqual(self.client.get_multi(list(values)), {})
        prefixed = fresh("prefix")
        self.client.set_multi({"a": 1, "b": 2}, key_prefix=prefixed)
        self.assertEqual(self.client.get_multi(["a", "b", "c"], key_prefix=prefixed), {"a": 1, "b": 2})
        added = fresh()
        self.assertEqual(self.client.add_multi({added: 1}), [])
        self.assertEqual(self.client.add_multi({added: 2}), [added])

    def test_large_and_binary_values(self):
        for value in (bytes(range(256)) * 3900, b"\r\nEND\r\n\0" * 100):
            key = fresh()
            self.assertIs(self.client.set(key, value), True)
            self.assertEqual(self.client.get(key), value)

    def test_compressed(self):
        key = fresh()
        self.client.set(key, "a" * 100_000, min_compress_len=1000)
        self.assertEqual(self.client.get(key), "a" * 100_000)

    def test_longest_key(self):
        key = fresh().ljust(250, "k")
        self.assertIs(self.client.set(key, "value"), True)
        self.assertEqual(self.client.get(key), "value")

    def test_stats_and_flush(self):
        [(_, stats)] = self.client.get_stats()
        self.assertIn("curr_items", stats)
        key = fresh()
        self.client.set(key, "value")
        self.assertTrue(self.client.flush_all())
        self.assertIsNone(self.client.get(key))
        self.client.set(key, "later")
        self.assertEqual(self.client.get(key), "later")


class Expiry:
    """Apart, because it waits."""

    def test_touch_and_expiry(self):
        key, other = fresh(), fresh()
        self.assertFalse(self.client.touch(key, 10))
        self.client.set(key, "value", time=1)
        self.client.set(other, "value", time=1)
        self.assertTrue(self.client.touch(key, 100))
        time.sleep(1.5)
        self.assertEqual(self.client.get(key), "value")
        self.assertIsNone(self.client.get(other))
        self.assertIs(self.client.add(other, "next"), True)
        self.assertEqual(self.client.get(other), "next")


class Text(Expiry, Operations, unittest.TestCase):
    binary = False

    # libmemcached takes the connection down after an error in the binary
    # protocol, whatever the server is: only text can go on.
    def test_errors_leave_the_connection(self):
        key = fresh()
        self.client.set(key, "word")
        with self.assertRaises(pylibmc.ClientError):
            self.client.incr(key)
        self.assertEqual(self.client.get(key), "word")
        with self.assertRaises(pylibmc.TooBig):
            self.client.set(fresh(), b"x" * (1024 * 1024 + 1))
        self.assertEqual(self.client.get(key), "word")


class TextWithoutReplies(unittest.TestCase):
    def test_what_was_sent_is_there(self):
        host, port = target.memcached()
        # Another connection sees it: wait for what has no answer.
        client = pylibmc.Client([f"{host}:{port}"], behaviors={"_noreply": True})
        reader = pylibmc.Client([f"{host}:{port}"])
        key = fresh()
        client.set(key, "value")
        deadline = time.monotonic() + 5
        while reader.get(key) != "value":
            self.assertLess(time.monotonic(), deadline)
        client.disconnect_all()
        reader.disconnect_all()


class TextBuffered(Operations, unittest.TestCase):
    """Non-blocking sockets: replies come back in pieces."""

    binary = False
    behaviors = {"no_block": True}


class Binary(Expiry, Operations, unittest.TestCase):
    binary = True

    def test_errors_are_reported(self):
        key = fresh()
        self.client.set(key, "word")
        with self.assertRaises(pylibmc.Error):
            self.client.incr(key)

    def test_incr_makes_a_64_bit_number_wrap(self):
        key = fresh()
        self.client.set(key, 2**63 - 1)
        self.assertEqual(self.client.incr(key, 2), 2**63 + 1)


if __name__ == "__main__":
    unittest.main()
