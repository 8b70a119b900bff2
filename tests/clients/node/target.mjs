// The addresses under test, from the environment, and keys of one's own.
import { randomUUID } from "node:crypto";

const address = (name) => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: HOST:PORT of the server under test`);
  const colon = value.lastIndexOf(":");
  return { host: value.slice(0, colon), port: Number(value.slice(colon + 1)) };
};

export const memcached = () => process.env.MEMCACHED_ADDR;
export const redis = () => address("REDIS_ADDR");
export const fresh = () => `key-${randomUUID()}`;
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
// Past what was stored for one second; servers may count whole ones.
export const outliveASecond = () => sleep(1500);
