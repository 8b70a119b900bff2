package trefoil;

import static org.junit.jupiter.api.Assertions.*;
import static trefoil.Target.fresh;

import java.nio.charset.StandardCharsets;
import java.util.*;
import org.junit.jupiter.api.*;
import redis.clients.jedis.*;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.*;

/** Jedis' usual operations, RESP2 and RESP3. */
abstract class JedisTest {
  private final RedisProtocol protocol;
  private Jedis client;

  JedisTest(RedisProtocol protocol) {
    this.protocol = protocol;
  }

  static class Resp2Test extends JedisTest {
    Resp2Test() {
      super(RedisProtocol.RESP2);
    }
  }

  static class Resp3Test extends JedisTest {
    Resp3Test() {
      super(RedisProtocol.RESP3);
    }
  }

  @BeforeEach
  void connect() {
    client =
        new Jedis(
            new HostAndPort(Target.redis().getHostString(), Target.redis().getPort()),
            DefaultJedisClientConfig.builder().protocol(protocol).timeoutMillis(5000).build());
  }

  @AfterEach
  void close() {
    client.close();
  }

  @Test
  void setGetDelete() {
    String key = fresh();
    assertNull(client.get(key));
    assertEquals("OK", client.set(key, "value ☃"));
    assertEquals("value ☃", client.get(key));
    assertTrue(client.exists(key));
    assertEquals(1, client.del(key, fresh()));
    assertEquals(0, client.unlink(key));
    assertFalse(client.exists(key));
  }

  @Test
  void setOptions() {
    String key = fresh();
    assertNull(client.set(key, "0", SetParams.setParams().xx()));
    assertEquals("OK", client.set(key, "1", SetParams.setParams().nx().ex(100)));
    assertNull(client.set(key, "2", SetParams.setParams().nx()));
    assertEquals("OK", client.set(key, "3", SetParams.setParams().keepTtl()));
    assertTrue(client.ttl(key) > 90);
    assertEquals("3", client.setGet(key, "4"));
    assertEquals(-1, client.ttl(key));
    assertEquals(0, client.setnx(key, "5"));
    assertEquals("OK", client.setex(key, 100, "6"));
    assertEquals("OK", client.psetex(key, 100_000, "7"));
    assertTrue(client.pttl(key) > 90_000);
    assertEquals("7", client.get(key));
  }

  @Test
  void manyAtOnce() {
    List<String> pairs = new ArrayList<>();
    List<String> keys = new ArrayList<>();
    List<String> values = new ArrayList<>();
    for (int number = 0; number < 250; number++) {
      keys.add(fresh());
      values.add("value " + number);
      pairs.add(keys.get(number));
      pairs.add(values.get(number));
    }
    assertEquals("OK", client.mset(pairs.toArray(String[]::new)));
    keys.add(fresh());
    values.add(null);
    assertEquals(values, client.mget(keys.toArray(String[]::new)));
  }

  @Test
  void numbersAndStrings() {
    String key = fresh();
    assertEquals(1, client.incr(key));
    assertEquals(42, client.incrBy(key, 41));
    assertEquals(41, client.decr(key));
    assertEquals(-9, client.decrBy(key, 50));
    assertEquals(4, client.append(key, "px"));
    assertEquals(4, client.strlen(key));
    assertEquals("-9px", client.get(key));
    assertThrows(JedisDataException.class, () -> client.incr(key));
  }

  @Test
  void expiry() throws Exception {
    String key = fresh();
    String other = fresh();
    assertEquals(-2, client.ttl(key));
    client.set(key, "value", SetParams.setParams().ex(1));
    client.set(other, "value", SetParams.setParams().px(1000));
    assertEquals(1, client.persist(other));
    assertEquals(1, client.expire(other, 100));
    assertEquals(1, client.pexpire(other, 50_000));
    Target.outliveASecond();
    assertNull(client.get(key));
    assertEquals("value", client.get(other));
    assertEquals("value", client.getEx(other, GetExParams.getExParams().persist()));
    assertEquals(-1, client.ttl(other));
    assertEquals("value", client.getDel(other));
    assertNull(client.getDel(other));
  }

  @Test
  void binaryAndLargeValues() {
    byte[] key = (fresh() + "\r\n\0").getBytes(StandardCharsets.UTF_8);
    byte[] value = new byte[1_000_000];
    new Random(3).nextBytes(value);
    client.set(key, value);
    assertArrayEquals(value, client.get(key));
    client.set(key, new byte[0]);
    assertArrayEquals(new byte[0], client.get(key));
  }

  @Test
  void pipeline() {
    String key = fresh();
    Pipeline pipeline = client.pipelined();
    List<Response<String>> answers = new ArrayList<>();
    for (int number = 0; number < 500; number++) {
      pipeline.set(key + number, "" + number);
      answers.add(pipeline.get(key + number));
    }
    pipeline.sync();
    for (int number = 0; number < 500; number++) {
      assertEquals("" + number, answers.get(number).get());
    }
  }

  @Test
  void transaction() {
    String key = fresh();
    String other = fresh();
    try (AbstractTransaction transaction = client.multi()) {
      Response<String> stored = transaction.set(key, "41");
      Response<Long> counted = transaction.incr(key);
      transaction.expire(key, 100);
      Response<String> word = transaction.setGet(other, "word");
      Response<Long> failed = transaction.incr(other);
      assertEquals(5, transaction.exec().size());
      assertEquals("OK", stored.get());
      assertEquals(42, counted.get());
      assertNull(word.get());
      assertThrows(JedisDataException.class, failed::get);
    }
    assertEquals(100, client.ttl(key));
    try (AbstractTransaction transaction = client.multi()) {
      transaction.set(key, "0");
      transaction.discard();
    }
    assertEquals("42", client.get(key));
  }

  @Test
  void watchedKeys() {
    String key = fresh();
    client.set(key, "1");
    for (boolean isChanged : new boolean[] {false, true}) {
      client.watch(key);
      if (isChanged) {
        client.incr(key);
      }
      try (AbstractTransaction transaction = client.multi()) {
        transaction.set(key, "7");
        assertEquals(isChanged, transaction.exec() == null);
      }
    }
    assertEquals("8", client.get(key));
  }

  @Test
  void scripts() {
    String key = fresh();
    String count =
        "local n = redis.call('incrby', KEYS[1], ARGV[1]) redis.call('pexpire', KEYS[1], ARGV[2]) "
            + "return {n, redis.call('pttl', KEYS[1]), redis.status_reply('FINE')}";
    List<?> answer = (List<?>) client.eval(count, List.of(key), List.of("5", "60000"));
    assertEquals(5L, answer.get(0));
    assertTrue((long) answer.get(1) > 50_000);
    assertEquals("FINE", answer.get(2) instanceof byte[] bytes ? new String(bytes) : answer.get(2));
    String name = client.scriptLoad(count);
    assertTrue(client.scriptExists(name));
    answer = (List<?>) client.evalsha(name, List.of(key), List.of("2", "60000"));
    assertEquals(7L, answer.get(0));
    assertThrows(
        redis.clients.jedis.exceptions.JedisNoScriptException.class,
        () -> client.evalsha("0".repeat(40), List.of(key), List.of()));
    assertThrows(JedisDataException.class, () -> client.eval("return nosuch()", List.of(key), List.of()));
  }

  /** As it is written in many services: SET NX PX with a token, and released by a script. */
  @Test
  void aLockThatWorkersPassOn() throws Exception {
    String name = fresh();
    String release =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    var inside = new java.util.concurrent.atomic.AtomicInteger();
    var turns = new java.util.concurrent.atomic.AtomicInteger();
    List<Thread> workers = new ArrayList<>();
    List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
    for (int number = 0; number < 8; number++) {
      String token = "worker " + number;
      Thread worker =
          new Thread(
              () -> {
                try (Jedis own = new Jedis(Target.redis().getHostString(), Target.redis().getPort())) {
                  for (int turn = 0; turn < 5; turn++) {
                    while (own.set(name, token, SetParams.setParams().nx().px(20_000)) == null) {
                      Thread.sleep(2);
                    }
                    assertEquals(1, inside.incrementAndGet());
                    assertEquals(0L, own.eval(release, List.of(name), List.of("somebody")));
                    assertEquals(0, inside.decrementAndGet());
                    assertEquals(1L, own.eval(release, List.of(name), List.of(token)));
                    turns.incrementAndGet();
                  }
                } catch (Throwable failure) {
                  failures.add(failure);
                }
              });
      workers.add(worker);
      worker.start();
    }
    for (Thread worker : workers) {
      worker.join();
    }
    assertEquals(List.of(), failures);
    assertEquals(40, turns.get());
    assertNull(client.get(name));
  }

  @Test
  void scanAndFlush() {
    client.flushAll();
    Set<String> keys = new HashSet<>();
    for (int number = 0; number < 200; number++) {
      keys.add("scan-" + number);
      client.set("scan-" + number, "x");
    }
    client.set(fresh(), "x");
    assertEquals(201, client.dbSize());
    Set<String> seen = new HashSet<>();
    String cursor = ScanParams.SCAN_POINTER_START;
    do {
      var page = client.scan(cursor, new ScanParams().match("scan-*").count(20));
      seen.addAll(page.getResult());
      cursor = page.getCursor();
    } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
    assertEquals(keys, seen);
    assertEquals("OK", client.flushAll());
    assertEquals(0, client.dbSize());
  }

  @Test
  void connectionCommands() {
    assertEquals("PONG", client.ping());
    assertEquals("hello", client.echo("hello"));
    assertEquals("OK", client.select(0));
    assertEquals("OK", client.clientSetname("clients"));
    assertTrue(client.clientId() > 0);
    assertTrue(client.info().contains("redis_version"));
    assertTrue(client.configGet("maxmemory").containsKey("maxmemory"));
    JedisDataException unknown =
        assertThrows(JedisDataException.class, () -> client.sendCommand(() -> "NONSENSE".getBytes()));
    assertTrue(unknown.getMessage().contains("unknown command"), unknown.getMessage());
    assertEquals("PONG", client.ping());
  }
}
