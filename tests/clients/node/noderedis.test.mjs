// node-redis, which speaks RESP3 when asked to.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createClient } from "redis";
import { fresh, redis } from "./target.mjs";

for (const RESP of [2, 3]) {
  test(`RESP${RESP}`, async (group) => {
    const client = createClient({ RESP, socket: redis() });
    await client.connect();
    try {
      await group.test("set, get, expire", async () => {
        const key = fresh();
        assert.equal(await client.get(key), null);
        assert.equal(await client.set(key, "value", { EX: 100, NX: true }), "OK");
        assert.equal(await client.set(key, "other", { NX: true }), null);
        assert.equal(await client.get(key), "value");
        assert.ok((await client.ttl(key)) > 90);
        assert.equal(await client.persist(key), 1);
        assert.equal(await client.ttl(key), -1);
        assert.equal(await client.del(key), 1);
      });
      await group.test("what is sent together", async () => {
        const keys = Array.from({ length: 300 }, fresh);
        await Promise.all(keys.map((key) => client.set(key, key)));
        assert.deepEqual(await client.mGet([...keys, fresh()]), [...keys, null]);
      });
      await group.test("numbers and errors", async () => {
        const key = fresh();
        assert.equal(await client.incrBy(key, 42), 42);
        assert.equal(await client.decr(key), 41);
        await assert.rejects(client.sendCommand(["NONSENSE"]), /unknown command/);
        assert.equal(await client.ping(), "PONG");
      });
    } finally {
      await client.close();
    }
  });
}
