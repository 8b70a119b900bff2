// memjs speaks the binary protocol.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import memjs from "memjs";
import { fresh, memcached, outliveASecond } from "./target.mjs";

const client = memjs.Client.create(memcached(), { timeout: 5, retries: 1 });
after(() => client.close());

const text = async (key) => (await client.get(key)).value?.toString();

test("set, get, delete", async () => {
  const key = fresh();
  assert.equal((await client.get(key)).value, null);
  assert.equal(await client.set(key, "value ☃", {}), true);
  assert.equal(await text(key), "value ☃");
  assert.equal(await client.delete(key), true);
  assert.equal(await client.delete(key), false);
  assert.equal((await client.get(key)).value, null);
});

test("add, replace", async () => {
  const key = fresh();
  assert.equal(await client.replace(key, "0", {}), false);
  assert.equal(await client.add(key, "1", {}), true);
  assert.equal(await client.add(key, "2", {}), false);
  assert.equal(await client.replace(key, "3", {}), true);
  assert.equal(await text(key), "3");
});

// The client's prepend sends the operation code of append: left out.
test("append", async () => {
  const key = fresh();
  await assert.rejects(client.append(key, "x"), /not stored/);
  await client.set(key, "middle", {});
  assert.equal(await client.append(key, ">"), true);
  assert.equal(await text(key), "middle>");
});

test("numbers", async () => {
  const key = fresh();
  assert.equal((await client.increment(key, 5, { initial: 7 })).value, 7);
  assert.equal((await client.increment(key, 5, { initial: 7 })).value, 12);
  assert.equal((await client.decrement(key, 4, { initial: 7 })).value, 8);
  assert.equal((await client.decrement(key, 100, { initial: 7 })).value, 0);
});

test("many increments at once lose nothing", async () => {
  const key = fresh();
  await client.set(key, "0", {});
  await Promise.all(Array.from({ length: 100 }, () => client.increment(key, 1, {})));
  assert.equal(await text(key), "100");
});

test("touch and expiry", async () => {
  const [key, touched] = [fresh(), fresh()];
  assert.equal(await client.touch(key, 100), false);
  await client.set(key, "value", { expires: 1 });
  await client.set(touched, "value", { expires: 1 });
  assert.equal(await client.touch(touched, 100), true);
  await outliveASecond();
  assert.equal((await client.get(key)).value, null);
  assert.equal(await text(touched), "value");
});

test("large, empty and binary values", async () => {
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  for (const value of [Buffer.alloc(0), bytes, Buffer.alloc(1_000_000, bytes)]) {
    const key = fresh();
    assert.equal(await client.set(key, value, {}), true);
    const found = (await client.get(key)).value;
    assert.ok(found.equals(value), `${found.length} bytes, not ${value.length} or not the same`);
  }
});

test("a burst of requests on one connection", async () => {
  const keys = Array.from({ length: 500 }, fresh);
  await Promise.all(keys.map((key) => client.set(key, key, {})));
  assert.deepEqual(await Promise.all(keys.map(text)), keys);
});

test("statistics, flush", async () => {
  const stats = await new Promise((done, failed) =>
    client.stats((error, _, found) => (error ? failed(error) : done(found))),
  );
  assert.ok(Number(stats.limit_maxbytes) > 0, JSON.stringify(stats));
  const key = fresh();
  await client.set(key, "value", {});
  await new Promise((done, failed) =>
    client.flush((error) => (error ? failed(error) : done())),
  );
  assert.equal((await client.get(key)).value, null);
  await client.set(key, "later", {});
  assert.equal(await text(key), "later");
});
