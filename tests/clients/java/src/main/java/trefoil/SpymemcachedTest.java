package trefoil;

import static org.junit.jupiter.api.Assertions.*;
import static trefoil.Target.fresh;

import java.util.*;
import java.util.concurrent.*;
import net.spy.memcached.*;
import org.junit.jupiter.api.*;

/** spymemcached's usual operations, once per protocol. */
abstract class SpymemcachedTest {
  private final ConnectionFactoryBuilder.Protocol protocol;
  private MemcachedClient client;

  SpymemcachedTest(ConnectionFactoryBuilder.Protocol protocol) {
    this.protocol = protocol;
  }

  static class TextTest extends SpymemcachedTest {
    TextTest() {
      super(ConnectionFactoryBuilder.Protocol.TEXT);
    }
  }

  static class BinaryTest extends SpymemcachedTest {
    BinaryTest() {
      super(ConnectionFactoryBuilder.Protocol.BINARY);
    }

    @Test
    void getAndTouch() throws Exception {
      String key = fresh();
      assertNull(client().getAndTouch(key, 100));
      assertTrue(client().set(key, 1, "value").get());
      assertEquals("value", client().getAndTouch(key, 100).getValue());
      Target.outliveASecond();
      assertEquals("value", client().get(key));
    }

    @Test
    void getsThatTouchInBulk() throws Exception {
      String key = fresh();
      assertTrue(client().set(key, 100, "value").get());
      assertEquals("value", client().asyncGetAndTouch(key, 50).get().getValue());
    }

    @Test
    void numbersWithADefault() {
      String key = fresh();
      assertEquals(13, client().incr(key, 5, 13));
      assertEquals(18, client().incr(key, 5, 13));
      assertEquals(8, client().decr(key, 10, 13));
      assertEquals(-1, client().incr(fresh(), 1));
      assertEquals(13, client().decr(fresh(), 10, 13, 100));
    }
  }

  MemcachedClient client() {
    return client;
  }

  @BeforeEach
  void connect() throws Exception {
    ConnectionFactory factory =
        new ConnectionFactoryBuilder()
            .setProtocol(protocol)
            .setOpTimeout(5000)
            .setDaemon(true)
            .build();
    client = new MemcachedClient(factory, List.of(Target.memcached()));
  }

  @AfterEach
  void close() {
    client.shutdown();
  }

  @Test
  void setGetDelete() throws Exception {
    String key = fresh();
    assertNull(client.get(key));
    assertTrue(client.set(key, 0, "value").get());
    assertEquals("value", client.get(key));
    assertTrue(client.delete(key).get());
    assertFalse(client.delete(key).get());
    assertNull(client.get(key));
  }

  @Test
  void addReplace() throws Exception {
    String key = fresh();
    assertFalse(client.replace(key, 0, "0").get());
    assertTrue(client.add(key, 0, "1").get());
    assertFalse(client.add(key, 0, "2").get());
    assertEquals("1", client.get(key));
    assertTrue(client.replace(key, 0, "3").get());
    assertEquals("3", client.get(key));
  }

  @Test
  void appendPrepend() throws Exception {
    String key = fresh();
    assertFalse(client.append(key, "x").get());
    assertFalse(client.prepend(key, "x").get());
    assertTrue(client.set(key, 0, "middle").get());
    assertTrue(client.append(key, ">").get());
    assertTrue(client.prepend(key, "<").get());
    assertEquals("<middle>", client.get(key));
  }

  @Test
  void compareAndSwap() throws Exception {
    String key = fresh();
    assertNull(client.gets(key));
    assertEquals(CASResponse.NOT_FOUND, client.cas(key, 1, "x"));
    assertTrue(client.set(key, 0, "one").get());
    CASValue<Object> one = client.gets(key);
    assertEquals("one", one.getValue());
    assertEquals(CASResponse.OK, client.cas(key, one.getCas(), "two"));
    assertEquals(CASResponse.EXISTS, client.cas(key, one.getCas(), "three"));
    assertEquals("two", client.get(key));
  }

  @Test
  void mutatorsOfOneKeyLoseNothing() throws Exception {
    String key = fresh();
    CASMutator<Object> mutator = new CASMutator<>(client, client.getTranscoder(), 10_000);
    ExecutorService threads = Executors.newFixedThreadPool(4);
    List<Future<?>> done = new ArrayList<>();
    for (int thread = 0; thread < 4; thread++) {
      done.add(
          threads.submit(
              () -> {
                for (int round = 0; round < 25; round++) {
                  mutator.cas(key, "x", 0, value -> value + "x");
                }
                return null;
              }));
    }
    for (Future<?> thread : done) {
      thread.get(60, TimeUnit.SECONDS);
    }
    threads.shutdown();
    assertEquals("x".repeat(100), client.get(key));
  }

  @Test
  void numbers() throws Exception {
    String key = fresh();
    assertEquals(-1, client.incr(key, 1));
    assertEquals(-1, client.decr(key, 1));
    assertTrue(client.set(key, 0, "10").get());
    assertEquals(15, client.incr(key, 5));
    assertEquals(9, client.decr(key, 6));
    assertEquals(0, client.decr(key, 100));
  }

  @Test
  void touchAndExpiry() throws Exception {
    String key = fresh();
    String other = fresh();
    assertFalse(client.touch(key, 100).get());
    assertTrue(client.set(key, 1, "value").get());
    assertTrue(client.set(other, 1, "value").get());
    assertTrue(client.touch(key, 100).get());
    Target.outliveASecond();
    assertEquals("value", client.get(key));
    assertNull(client.get(other));
  }

  @Test
  void manyAtOnce() throws Exception {
    Map<String, Object> values = new HashMap<>();
    List<Future<Boolean>> stored = new ArrayList<>();
    for (int number = 0; number < 250; number++) {
      String key = fresh();
      values.put(key, "value " + number);
      stored.add(client.set(key, 0, "value " + number));
    }
    for (Future<Boolean> one : stored) {
      assertTrue(one.get());
    }
    List<String> keys = new ArrayList<>(values.keySet());
    keys.add(fresh());
    assertEquals(values, client.getBulk(keys));
  }

  @Test
  void valuesKeepTheirTypes() throws Exception {
    for (Object value :
        List.of("snow ☃", 7, -7L, 1.5, true, (byte) 3, new Date(0), new ArrayList<>(List.of(1, "2")))) {
      String key = fresh();
      assertTrue(client.set(key, 0, value).get());
      assertEquals(value, client.get(key));
    }
  }

  @Test
  void largeAndBinaryValues() throws Exception {
    byte[] value = new byte[1_000_000];
    // Random bytes, because the client compresses what it can.
    new Random(1).nextBytes(value);
    String key = fresh();
    assertTrue(client.set(key, 0, value).get());
    assertArrayEquals(value, (byte[]) client.get(key));
    assertTrue(client.set(key, 0, new byte[0]).get());
    assertArrayEquals(new byte[0], (byte[]) client.get(key));
    String longest = (fresh() + "k".repeat(250)).substring(0, 250);
    assertTrue(client.set(longest, 0, "value").get());
    assertEquals("value", client.get(longest));
  }

  @Test
  void versionsAndStats() {
    assertTrue(client.getVersions().values().iterator().next().matches("[0-9]+\\.[0-9]+.*"));
    Map<String, String> stats = client.getStats().values().iterator().next();
    assertTrue(Long.parseLong(stats.get("cmd_get")) >= 0);
    assertTrue(Long.parseLong(stats.get("limit_maxbytes")) > 0);
  }

  @Test
  void flush() throws Exception {
    String key = fresh();
    assertTrue(client.set(key, 0, "value").get());
    assertTrue(client.flush().get());
    assertNull(client.get(key));
    assertTrue(client.set(key, 0, "later").get());
    assertEquals("later", client.get(key));
  }
}
