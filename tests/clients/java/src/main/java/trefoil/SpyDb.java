package trefoil;

import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.*;
import site.ycsb.*;

/**
 * YCSB's records in a memcached: all fields of one record are one value.
 *
 * <p>Every failure is a status other than OK, which YCSB counts and the runner looks for.
 */
public class SpyDb extends DB {
  private static final int WAIT_S_MAX = 10;
  private static final Status CONFLICT =
      new Status("CONFLICT", "others changed the record again and again");

  private MemcachedClient client;

  @Override
  public void init() throws DBException {
    try {
      client =
          new MemcachedClient(
              new ConnectionFactoryBuilder()
                  .setOpTimeout(TimeUnit.SECONDS.toMillis(WAIT_S_MAX))
                  .setDaemon(true)
                  .build(),
              List.of(Target.memcached()));
    } catch (java.io.IOException failure) {
      throw new DBException(failure);
    }
  }

  @Override
  public void cleanup() {
    client.shutdown(WAIT_S_MAX, TimeUnit.SECONDS);
  }

  @Override
  public Status read(
      String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    Object value = client.get(name(table, key));
    if (value == null) {
      return Status.NOT_FOUND;
    }
    decode((byte[]) value)
        .forEach(
            (field, bytes) -> {
              if (fields == null || fields.contains(field)) {
                result.put(field, new ByteArrayByteIterator(bytes));
              }
            });
    return Status.OK;
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    Map<String, byte[]> record = new TreeMap<>();
    values.forEach((field, bytes) -> record.put(field, bytes.toArray()));
    return stored(client.set(name(table, key), 0, encode(record)));
  }

  /** A record's other fields stay: read it, change it, store it if it is still the same. */
  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    Map<String, byte[]> changes = new TreeMap<>();
    values.forEach((field, bytes) -> changes.put(field, bytes.toArray()));
    for (int attempt = 0; attempt < 100; attempt++) {
      CASValue<Object> found = client.gets(name(table, key));
      if (found == null) {
        return Status.NOT_FOUND;
      }
      Map<String, byte[]> record = decode((byte[]) found.getValue());
      record.putAll(changes);
      switch (client.cas(name(table, key), found.getCas(), encode(record))) {
        case OK:
          return Status.OK;
        case EXISTS:
          continue;
        case NOT_FOUND:
          return Status.NOT_FOUND;
        default:
          return Status.ERROR;
      }
    }
    return CONFLICT;
  }

  @Override
  public Status delete(String table, String key) {
    return stored(client.delete(name(table, key)));
  }

  @Override
  public Status scan(
      String table,
      String startkey,
      int recordcount,
      Set<String> fields,
      Vector<HashMap<String, ByteIterator>> result) {
    return Status.NOT_IMPLEMENTED;
  }

  private static Status stored(java.util.concurrent.Future<Boolean> answer) {
    try {
      return answer.get(WAIT_S_MAX, TimeUnit.SECONDS) ? Status.OK : Status.ERROR;
    } catch (Exception failure) {
      System.err.println("SpyDb: " + failure);
      return Status.ERROR;
    }
  }

  private static String name(String table, String key) {
    return table + ":" + key;
  }

  /** Each field as: length of its name, name, length of its value, value. */
  private static byte[] encode(Map<String, byte[]> record) {
    var bytes = new java.io.ByteArrayOutputStream();
    var output = new java.io.DataOutputStream(bytes);
    try {
      for (Map.Entry<String, byte[]> field : record.entrySet()) {
        output.writeUTF(field.getKey());
        output.writeInt(field.getValue().length);
        output.write(field.getValue());
      }
    } catch (java.io.IOException impossible) {
      throw new IllegalStateException(impossible);
    }
    return bytes.toByteArray();
  }

  private static Map<String, byte[]> decode(byte[] value) {
    Map<String, byte[]> record = new TreeMap<>();
    var input = java.nio.ByteBuffer.wrap(value);
    while (input.hasRemaining()) {
      byte[] field = new byte[input.getShort()];
      input.get(field);
      byte[] bytes = new byte[input.getInt()];
      input.get(bytes);
      record.put(new String(field, StandardCharsets.UTF_8), bytes);
    }
    return record;
  }
}
