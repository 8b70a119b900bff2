// What is built upon clients of Redis: rate-limiter-flexible (Lua over one key, and
// MULTI), over ioredis and node-redis, and redlock.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Redis from "ioredis";
import limiters from "rate-limiter-flexible";
import { createClient } from "redis";
import Redlock from "redlock";
import { fresh, outliveASecond, redis, sleep } from "./target.mjs";

const { RateLimiterQueue, RateLimiterRedis, BurstyRateLimiter } = limiters;
const io = new Redis(redis());
const other = new Redis(redis());
const node = createClient({ socket: redis() });
before(() => node.connect());
after(() => Promise.all([io.quit(), other.quit(), node.close()]));

const stores = { ioredis: { storeClient: io }, "node-redis": { storeClient: node, useRedisPackage: true } };

for (const [name, store] of Object.entries(stores)) {
  const limiter = (options) => new RateLimiterRedis({ ...store, keyPrefix: fresh(), ...options });

  test(`${name}: as many as may, and no more`, async () => {
    const limit = limiter({ points: 5, duration: 100 });
    const ended = await Promise.allSettled(Array.from({ length: 40 }, () => limit.consume("user")));
    const passed = ended.filter((one) => one.status === "fulfilled").map((one) => one.value);
    assert.equal(passed.length, 5);
    assert.deepEqual(passed.map((one) => one.consumedPoints).sort(), [1, 2, 3, 4, 5]);
    for (const { reason } of ended.filter((one) => one.status === "rejected")) {
      assert.equal(reason.remainingPoints, 0);
      assert.ok(reason.msBeforeNext > 90_000 && reason.msBeforeNext <= 100_000);
    }
  });

  test(`${name}: several points, rewards, penalties`, async () => {
    const limit = limiter({ points: 10, duration: 100 });
    assert.equal((await limit.consume("user", 4)).remainingPoints, 6);
    assert.equal((await limit.penalty("user", 2)).consumedPoints, 6);
    assert.equal((await limit.reward("user", 3)).consumedPoints, 3);
    assert.equal((await limit.get("user")).consumedPoints, 3);
    await assert.rejects(limit.consume("user", 8));
    assert.equal(await limit.delete("user"), true);
    assert.equal(await limit.get("user"), null);
  });

  test(`${name}: a window ends`, async () => {
    const limit = limiter({ points: 1, duration: 1 });
    await limit.consume("user");
    await assert.rejects(limit.consume("user"));
    await outliveASecond();
    assert.equal((await limit.consume("user")).consumedPoints, 1);
  });

  test(`${name}: blocked, for a time and by a transaction`, async () => {
    const limit = limiter({ points: 2, duration: 100, blockDuration: 200 });
    await limit.consume("user");
    await limit.consume("user");
    await assert.rejects(limit.consume("user"), (reason) => reason.msBeforeNext > 190_000);
    const blocked = await limit.block("another", 50);
    assert.ok(blocked.msBeforeNext > 49_000);
    await assert.rejects(limit.consume("another"));
    assert.equal((await limit.set("third", 2, 30)).consumedPoints, 2);
    assert.ok((await limit.get("third")).msBeforeNext <= 30_000);
  });

  test(`${name}: bursts and queues`, async () => {
    const bursty = new BurstyRateLimiter(
      limiter({ points: 1, duration: 100 }),
      limiter({ points: 2, duration: 100 }),
    );
    for (let count = 0; count < 3; count++) await bursty.consume("user");
    await assert.rejects(bursty.consume("user"));
    const queue = new RateLimiterQueue(limiter({ points: 100, duration: 1 }));
    assert.deepEqual(await Promise.all([1, 2, 3].map(() => queue.removeTokens(1))), [99, 98, 97]);
  });
}

test("limiters of two clients count together", async () => {
  const keyPrefix = fresh();
  const options = { keyPrefix, points: 7, duration: 100 };
  const both = [io, other].map((storeClient) => new RateLimiterRedis({ storeClient, ...options }));
  const ended = await Promise.allSettled(
    Array.from({ length: 30 }, (_, number) => both[number % 2].consume("user")),
  );
  assert.equal(ended.filter((one) => one.status === "fulfilled").length, 7);
});

test("scripts that were forgotten are sent again", async () => {
  const limit = new RateLimiterRedis({ storeClient: io, keyPrefix: fresh(), points: 2, duration: 100 });
  await limit.consume("user");
  assert.equal(await other.script("FLUSH"), "OK");
  assert.equal((await limit.consume("user")).consumedPoints, 2);
});

test("redlock: one owner", async () => {
  const name = fresh();
  const locks = new Redlock([io], { retryCount: 0 });
  const lock = await locks.lock(name, 20_000);
  await assert.rejects(new Redlock([other], { retryCount: 0 }).lock(name, 20_000));
  const longer = await lock.extend(40_000);
  assert.ok((await other.pttl(name)) > 20_000);
  await longer.unlock();
  await assert.rejects(longer.unlock());
  assert.equal(await other.get(name), null);
  const next = await new Redlock([other], { retryCount: 0 }).lock(name, 20_000);
  await next.unlock();
});

test("redlock: twenty in turn", async () => {
  const name = fresh();
  const locks = [io, other].map((client) => new Redlock([client], { retryCount: -1, retryDelay: 5 }));
  let [inside, turns] = [0, 0];
  await Promise.all(
    Array.from({ length: 20 }, async (_, number) => {
      const lock = await locks[number % 2].lock(name, 20_000);
      assert.equal(++inside, 1);
      await sleep(1);
      inside -= 1;
      turns += 1;
      await lock.unlock();
    }),
  );
  assert.equal(turns, 20);
});

test("redlock: what nobody releases ends by itself", async () => {
  const name = fresh();
  await new Redlock([io], { retryCount: 0 }).lock(name, 300);
  const begin = performance.now();
  const next = await new Redlock([other], { retryCount: 200, retryDelay: 20 }).lock(name, 20_000);
  assert.ok(performance.now() - begin > 200);
  await next.unlock();
});
