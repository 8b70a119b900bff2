package trefoil;

import static org.junit.jupiter.api.Assertions.*;
import static trefoil.Target.fresh;

import java.util.*;
import net.rubyeye.xmemcached.*;
import net.rubyeye.xmemcached.command.BinaryCommandFactory;
import net.rubyeye.xmemcached.command.TextCommandFactory;
import org.junit.jupiter.api.*;

/** xmemcached's usual operations, once per protocol. */
abstract class XmemcachedTest {
  private final CommandFactory protocol;
  private MemcachedClient client;

  XmemcachedTest(CommandFactory protocol) {
    this.protocol = protocol;
  }

  static class TextTest extends XmemcachedTest {
    TextTest() {
      super(new TextCommandFactory());
    }
  }

  static class BinaryTest extends XmemcachedTest {
    BinaryTest() {
      super(new BinaryCommandFactory());
    }

    @Test
    void getAndTouch() throws Exception {
      String key = fresh();
      assertTrue(client().set(key, 1, "value"));
      assertEquals("value", client().getAndTouch(key, 100));
      Target.outliveASecond();
      assertEquals("value", client().get(key));
    }
  }

  MemcachedClient client() {
    return client;
  }

  @BeforeEach
  void connect() throws Exception {
    XMemcachedClientBuilder builder = new XMemcachedClientBuilder(List.of(Target.memcached()));
    builder.setCommandFactory(protocol);
    builder.setOpTimeout(5000);
    client = builder.build();
  }

  @AfterEach
  void close() throws Exception {
    client.shutdown();
  }

  @Test
  void setGetDelete() throws Exception {
    String key = fresh();
    assertNull(client.get(key));
    assertTrue(client.set(key, 0, "value ☃"));
    assertEquals("value ☃", client.get(key));
    assertTrue(client.delete(key));
    assertFalse(client.delete(key));
    assertNull(client.get(key));
  }

  @Test
  void addReplaceAppendPrepend() throws Exception {
    String key = fresh();
    assertFalse(client.replace(key, 0, "0"));
    assertFalse(client.append(key, "0"));
    assertFalse(client.prepend(key, "0"));
    assertTrue(client.add(key, 0, "1"));
    assertFalse(client.add(key, 0, "2"));
    assertTrue(client.replace(key, 0, "3"));
    assertTrue(client.append(key, ">"));
    assertTrue(client.prepend(key, "<"));
    assertEquals("<3>", client.get(key));
  }

  @Test
  void compareAndSwap() throws Exception {
    String key = fresh();
    assertNull(client.gets(key));
    assertTrue(client.set(key, 0, "one"));
    GetsResponse<Object> one = client.gets(key);
    assertEquals("one", one.getValue());
    assertTrue(client.cas(key, 0, "two", one.getCas()));
    assertFalse(client.cas(key, 0, "three", one.getCas()));
    assertEquals("two", client.get(key));
    assertTrue(
        client.cas(
            key,
            0,
            new CASOperation<Object>() {
              @Override
              public int getMaxTries() {
                return 3;
              }

              @Override
              public Object getNewValue(long unique, Object value) {
                return value + " and more";
              }
            }));
    assertEquals("two and more", client.get(key));
  }

  @Test
  void numbers() throws Exception {
    String key = fresh();
    assertEquals(7, client.incr(key, 5, 7));
    assertEquals(12, client.incr(key, 5, 7));
    assertEquals(2, client.decr(key, 10, 7));
    assertEquals(0, client.decr(key, 10));
    Counter counter = client.getCounter(fresh(), 5);
    assertEquals(6, counter.incrementAndGet());
    assertEquals(5, counter.decrementAndGet());
    counter.set(100);
    assertEquals(100, counter.get());
  }

  @Test
  void touchAndExpiry() throws Exception {
    String key = fresh();
    String other = fresh();
    assertTrue(client.set(key, 1, "value"));
    assertTrue(client.set(other, 1, "value"));
    assertTrue(client.touch(key, 100));
    Target.outliveASecond();
    assertEquals("value", client.get(key));
    assertNull(client.get(other));
  }

  @Test
  void manyAtOnce() throws Exception {
    Map<String, Object> values = new HashMap<>();
    for (int number = 0; number < 250; number++) {
      String key = fresh();
      values.put(key, number);
      assertTrue(client.set(key, 0, number));
    }
    List<String> keys = new ArrayList<>(values.keySet());
    keys.add(fresh());
    assertEquals(values, client.get(keys));
    assertEquals(250, client.gets(keys).size());
  }

  @Test
  void withoutReplies() throws Exception {
    // One connection, so that the answer to the last tells of those before it.
    String key = fresh();
    String number = fresh();
    client.setWithNoReply(key, 0, "b");
    client.appendWithNoReply(key, "c");
    client.prependWithNoReply(key, "a");
    client.addWithNoReply(key, 0, "no");
    client.setWithNoReply(number, 0, "1");
    client.incrWithNoReply(number, 41);
    assertEquals("abc", client.get(key));
    assertEquals("42", client.get(number));
    client.deleteWithNoReply(key);
    assertNull(client.get(key));
  }

  @Test
  void aPoolOfConnections() throws Exception {
    XMemcachedClientBuilder builder = new XMemcachedClientBuilder(List.of(Target.memcached()));
    builder.setCommandFactory(protocol);
    builder.setConnectionPoolSize(4);
    MemcachedClient pool = builder.build();
    for (int number = 0; number < 100; number++) {
      String key = fresh();
      assertTrue(pool.set(key, 0, number));
      assertEquals(number, pool.<Integer>get(key));
    }
    pool.shutdown();
  }

  @Test
  void largeValues() throws Exception {
    byte[] value = new byte[1_000_000];
    new Random(2).nextBytes(value);
    String key = fresh();
    assertTrue(client.set(key, 0, value));
    assertArrayEquals(value, (byte[]) client.get(key));
  }

  @Test
  void versionsStatsFlush() throws Exception {
    assertTrue(client.getVersions(5000).values().iterator().next().matches("[0-9]+\\.[0-9]+.*"));
    assertTrue(client.getStats().values().iterator().next().containsKey("curr_items"));
    String key = fresh();
    assertTrue(client.set(key, 0, "value"));
    client.flushAll();
    assertNull(client.get(key));
    assertTrue(client.set(key, 0, "later"));
    assertEquals("later", client.get(key));
  }
}
