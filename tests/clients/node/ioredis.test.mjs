// ioredis speaks RESP2.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import Redis from "ioredis";
import { fresh, outliveASecond, redis } from "./target.mjs";

const client = new Redis({ ...redis(), connectionName: "clients", maxRetriesPerRequest: 1 });
after(() => client.quit());

test("set, get, delete", async () => {
  const key = fresh();
  assert.equal(await client.get(key), null);
  assert.equal(await client.set(key, "value ☃"), "OK");
  assert.equal(await client.get(key), "value ☃");
  assert.equal(await client.exists(key, fresh()), 1);
  assert.equal(await client.del(key, fresh()), 1);
  assert.equal(await client.unlink(key), 0);
});

test("options of set", async () => {
  const key = fresh();
  assert.equal(await client.set(key, "0", "XX"), null);
  assert.equal(await client.set(key, "1", "EX", 100, "NX"), "OK");
  assert.equal(await client.set(key, "2", "NX"), null);
  assert.equal(await client.set(key, "3", "KEEPTTL"), "OK");
  assert.ok((await client.ttl(key)) > 90);
  assert.equal(await client.set(key, "4", "GET"), "3");
  assert.equal(await client.ttl(key), -1);
});

test("many at once", async () => {
  const keys = Array.from({ length: 200 }, fresh);
  assert.equal(await client.mset(new Map(keys.map((key) => [key, `of ${key}`]))), "OK");
  assert.deepEqual(await client.mget(...keys, fresh()), [...keys.map((key) => `of ${key}`), null]);
});

test("numbers and strings", async () => {
  const key = fresh();
  assert.equal(await client.incr(key), 1);
  assert.equal(await client.incrby(key, 41), 42);
  assert.equal(await client.decrby(key, 51), -9);
  assert.equal(await client.append(key, "px"), 4);
  assert.equal(await client.strlen(key), 4);
  await assert.rejects(client.incr(key), /not an integer/);
  assert.equal(await client.getdel(key), "-9px");
});

test("expiry", async () => {
  const [key, kept] = [fresh(), fresh()];
  await client.set(key, "value", "PX", 1000);
  await client.set(kept, "value", "EX", 1);
  assert.equal(await client.persist(kept), 1);
  await outliveASecond();
  assert.deepEqual(await client.mget(key, kept), [null, "value"]);
  assert.equal(await client.getex(kept, "EX", 100), "value");
  assert.ok((await client.pttl(kept)) > 90_000);
});

test("binary and large values", async () => {
  const value = Buffer.alloc(1_000_000, Buffer.from("\r\n$-1\r\n\0\xff", "latin1"));
  const key = Buffer.from(`${fresh()}\0\r\n`);
  assert.equal(await client.set(key, value), "OK");
  assert.ok((await client.getBuffer(key)).equals(value));
});

test("a pipeline", async () => {
  const keys = Array.from({ length: 300 }, fresh);
  const pipeline = client.pipeline();
  for (const key of keys) pipeline.set(key, key).get(key);
  const answers = await pipeline.exec();
  assert.deepEqual(answers.filter((_, at) => at % 2 === 1), keys.map((key) => [null, key]));
});

test("a transaction", async () => {
  const [key, other] = [fresh(), fresh()];
  const answers = await client.multi().set(key, "1").incr(key).mset(other, "2").get(other).exec();
  assert.deepEqual(answers, [[null, "OK"], [null, 2], [null, "OK"], [null, "2"]]);
  await client.watch(key);
  await client.incr(key);
  assert.equal(await client.multi().set(key, "0").exec(), null);
  assert.equal(await client.get(key), "3");
});

test("scan, flush, errors", async () => {
  assert.equal(await client.flushall(), "OK");
  const keys = Array.from({ length: 100 }, (_, number) => `scan-${number}`);
  await Promise.all(keys.map((key) => client.set(key, "x")));
  await client.set(fresh(), "x");
  const seen = new Set();
  for await (const page of client.scanStream({ match: "scan-*", count: 10 })) {
    page.forEach((key) => seen.add(key));
  }
  assert.deepEqual([...seen].sort(), keys.sort());
  assert.equal(await client.dbsize(), 101);
  await client.flushall();
  assert.equal(await client.dbsize(), 0);
  await assert.rejects(client.call("NONSENSE"), /unknown command/);
  assert.equal(await client.ping(), "PONG");
});
